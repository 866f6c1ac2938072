"""What is piped into `fairlead exec`, carried to the remote program's stdin.

Started by `commands` once the command has its id. A thread of its own, since reading a pipe blocks for as
long as the other program likes. Chunks are numbered and a repeated number changes nothing, so whatever may
have been lost on the way is simply sent again. It reads the descriptor, not sys.stdin: a thread that waits in
Python's buffered reader makes the interpreter's exit fail.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

from fairlead.cli.follow import RETRIES, RETRY
from fairlead.client import Client
from fairlead.errors import ConnectionRefused, FairleadError, InvalidRequest, Unavailable

CHUNK = 64 << 10
"""The bytes of one chunk of the link protocol, so that one read is one chunk on the whole way."""
AFTERMATH = 1.0
"""Seconds: a refusal this soon before the end of the command is a program that did not read its stdin."""


class Stdin:
    """Forwards descriptor `fd` until its end, or until `close` says that the command has ended."""

    def __init__(self, client: Client, command: str, talk: Callable[[str], None], fd: int = 0) -> None:
        self._client = client
        self._command = command
        self._talk = talk
        self._fd = fd
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._forward, name="stdin", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _forward(self) -> None:
        try:
            n = 0
            while data := os.read(self._fd, CHUNK):
                if not self._send(n, data):
                    return
                n += 1
            self._send(n, b"", end=True)
        except InvalidRequest as e:
            if not self._ended.wait(AFTERMATH):
                self._talk(f"the input is no longer taken: {e.message}")
        except (FairleadError, OSError) as e:
            if not self._ended.is_set():
                self._talk(f"the input is cut off, the remote program waits for more: {e}")

    def _send(self, n: int, data: bytes, end: bool = False) -> bool:
        """False when the command has ended meanwhile."""
        for attempt in range(RETRIES + 1):
            if self._ended.is_set():
                return False
            try:
                self._client.input(self._command, n, data, end)
                return True
            except (Unavailable, ConnectionRefused):
                if attempt == RETRIES:
                    raise
                self._ended.wait(RETRY.delay(attempt, random.random()) / 1000)
        return False
