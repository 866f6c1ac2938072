"""How the command line prints the answers of the API.

`formats` prints one answer in the form that --output asks for, `table` lays out columns, and `watch` prints the answer
again whenever it changes.
"""
