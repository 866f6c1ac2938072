"""The user's side of a program that runs on an agent: its output, its input, Ctrl-C and the terminal.

`attach` follows a command until it ends, `raw_terminal` hands the user's terminal to a remote shell, and `stdio` reads
and writes file descriptors without blocking the event loop.
"""
