"""A proxy that disturbs connections as real proxies do: it cuts or forgets them, removes the upgrade, names itself.

Used by the fixture `relay_to`; it runs on a thread and an event loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time

from support.waiting import WAIT


class Relay:
    """A proxy in front of an address, with the faults that a test chooses."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.partition("://")[2].partition(":")
        self._port = int(port)
        self.port = 0
        self.strips = False
        """It removes the upgrade."""
        self.server = ""
        """What it calls itself in answers."""
        self.cuts: list[int] = []
        """Each connection is cut after so many bytes of answers; when the list is used up, none is."""
        self.idle: float | None = None
        """A connection that was silent for so many seconds is closed …"""
        self.forgets = False
        """… or is dead, and no Event says so."""
        self.connections = 0
        self.spoils = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(WAIT)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)

    def refuse(self) -> None:
        """Cut the open connections, and accept no more."""
        self.idle = -1
        self._loop.call_soon_threadsafe(self._server.close)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def spoil(self) -> None:
        """Cut the open connections, and answer new ones with an error of its own."""
        self.spoils = True
        self.idle = -1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.spoils:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        relayed = _RelayedConnection(self, self.cuts.pop(0) if self.cuts else None)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.strips:
                lines = head.split(b"\r\n")
                head = b"\r\n".join(one for one in lines if not one.lower().startswith((b"upgrade:", b"connection:")))
            far_writer.write(head)
            pumps = [
                asyncio.create_task(relayed.pump(reader, far_writer, False)),
                asyncio.create_task(relayed.pump(far_reader, writer, True)),
                asyncio.create_task(relayed.watch()),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, far_writer):
                one.transport.abort()


class _RelayedConnection:
    """One connection through the relay."""

    def __init__(self, relay: Relay, cut: int | None) -> None:
        self._relay = relay
        self._left = cut
        self._last_data = time.monotonic()
        self._dead = False
        self._first = True

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        while data := await reader.read(1 << 16):
            self._last_data = time.monotonic()
            if self._dead:
                continue
            if answers and self._first and self._relay.server:
                data = data.replace(b"\r\n", f"\r\nserver: {self._relay.server}\r\n".encode(), 1)
            self._first = self._first and not answers
            if answers and self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            writer.write(data)
            await writer.drain()
            if self._left == 0:
                return

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            if self._relay.idle is not None and time.monotonic() - self._last_data > self._relay.idle:
                if not self._relay.forgets:
                    return
                self._dead = True
