"""`fairlead cp`: copies a file to an agent or from one.

`file_copy` transfers and compares the bytes, `local_files` reads and writes the files on this machine, and `progress`
shows how far the copy is.
"""
