"""The user's side of a program that runs on an agent: its output, its input, Ctrl-C, and the terminal.

`attach` follows a command until it ends, `cancellation` cancels one that nobody follows any longer, `results` prints
its output and how it ended, `raw_terminal` connects the user's terminal to a remote shell, and `escapes` recognizes the
keys that leave it; `stdio` reads and writes file descriptors without blocking the event loop.
"""
