"""A gateway, or a proxy before it, that refuses an agent a credential and says when to ask again."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.agent.identity.agent_identity import AgentIdentity
from fairlead.wire.retry import LONGEST_MS

from support.agent.fixtures import Serve
from support.scripted_server import scripted
from support.waiting import until

TOKEN = f"fl_enrol_0123456789ab_{'A' * 43}"
YEAR, NEVER = "31536000", "9" * 400
NEXT_CENTURY = "Fri, 01 Jan 2100 00:00:00 GMT"


def answer(status: str, body: object, *headers: str) -> bytes:
    text = json.dumps(body)
    return "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(text)}", *headers, "", text)).encode()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The request line."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    await reader.readexactly(int(length.group(1)) if length else 0)
    return head.partition(b"\r\n")[0]


def named_seconds(caplog: pytest.LogCaptureFixture, words: str) -> list[float]:
    """The seconds that the log names after these words."""
    return [float(one) for one in re.findall(rf"{words}.* in ([0-9.]+|inf) s", caplog.text)]


@pytest.mark.parametrize("named", [YEAR, NEVER, NEXT_CENTURY])
async def test_a_renewal_that_is_refused_is_tried_again_within_minutes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    """Otherwise one answer of a faulty proxy would keep the agent from renewing for as long as it runs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/v1/enrolments" in await read_request(reader):
            writer.write(answer("201 Created", {"credential": "a.b.c", "lifetime": 0.1}))
        else:
            writer.write(answer("429 Too Many Requests", {"detail": "too many"}, f"Retry-After: {named}"))

    async with scripted(serve) as port:
        identity = AgentIdentity(tmp_path / "identity", TOKEN)
        identity.attach("web-1", f"ws://127.0.0.1:{port}/v1/link", lambda: None, None)
        await identity.credential()
        renewing = asyncio.create_task(identity.run())
        try:
            await until(lambda: named_seconds(caplog, "the credential was not renewed"))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
    (seconds,) = named_seconds(caplog, "the credential was not renewed")
    assert LONGEST_MS / 2000 <= seconds <= LONGEST_MS / 1000


@pytest.mark.parametrize("named", [YEAR, NEVER, NEXT_CENTURY])
async def test_an_enrolment_that_is_refused_is_tried_again_within_minutes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, serve: Serve, named: str
) -> None:
    caplog.set_level(logging.DEBUG, "fairlead.agent")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer("429 Too Many Requests", {"detail": "too many"}, f"Retry-After: {named}"))

    async with scripted(refuse) as port:
        serve(Agent(f"ws://127.0.0.1:{port}", "web-1", AgentIdentity(tmp_path / "identity", TOKEN)))
        await until(lambda: named_seconds(caplog, "connecting again"))
    (seconds,) = named_seconds(caplog, "connecting again")
    assert LONGEST_MS / 2000 <= seconds <= LONGEST_MS / 1000
