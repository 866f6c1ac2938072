"""The commands of `fairlead`, one file each: its options, its `--help`, and the call of what does the work.

A module here imports click and nothing heavier; what a command needs is imported when the command runs.
"""
