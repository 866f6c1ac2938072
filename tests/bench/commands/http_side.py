"""What the HTTP side of a command costs: its request is parsed, routed, authenticated, authorized and decoded, its
answer streamed.

`python -m bench.commands.http_side` prints a table: the platform API of a node, with a dispatch that accepts every
command and ends it at once instead of asking Redis, beside an application on the same server that reads the body and
answers with as many octets, and beside that application on stock uvicorn. The servers take turns, round by round;
figures are the least CPU time of a round, per command. Bounded in count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.app.access.guard import CredentialFailures
from fairlead.app.factory import api_app
from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.rules.policy_file import parse_policy
from fairlead.authorization.service_token import ID_BYTES, SECRET_BYTES, new_token
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import CommandUnknown
from fairlead.fleet.command_record import CommandRecord, Result, StoredEnd, Target
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow, TargetState
from fairlead.fleet.tokens.service_tokens import ServiceToken, ServiceTokens, StoredTokens
from fairlead.node import Node
from fairlead.routing.commands.request import CommandRequest, DispatchedCommand
from fairlead.routing.commands.results import ResultsUpdate
from fairlead.settings import Settings
from fairlead.telemetry.command_timing import CommandOrigin

from bench.api import round_trips
from bench.output import print_progress, table
from bench.probe import BenchProcess, cpu_us
from support.free_ports import free_port

TOKEN = "token-of-the-benchmark"
SERVERS = {
    "api": "the platform API, with a dispatch that answers at once",
    "rights": "the same, for a service token whose role asks for labels",
    "audit-no": "the platform API with an audit log that is never forced to the disk",
    "audit-everysec": "the same, forced to the disk once a second",
    "audit-always": "the same, forced to the disk before each command",
    "bare": "an application that only answers, on the same server",
    "uvicorn": "the same application on stock uvicorn",
}
IN_FLIGHT = 16
DRAW = bytes(range(ID_BYTES + SECRET_BYTES))
ROLES = b"""
roles:
  bench:
    - {methods: [exec], agents: "env=prod"}
    - {methods: [bench, exec], agents: "env in (dev,staging),team=web"}
bindings:
  - {tokens: [bench], roles: [bench]}
"""


BACKGROUND: set[asyncio.Task[None]] = set()


class InstantDispatch:
    """Accepts every command; one turn of the event loop later it has one result, and after another its end."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def submit(
        self,
        order: CommandRequest,
        follow: bool,
        request_trace: object,
        permit: Callable[[str], Awaitable[None]] | None,
    ) -> DispatchedCommand:
        command = f"0192f1b0-0000-7000-8000-{next(self._numbers):012x}"
        if permit is not None:
            await permit(command)
        await asyncio.sleep(0)
        return DispatchedCommand(command, TargetState.QUEUED, "online", "")

    async def read(
        self, command: str, offset: int, follow: bool, follower: object = None, opens: float = 0.0, poll: float = 0.0
    ) -> AsyncGenerator[ResultsUpdate]:
        yield ResultsUpdate([Result(0, "bench-0", 0, "stdout", b"hello world\n")])
        await asyncio.sleep(0)
        ended = Target("bench-0", TargetState.OK, 1, 1, 1, StoredEnd(b'{"code":0}'))
        origin = CommandOrigin("bench", "", 0, 0)
        yield ResultsUpdate([], CommandRecord(command, "bench-0", origin, "normal", 0, 0, 0, False, 1, False, [ended]))


class InstantTokens:
    """One service token, which never changes."""

    async def revision(self) -> str:
        return "first"

    async def read(self) -> StoredTokens:
        id, digest, _ = new_token(DRAW)
        token = ServiceToken(id, "bench", digest, 0, 1 << 60, "bench")
        return StoredTokens("first", {id: token}, {})

    def note_use(self, id: str, now: int) -> None:
        """Nobody asks."""


