"""An agent's identity from docs/protocol.md alone: Node.js makes the vectors' proofs, and a gateway accepts its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import fairlead.mock
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import Resume

from support.gateway.identity_site import IdentitySite, make_issuer_key, still_linked
from support.gateway.process import GatewayProcess

PROGRAM = Path(__file__).resolve().with_name("identity.mjs")
VECTORS = Path(fairlead.mock.__path__[0]) / "vectors" / "identity.json"


async def node(interpreter: str, *words: str) -> Any:
    done = await asyncio.to_thread(
        subprocess.run, [interpreter, str(PROGRAM), *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
async def site(own_valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[IdentitySite]:
    process = GatewayProcess(tmp_path, own_valkey.url, ("--issuer-key", str(make_issuer_key(tmp_path))))
    store = Pipeliner(own_valkey.url)
    process.start()
    store.start()
    assert await store.wait_available(10.0)
    made = IdentitySite(process, store)
    yield made
    await made.aclose()
    await store.aclose()
    process.stop()


async def test_node_js_makes_every_proof_of_the_vectors(node_js: str) -> None:
    count = len(json.loads(VECTORS.read_text())["proofs"])
    assert await node(node_js, "vectors", str(VECTORS)) == {"agreed": count, "wrong": [], "key": True}


async def test_an_agent_of_node_js_enrols_proves_and_shows_what_it_has_stored(node_js: str, site: IdentitySite) -> None:
    seed, stored = os.urandom(32).hex(), ""
    body = await node(node_js, "enrolment", seed, await site.token(), "node-1")
    enrolled = await site.http.post("/v1/enrolments", json=body)
    assert enrolled.status_code == 201, enrolled.text
    credential = str(enrolled.json()["credential"])
    assert await site.keys.bound("node-1") == await node(node_js, "thumbprint", seed)
    for _ in range(4):
        agent, nonce = await site.dial("node-1", credential)
        words = ("link", seed, nonce, "node-1", credential, *([stored] if stored else []))
        resume = Resume(stored) if stored else None
        welcome = await agent.greet(boot=secrets.token_hex(8), proof=await node(node_js, *words), resume=resume)
        stored = welcome.sid
        await still_linked(agent)
        agent.socket.transport.abort()
    assert "two copies" not in site.node.log()
    assert "out of date" not in site.node.log()
