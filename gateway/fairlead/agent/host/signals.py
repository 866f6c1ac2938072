"""Ignored signals, kept from the programs that this process starts.

A process that was started by nohup, or as a background job of a script, ignores SIGHUP, or SIGINT and SIGQUIT. What it
starts inherits that at exec, so that Ctrl-C would do nothing in a shell on an agent and a hangup would not be heard,
whereas a signal with a handler is at its default again. Called once by whoever owns the process: `Agent.run`, and the
tests.

It covers `signal.valid_signals()`, the signals that a program can set. The C library keeps a few for its threads (32
and 33 with glibc) and refuses to change them: one of these that was ignored at the start remains ignored in what is
started.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = frozenset(
    {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself, and resets them in what `subprocess` starts
    | {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP}  # with a handler a write to the terminal would repeat for ever
)


def reset_ignored_signals() -> None:
    """Replace "ignore" by a handler that does nothing: the same for this process, the default for its children. Only
    in the main thread, as Python has it.
    """
    for number in signal.valid_signals() - INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignored)


def _ignored(number: int, frame: FrameType | None) -> None:
    """Nothing is done about it."""