class InstantDirectory:
    """Every agent has the same labels."""

    async def look_up(self, agent: str) -> AgentRow:
        await asyncio.sleep(0)
        return AgentRow(agent, "", 1, "", 1, "", 0, 0, 0, False, labels='{"env":"dev","team":"web"}')


def api(rights: bool, audit: Path | None = None, fsync: str = "no") -> ASGIApp:
    """The API of a node that is not started, so it never asks the Redis of its URL."""
    settings = Settings(
        node="bench", platform_token=TOKEN, agent_token=f"another-{TOKEN}", audit_log=audit, audit_fsync=fsync
    )
    node = Node(settings, "redis://127.0.0.1:1")
    node.audit_trail.open()
    for loop in node.audit_trail.loops():
        BACKGROUND.add(asyncio.create_task(loop))
    node.routing.dispatch = node.routing.results = cast("Any", InstantDispatch())
    if rights:
        tokens, directory = cast("ServiceTokens", InstantTokens()), cast("Directory", InstantDirectory())
        node.authorizer = Authorizer(None, None, directory, cast("Any", None), tokens, lambda: 0, CommandUnknown)
        node.authorizer.policy_watch.policy = parse_policy(ROLES, "roles")
        BACKGROUND.add(asyncio.create_task(node.authorizer.tokens.run()))
    return api_app(node, CredentialFailures(Counter("refused", "Refused.", ["port"], registry=CollectorRegistry())))


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body and answers with as many octets as the API, in as many turns of the event loop."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    for authenticated in (scope.get("extensions") or {}).values():
        if callable(authenticated):  # of our server, which otherwise closes the connection after a few requests
            authenticated()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]})
    await send({"type": "http.response.body", "body": b'{"state":"ok"}'.ljust(330)})


async def serve(name: str, port: int) -> None:
    if name == "uvicorn":
        await uvicorn.Server(uvicorn.Config(bare, port=port, http="httptools", lifespan="off", log_config=None)).serve()
        return
    async with TimerWheel() as timer_wheel:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            kind, _, fsync = name.partition("-")
            audit = Path(folder) if kind == "audit" else None
            app = bare if name == "bare" else api(name == "rights", audit, fsync)
            await Server(config(app, port=port, timer_wheel=timer_wheel)).serve()


async def measure(servers: dict[str, BenchProcess], rounds: int, count: int) -> dict[str, float]:
    """The least CPU µs per command of each server."""
    spent: dict[str, list[float]] = {name: [] for name in servers}
    for turn in range(rounds):
        print_progress(f"round {turn + 1} of {rounds}")
        for name, server in servers.items():
            before = cpu_us(server.pid)
            await round_trips(server.port, new_token(DRAW)[2] if name == "rights" else TOKEN, 1, IN_FLIGHT, count)
            spent[name].append((cpu_us(server.pid) - before) / count)
    return {name: min(all_rounds) for name, all_rounds in spent.items()}


def compare(rounds: int, count: int, out: Path | None) -> None:
    servers: dict[str, BenchProcess] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for name in SERVERS:
                port = free_port()
                command = [sys.executable, "-I", "-m", "bench.commands.http_side", "--serve", name, "--port", str(port)]
                servers[name] = BenchProcess(name, command, Path(folder), port)
            for server in servers.values():
                server.wait_listening()
            figures = uvloop.run(measure(servers, rounds, count))
        finally:
            for server in servers.values():
                server.stop()
    table(
        ["server", "CPU µs per command", "more than stock uvicorn"],
        [[SERVERS[name], f"{us:.0f}", f"{us - figures['uvicorn']:+.0f}"] for name, us in figures.items()],
    )
    if out is not None:
        out.write_text(json.dumps(figures, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="What the HTTP side of a command costs.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--count", type=int, default=1000, help="commands of one server in one round")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        uvloop.run(serve(given.serve, given.port))
    else:
        compare(given.rounds, given.count, given.out)


if __name__ == "__main__":
    main()
