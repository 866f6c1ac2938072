"""What `file.get`, `file.put` and `exec` need of the file system: `path_resolver` resolves a path beneath the allowed
roots, `protected_paths` lists what the platform never touches and `path_guard` recognizes it, `os_errors` turns errno
values into errors of commands, and `disk_threads` keeps blocking calls off the event loop.
"""
