"""`fairlead cp`: copies a file to an agent or from one.

`file_copy` moves and compares the octets, `local_files` is the end on this machine, and `progress` shows how far it is.
"""
