"""The user's terminal while a remote program uses it: puts it into raw mode, reports its size, and always restores it.

Used by `shell`. Whatever ends the command (the program, an error, ~., a signal that would kill this process), the
terminal gets its earlier modes back. After Ctrl-Z and `fg` it is put into raw mode again, because the user's shell has
set its own modes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TYPED_LIMIT = 64 << 10
"""The maximum number of bytes that wait to be sent to the gateway; the terminal is not read while as many are
waiting."""
FATAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that other processes send to end this one; in raw mode Ctrl-C is a character."""

Size = tuple[int, int]
"""Columns and rows."""


class RawTerminal:
    """A terminal in raw mode: returns what is typed, and the size when it changes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._typed = bytearray()
        self.ended = False
        """The terminal is closed: nothing more can be typed."""
        self._resized = False
        self._reading = False
        self._changed = asyncio.Event()
        self.killed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The number of the signal that told us to end."""

    def size(self) -> Size:
        """The terminal's size; 80 by 24 when it is unknown."""
        for fd in (self._fd, 1, 2):
            with suppress(OSError):
                found = os.get_terminal_size(fd)
                if found.columns and found.lines:
                    return found.columns, found.lines
        return 80, 24

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Raw mode while the block lasts."""
        loop = asyncio.get_running_loop()
        before = termios.tcgetattr(self._fd)
        try:
            for number in FATAL_SIGNALS:
                loop.add_signal_handler(number, self._kill, number)
            loop.add_signal_handler(signal.SIGWINCH, self._resize)
            loop.add_signal_handler(signal.SIGCONT, self._continue)
            self._set_raw()
            self._resume_reading()
            yield
        finally:
            self._pause_reading()
            for number in (*FATAL_SIGNALS, signal.SIGWINCH, signal.SIGCONT):
                loop.remove_signal_handler(number)
            with suppress(termios.error):  # the terminal itself is gone
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    async def next(self) -> tuple[bytes, Size | None]:
        """Wait for a change: what was typed since the last call, and the new size if there is one."""
        await self._changed.wait()
        self._changed.clear()
        typed, self._typed = bytes(self._typed), bytearray()
        size = self.size() if self._resized else None
        self._resized = False
        if self.ended:
            self._changed.set()
        else:
            self._resume_reading()
        return typed, size

    def _set_raw(self) -> None:
        tty.setraw(self._fd, termios.TCSADRAIN)

    def _resume_reading(self) -> None:
        if not self._reading:
            asyncio.get_running_loop().add_reader(self._fd, self._read)
            self._reading = True

    def _pause_reading(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._reading = False

    def _read(self) -> None:
        try:
            data = os.read(self._fd, TYPED_LIMIT - len(self._typed))
        except OSError:
            data = b""
        self._typed += data
        self.ended = not data
        if self.ended or len(self._typed) >= TYPED_LIMIT:
            self._pause_reading()
        self._changed.set()

    def _resize(self) -> None:
        self._resized = True
        self._changed.set()

    def _continue(self) -> None:
        with suppress(termios.error):
            self._set_raw()
        self._resize()

    def _kill(self, number: int) -> None:
        if not self.killed.done():
            self.killed.set_result(number)


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def notify_raw(text: str) -> None:
    """Print a message on a terminal in raw mode, where a line feed alone does not return to the left margin."""
    sys.stderr.write(f"\r\nfairlead: {text}\r\n")
    sys.stderr.flush()
