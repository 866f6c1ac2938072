"""Makes sure that the programs this process starts do not inherit ignored signals.

A process that was started by nohup, or as a background job of a script, ignores SIGHUP, or SIGINT and SIGQUIT. A
program that it starts would inherit that at exec: Ctrl-C would do nothing in a shell on an agent, and a hangup would
have no effect. A signal with a handler, however, is reset to its default at exec. Called once by the owner of the
process: `Agent.run`, or a test.

It covers `signal.valid_signals()`, the signals that a program can set. The C library reserves a few for its threads (32
and 33 with glibc): one of these that was ignored at the start stays ignored in started programs.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = frozenset(
    {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself, and resets them in what `subprocess` starts
    | {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP}  # with a handler a write to the terminal would repeat for ever
)


def reset_ignored_signals() -> None:
    """Replace "ignore" with a handler that does nothing. For this process nothing changes; its children get the default
    action. Python allows this in the main thread only.
    """
    for number in signal.valid_signals() - INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignored)


def _ignored(number: int, frame: FrameType | None) -> None:
    """Do nothing, as for an ignored signal."""
