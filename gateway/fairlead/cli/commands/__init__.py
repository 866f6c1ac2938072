"""The commands of `fairlead`, one file each: its options, its `--help`, and the call of what does the work.

A module here imports click and nothing heavier; a command imports what it needs when it runs. `exec` also has
`results` and `cancel`.
"""
