"""The user's own terminal while it is another's: raw, its size told when it changes, and given back in every case.

Used by `shell`. Whatever ends the command (the program's end, an error, ~., a signal that would kill us), the terminal
gets back the modes that it had; after a stop and a `fg` it is made raw again, since the user's shell has set its own.
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

AHEAD = 64 << 10
"""Bytes typed (or pasted) that may wait for the gateway; beyond it the terminal is not read."""
FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From outside: in raw mode Ctrl-C is a character."""

Size = tuple[int, int]


class Terminal:
    """Columns and rows, and what is typed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._typed = bytearray()
        self.ended = False
        """Nothing more can be typed: the terminal is closed."""
        self._resized = False
        self._reading = False
        self._news = asyncio.Event()
        self.killed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The number of the signal that told us to end."""

    def size(self) -> Size:
        for fd in (self._fd, 1, 2):
            with suppress(OSError):
                found = os.get_terminal_size(fd)
                if found.columns and found.lines:
                    return found.columns, found.lines
        return 80, 24

    @contextmanager
    def raw(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = termios.tcgetattr(self._fd)
        try:
            for number in FATAL:
                loop.add_signal_handler(number, self._kill, number)
            loop.add_signal_handler(signal.SIGWINCH, self._resize)
            loop.add_signal_handler(signal.SIGCONT, self._continue)
            self._make_raw()
            self._read_on()
            yield
        finally:
            self._pause()
            for number in (*FATAL, signal.SIGWINCH, signal.SIGCONT):
                loop.remove_signal_handler(number)
            with suppress(termios.error):  # the terminal itself is gone
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    async def next(self) -> tuple[bytes, Size | None]:
        """What was typed since, and the new size if there is one."""
        await self._news.wait()
        self._news.clear()
        typed, self._typed = bytes(self._typed), bytearray()
        size = self.size() if self._resized else None
        self._resized = False
        if self.ended:
            self._news.set()
        else:
            self._read_on()
        return typed, size

    def _make_raw(self) -> None:
        tty.setraw(self._fd, termios.TCSADRAIN)

    def _read_on(self) -> None:
        if not self._reading:
            asyncio.get_running_loop().add_reader(self._fd, self._read)
            self._reading = True

    def _pause(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._reading = False

    def _read(self) -> None:
        try:
            data = os.read(self._fd, AHEAD - len(self._typed))
        except OSError:
            data = b""
        self._typed += data
        self.ended = not data
        if self.ended or len(self._typed) >= AHEAD:
            self._pause()
        self._news.set()

    def _resize(self) -> None:
        self._resized = True
        self._news.set()

    def _continue(self) -> None:
        with suppress(termios.error):
            self._make_raw()
        self._resize()

    def _kill(self, number: int) -> None:
        if not self.killed.done():
            self.killed.set_result(number)


class Escape:
    """Takes ~. ~? ~~ out of what is typed, at the beginning of a line, as other remote shells do."""

    def __init__(self) -> None:
        self.left = False
        self.asked = False
        self._begins = True
        self._tilde = False

    def take(self, typed: bytes) -> bytes:
        """What goes to the other side."""
        out = bytearray()
        for octet in typed:
            if self._tilde:
                self._tilde = False
                if octet == ord("."):
                    self.left = True
                    break
                if octet == ord("?"):
                    self.asked = True
                    continue
                out += b"~"
                self._begins = False
                if octet == ord("~"):
                    continue
            if self._begins and octet == ord("~"):
                self._tilde = True
                continue
            out.append(octet)
            self._begins = octet in b"\r\n"
        return bytes(out)


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def say(text: str) -> None:
    """Talk on a terminal that is raw: a line end alone would not go back to the left."""
    sys.stderr.write(f"\r\nfairlead: {text}\r\n")
    sys.stderr.flush()
