"""`fairlead cp`: copies a file to an agent or from one.

`file_copy` moves and compares the octets, `local_files` reads and writes this machine's end of the copy, and `progress`
shows how far it is.
"""
