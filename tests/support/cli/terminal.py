"""A real terminal (a pty) with a program on it, typed into and read by a test. Made by the fixture `screen`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from support.waiting import WAIT


class Screen:
    """A terminal of so many columns and rows, and a program on it."""

    def __init__(self, line: list[str], env: dict[str, str]) -> None:
        env = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}  # the terminal's own count
        self.ours, self.theirs = pty.openpty()
        self.resize(100, 30)
        self.before = termios.tcgetattr(self.theirs)
        self.shown = b""
        """What it shows that no `until` has passed over."""
        self._earlier = b""
        self.process = subprocess.Popen(
            line,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=env,
            # A session whose controlling terminal it is, as under a terminal emulator: resizing is a signal to it.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # one system call
        )

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read the screen until it shows that; what came before is forgotten."""
        deadline = time.monotonic() + WAIT
        while not (found := re.search(pattern, self.shown)):
            left = deadline - time.monotonic()
            assert left > 0, self.shown
            if select.select([self.ours], [], [], left)[0]:
                self.shown += os.read(self.ours, 65536)
        self._earlier += self.shown[: found.end()]
        self.shown = self.shown[found.end() :]
        return found

    def wait(self) -> int:
        """The exit code. The screen is read, or what is written there at last would wait for it."""
        deadline = time.monotonic() + WAIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    def end(self) -> str:
        """All that it has shown, once it has ended by itself."""
        self.wait()
        return (self._earlier + self.shown).decode()

    def _read(self, timeout: float) -> None:
        while select.select([self.ours], [], [], timeout)[0]:
            self.shown += os.read(self.ours, 65536)
            timeout = 0

    @property
    def raw(self) -> bool:
        return not termios.tcgetattr(self.theirs)[3] & termios.ICANON

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)
        os.close(self.ours)
        os.close(self.theirs)
