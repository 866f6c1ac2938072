"""The target of the attacks: a Valkey and one `fairlead serve`, with well-behaved agents and continuous commands.

`run.py` creates a new one for each attack. `Healthy` measures what the node's owner sees meanwhile: commands to
well-behaved agents, new links, and the probes of the admin port. The attacks run in processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fairlead.agent import Agent
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import READY
from support.plain_http import plain_client
from support.wrong_clock import shifted_clock

AGENT_TOKEN = "development-agent-token"
PLATFORM_TOKEN = "development-platform-token"
TIMEOUT = 60.0
AGENTS = 5
RATE = 30.0
"""Commands per second, started by the clock and not one after the other: a stall is met by all that it holds up."""
GIVE_UP = 15.0
"""Seconds after which a command, a link or a probe has failed."""
CHECK = 0.5
"""Seconds between two new links, and between two probes."""


@dataclass(slots=True)
class Seen:
    """What the owner saw in one stretch of time."""

    commands: list[float] = field(default_factory=list)
    """Seconds of each command that ended well."""
    links: list[float] = field(default_factory=list)
    """Seconds of each new link that was accepted."""
    probes: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    """How often something else happened: `command 503`, `probe timeout`."""

    def percentile(self, share: float) -> float:
        """Seconds; NaN when no command ended well."""
        ordered = sorted(self.commands)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


class Healthy:
    """Runs from `start` to `stop`; `turn` begins a new stretch and gives the one that is over."""

    def __init__(self, link: int, api: int, admin: int) -> None:
        self._ports = {"link": link, "api": api, "admin": admin}
        self._seen = Seen()
        self._tasks: set[asyncio.Task[None]] = set()
        self._http = plain_client(
            headers={"authorization": f"Bearer {PLATFORM_TOKEN}", "accept": "application/x-ndjson"},
            timeout=GIVE_UP, limits=httpx2.Limits(max_connections=64, max_keepalive_connections=64),
        )  # fmt: skip
        self._agents: list[tuple[Agent, asyncio.Task[None]]] = []
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for i in range(AGENTS):
            agent = Agent(f"ws://127.0.0.1:{self._ports['link']}", id=f"healthy-{i}", token=AGENT_TOKEN)
            agent.command("hello")(_hello)
            self._agents.append((agent, asyncio.create_task(agent.serve())))
        async with asyncio.timeout(TIMEOUT):
            for i in range(AGENTS):
                while not await self._command(f"healthy-{i}"):
                    await asyncio.sleep(0.1)
        self._loops = [asyncio.create_task(loop) for loop in (self._post(), self._dial(), self._probe())]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        # Commands under way end by themselves: a request that is cancelled while it connects may leave its socket open.
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=GIVE_UP + 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent, _ in self._agents:
            agent.stop()
        await asyncio.gather(*(task for _, task in self._agents), return_exceptions=True)
        await self._http.aclose()

    async def turn(self) -> Seen:
        """What began in this stretch is counted in it, however long it takes."""
        over, self._seen = self._seen, Seen()
        pending = list(self._tasks)
        if pending:
            await asyncio.wait(pending, timeout=GIVE_UP + 5)
        return over

    def _spawn(self, seen: Seen, agent: str) -> None:
        task = asyncio.create_task(self._timed(seen, agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self) -> None:
        n = 0
        due = time.monotonic()
        while True:
            self._spawn(self._seen, f"healthy-{n % AGENTS}")
            n += 1
            due += 1 / RATE
            await asyncio.sleep(max(due - time.monotonic(), 0))

    async def _timed(self, seen: Seen, agent: str) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP):
                await self._command(agent, seen)
        except TimeoutError:
            seen.failed["command timeout"] += 1
        except httpx2.RequestError as e:
            seen.failed[f"command {type(e).__name__}"] += 1
        else:
            seen.commands.append(time.monotonic() - began)

    async def _command(self, agent: str, seen: Seen | None = None) -> bool:
        url = f"http://127.0.0.1:{self._ports['api']}/v1/commands"
        answer = await self._http.post(url, json={"agent": agent, "method": "hello", "deadline": GIVE_UP})
        well = answer.status_code == 200 and '"state":"ok"' in answer.text.replace(" ", "")
        if not well and seen is not None:
            seen.failed[f"command {answer.status_code}"] += 1
        return well

    async def _dial(self) -> None:
        """A new link from an address that has done nothing wrong, up to the answer to its upgrade."""
        request = upgrade_request("127.0.0.1")
        while True:
            seen, began = self._seen, time.monotonic()
            status = await status_of(self._ports["link"], request)
            if status == 101:
                seen.links.append(time.monotonic() - began)
            else:
                seen.failed[f"link {status or 'lost'}"] += 1
            await asyncio.sleep(CHECK)

    async def _probe(self) -> None:
        while True:
            seen, began = self._seen, time.monotonic()
            status = await status_of(self._ports["admin"], b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            if status == 200:
                seen.probes.append(time.monotonic() - began)
            else:
                seen.failed[f"probe {status or 'lost'}"] += 1
            await asyncio.sleep(CHECK)


async def _hello() -> str:
    return "hello"


def upgrade_request(host: str, token: str = AGENT_TOKEN, **more: str) -> bytes:
    """An upgrade as an agent sends it, without a token if that is ""; `more` are further headers, with `_` for `-`."""
    headers = {
        "Host": host, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "fairlead.v1.msgpack",
        **({"Authorization": f"Bearer {token}"} if token else {}),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }  # fmt: skip
    return b"GET /v1/link HTTP/1.1\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"


async def status_of(port: int, request: bytes, source: str = "127.0.0.1", timeout: float = GIVE_UP) -> int:
    """Send `request` over a connection of its own; returns the status of the answer, 0 when there was none."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            try:
                writer.write(request)
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError, ValueError):
        return 0
    words = line.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _issuer_key(folder: Path) -> Path:
    """The key with which a node enrols agents."""
    path = folder / "issuer.pem"
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


