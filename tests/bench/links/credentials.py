"""What each kind of credential costs a node: CPU of a link until its welcome, and bytes of an idle one.

`python -m bench.links.credentials` starts one node without TLS and one with it, and has agents of every kind come, in
turns: with the shared token, their own credential, the JWT of an issuer, a proxy's header; over TLS with the shared
token, and with a client certificate in a full handshake. Agents live in this process, whose own time is not counted.
The issuer, the authority and the enrolments are made before anything is measured. An agent that comes back within an
hour usually has a JWT or certificate that the node remembers: every agent here has one that it has never seen.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from cryptography.hazmat.primitives.serialization import Encoding

from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.identity.agent_key import AgentKey, pem_of_seed
from fairlead.identity.credential import CredentialIssuer
from fairlead.identity.proof import NONCE_HEADER, link_statement, prove
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello, Welcome

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us, pss
from support.carrier.authority import Authority
from support.oidc.issuer import Issuer

SEED = b"b" * 32
AT_ONCE = 20
HEADER = "x-forwarded-tls-client-cert"
KINDS = ("shared token", "credential", "JWT", "header", "TLS, shared token", "TLS, client certificate")


class BenchAgent:
    """One link, from the connection to its welcome."""

    def __init__(self, agent: str, key: AgentKey | None, credential: str) -> None:
        self.agent, self._key, self._credential = agent, key, credential
        self._codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self._nonce = ""
        self.connection: ClientConnection | None = None
        self.welcomed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answered(self, headers: Mapping[str, str]) -> None:
        self._nonce = headers.get(NONCE_HEADER, "")

    def on_open(self, connection: Connection) -> None:
        proof = ""
        if self._key is not None:
            proof = prove(self._key, link_statement(self._nonce, self.agent, self._credential))
        hello = Hello(agent=self.agent, boot=os.urandom(8).hex(), conn=1, facts={"os": "linux"}, proof=proof)
        connection.send(self._codec.encode(hello))

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        if isinstance(self._codec.decode(data), Welcome) and not self.welcomed.done():
            self.welcomed.set_result("")

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(f"{code} {reason}")

    def on_silence(self, connection: Connection) -> None: ...
    def on_writable(self, connection: Connection) -> None: ...
    def on_overflow(self, connection: Connection) -> None: ...


class CredentialBench:
    def __init__(self, folder: Path, issuer: Issuer, authority: Authority, ports: tuple[int, int]) -> None:
        self._folder, self._issuer, self._authority, self._ports = folder, issuer, authority, ports
        self._credentials = CredentialIssuer(SEED, "fairlead")
        self._wheel = TimerWheel(silence=3600.0)
        self._gate = asyncio.Semaphore(AT_ONCE)

    def __enter__(self) -> CredentialBench:
        self._wheel.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wheel.stop()

    def prepared(self, kind: str, name: str, now: int) -> tuple[BenchAgent, dict[str, Any]]:
        """An agent of this kind, and how it connects."""
        key, credential, secure, headers = None, "", kind.startswith("TLS"), []
        context = ssl.create_default_context(cafile=str(self._authority.file)) if secure else None
        if kind.endswith("shared token"):
            credential = DEVELOPMENT_AGENT_TOKEN
        elif kind == "credential":
            key = AgentKey(os.urandom(32))
            credential = self._credentials.issue(os.urandom(8).hex(), name, key.public, now, 3600)
        elif kind == "JWT":
            credential = self._issuer.token(sub="system:serviceaccount:edge:agent", pod={"name": name})
        elif kind == "header":
            octets = self._authority.issue(name)[0].public_bytes(Encoding.DER)
            headers = [(HEADER, base64.b64encode(octets).decode())]
        else:
            assert context is not None
            context.load_cert_chain(*self._authority.client(name))
        if credential:
            headers.append(("Authorization", f"Bearer {credential}"))
        agent = BenchAgent(name, key, credential)
        return agent, {
            "url": f"{'wss' if secure else 'ws'}://localhost:{self._ports[secure]}/v1/link",
            "headers": headers, "ssl": context,
        }  # fmt: skip

    async def join(self, agent: BenchAgent, how: dict[str, Any]) -> None:
        async with self._gate:
            agent.connection = await connect(
                how["url"], agent, timer_wheel=self._wheel, subprotocols=(SUBPROTOCOL_MSGPACK,),
                headers=how["headers"], ssl=how["ssl"], timeout=60.0, on_answer=agent.answered,
            )  # fmt: skip
            async with asyncio.timeout(60):
                problem = await agent.welcomed
            if problem:
                raise SystemExit(f"the link of {agent.agent} was closed: {problem}")


async def measure(bench: CredentialBench, pids: tuple[int, int], agents: int, turns: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {kind: {"accept_us": [], "bytes": []} for kind in KINDS}
    kept: list[BenchAgent] = []
    for turn in range(-1, turns):  # the first turn warms everything up
        for kind in KINDS:
            pid = pids[kind.startswith("TLS")]
            count = agents if turn >= 0 else min(50, agents)
            now = int(time.time())
            made = [
                bench.prepared(kind, f"{kind.replace(' ', '').replace(',', '')}-{turn}-{n}", now) for n in range(count)
            ]
            memory, cpu = pss(pid), cpu_us(pid)
            await asyncio.gather(*(bench.join(*one) for one in made))
            if turn >= 0:
                found[kind]["accept_us"].append((cpu_us(pid) - cpu) / count)
                found[kind]["bytes"].append((pss(pid) - memory) / count)
            kept += [agent for agent, _ in made]
        print_progress(f"   turn {turn + 1} of {turns}: {len(kept)} links")
    for agent in kept:
        assert agent.connection is not None
        agent.connection.abort()
    return {kind: {name: median(values) for name, values in one.items()} for kind, one in found.items()}


async def run(agents: int, turns: int, out: Path | None) -> None:
    issuer = Issuer()
    try:
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as temporary:
            folder = Path(temporary)
            key = folder / "issuer.pem"
            key.write_bytes(pem_of_seed(SEED))
            issuers = folder / "issuers.toml"
            issuers.write_text(
                f'[issuers.bench]\nurl = "{issuer.url}"\naudience = "fairlead"\nid = "{{/pod/name}}"\n'
                'match = { "/sub" = ["*"] }\n'
            )
            authority = Authority(folder)
            certificate, server_key = authority.server()
            plain = (
                "--issuer-key", str(key), "--link-issuers", str(issuers), "--trusted-proxies", "127.0.0.0/8",
                "--link-client-cert-header", HEADER,
            )  # fmt: skip
            tls = (
                "--link-tls-cert", str(certificate), "--link-tls-key", str(server_key), "--link-tls-client-ca",
                str(authority.file), "--link-tls-client-auth", "optional",
            )  # fmt: skip
            async with EmbeddedValkey(folder / "valkey") as valkey:
                nodes = (
                    BenchGateway("plain", valkey.url, folder, *plain), BenchGateway("tls", valkey.url, folder, *tls),
                )  # fmt: skip
                with (
                    running(*nodes),
                    CredentialBench(folder, issuer, authority, (nodes[0].link, nodes[1].link)) as bench,
                ):
                    found = await measure(bench, (nodes[0].pid, nodes[1].pid), agents, turns)
    finally:
        issuer.close()
    rows = [[kind, f"{one['accept_us']:.0f}", f"{one['bytes'] / 1000:.1f}"] for kind, one in found.items()]
    table(["credential", "µs CPU of a link until welcome", "KB of an idle link"], rows)
    if out is not None:
        out.write_text(json.dumps({"agents": agents, "turns": turns, "found": found}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=500, help="agents of each kind in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(run(options.agents, options.turns, options.out))


if __name__ == "__main__":
    main()
