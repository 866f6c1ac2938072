"""The OpenAPI document and the API agree: schemathesis sends generated requests to a real gateway.

The seed and the count of what was played are printed; API_SEED replays a run. Each run has another seed, but with CI
set it is always the same one, as in Hypothesis's own profile for CI: whether a change is merged depends on the change
alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from websockets import ConnectionClosed

from fairlead.app.api.openapi import document
from fairlead.fleet.schema import TargetState
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent

TOKEN = "development-platform-token"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth"
)
"""All that judge the document; a selector or a cursor may be a legal string and still be refused."""
DEADLINE = 600.0
"""Seconds: a run takes some ten on a machine with nothing else to do, and many times that on a busy one."""
ST = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


async def play(base: str, examples: int, folder: Path) -> tuple[int, str]:
    """Exit code and output of one run."""
    by_chance = 1 if os.environ.get("CI") else random.SystemRandom().randrange(1 << 32)
    seed = os.environ.get("API_SEED") or str(by_chance)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ST, "run", f"{base}/v1/openapi.json", "-H", f"Authorization: Bearer {TOKEN}",
        "--max-examples", str(examples), "--seed", seed, "--request-timeout", "120", "--checks", CHECKS,
        "--generation-database", "none", "--no-color",
        "--exclude-operation-id", "listEvents",  # with `follow` it never ends; test_events_api.py plays its queries
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output.decode()


async def oblige(gateway: GatewayProcess, dial: DialAgent, name: str) -> None:
    """An agent that ends every command at once and reconnects, so that every stream ends."""
    for conn in itertools.count(1):
        peer = await dial(gateway, name)
        await peer.greet(conn=conn, facts={"os": "linux"})
        try:
            while True:
                message = peer.codec.decode(await peer.socket.recv())
                if isinstance(message, Cmd):
                    await peer.send(Ack(id=message.id), End(id=message.id, total=0, payload=b"{}"))
        except ConnectionClosed:
            continue


@pytest.mark.timeout(DEADLINE + 60)
async def test_generated_requests_find_no_contradiction(
    gateway: GatewayProcess, dial: DialAgent, tmp_path: Path
) -> None:
    names = ("agent-1", "0", "a")  # what a generator finds by itself
    obliging = [asyncio.create_task(oblige(gateway, dial, name)) for name in names]
    code, output = await play(gateway.api, 25, tmp_path)
    for task in obliging:
        task.cancel()
    print(output[-600:])
    assert code == 0, output
    played = re.search(r"([\d,]+) generated", output)
    assert played is not None
    assert int(played[1].replace(",", "")) > 200, output[-600:]


@pytest.fixture
async def forgetful(gateway: GatewayProcess) -> AsyncIterator[str]:
    """A proxy in front of the API that drops one member from its responses."""
    async with ClientSession(auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.Response:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length")}
            url = gateway.api + str(request.rel_url)
            async with session.request(request.method, url, headers=headers, data=await request.read()) as answer:
                body = await answer.read()
                if "openapi" not in request.path:
                    body = re.sub(rb'"cursor":(null|"[^"]*")', b'"was_cursor":1', body)
                kept = {k: v for k, v in answer.headers.items() if k.lower() in ("content-type", "allow")}
                return web.Response(status=answer.status, headers=kept, body=body)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@pytest.mark.timeout(DEADLINE + 60)
async def test_a_member_that_is_missing_from_an_answer_is_found(forgetful: str, tmp_path: Path) -> None:
    code, output = await play(forgetful, 5, tmp_path)
    assert code == 1, output
    assert "'cursor' is a required property" in output or '"cursor" is a required property' in output


def test_the_document_and_the_page_name_every_state_and_no_other() -> None:
    """The states are those that a record can have: `fleet.schema.TargetState`."""
    schemas = json.loads(document())["components"]["schemas"]
    states = {state.value for state in TargetState}
    assert set(schemas["TargetState"]["enum"]) == states
    for shape in ("AcceptedCommand", "Command", "Target", "CommandEnd", "CancelledCommand"):
        assert "#/components/schemas/TargetState" in json.dumps(schemas[shape]["properties"]["state"]), shape
    page = Path(__file__).resolve().parents[2].joinpath("docs", "delivery.md").read_text()
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert states <= set(re.findall(r"`([a-z]+)`", rows))