Stage = Callable[[Path], Sequence[str]]
"""Writes the files that a node needs for an attack into its folder; returns the flags that name them."""


class Victim:
    """`async with Victim(folder) as victim:` until its healthy agents answer."""

    def __init__(
        self, folder: Path, *, files: int = 0, flags: Sequence[str] = (), stage: Stage | None = None, clock: int = 0
    ) -> None:
        """`files`: the limit of open files of the node; 0 leaves it. `clock`: seconds by which the node's clock is
        ahead."""
        self._folder = folder
        self._files = files
        self._flags = (*flags, *(stage(folder) if stage is not None else ()))
        self._environment = {**os.environ, **shifted_clock(folder, clock)} if clock else None
        self._valkey = EmbeddedValkey(folder / "valkey")
        self._process: subprocess.Popen[bytes] | None = None
        self._peak = 0
        self.link = self.api = self.admin = 0

    async def __aenter__(self) -> Victim:
        await self._valkey.start()
        try:
            await self._serve()
            self.healthy = Healthy(self.link, self.api, self.admin)
            await self.healthy.start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.healthy.stop()
        await self._end()

    async def _serve(self) -> None:
        command = [sys.executable, "-m", "fairlead", "serve", "--node", "victim", "--redis", self._valkey.url]
        command += ["--link-port=0", "--api-port=0", "--admin-port=0", "--log-format=json", *self._flags]
        command += ["--issuer-key", str(_issuer_key(self._folder))]
        if self._files:
            command = ["sh", "-c", f'ulimit -n {self._files}; exec "$0" "$@"', *command]
        with self.log_path.open("wb") as sink:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=self._environment
            )
        deadline = time.monotonic() + TIMEOUT
        while not (found := READY.search(self.log())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the node did not start:\n{self.log()}")
            await asyncio.sleep(0.05)
        self.link, self.api, self.admin = (int(found[i].rpartition(":")[2]) for i in (1, 2, 3))

    async def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                await asyncio.to_thread(self._process.wait, 20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        await self._valkey.stop()

    @property
    def log_path(self) -> Path:
        return self._folder / "node.log"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def place(self) -> str:
        """Where the attacker finds it: its only argument beside the attack's name and scale."""
        ports = {"link": self.link, "api": self.api, "admin": self.admin}
        return json.dumps({**ports, "redis": self._valkey.url, "folder": str(self._folder), "pid": self.pid})
