"""The exit codes of `fairlead`, as docs/cli.md and `fairlead --help` list them.

Every module that ends a process, or reports how a remote program ended, takes its codes from here.
"""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
UNAVAILABLE = 3
DEADLINE = 4
INTERRUPTED = 130
"""128 + SIGINT, as a shell shows a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""128 + SIGPIPE, as a shell shows a program whose reader has gone."""
