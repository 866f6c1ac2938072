"""The commands of `fairlead`, one file each: it has the command's options and `--help`, and calls the code that does
the work.

A module here imports click and nothing heavier; a command imports what it needs when it runs. `exec` also has
`results` and `cancel`.
"""
