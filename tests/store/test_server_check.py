from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.errors import ConfigError
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.servers.server_check import check_server

Connect = Callable[[str], Awaitable[Pipeliner]]


async def test_a_server_that_evicts_or_forgets_is_named_with_the_remedy(
    own_valkey: EmbeddedValkey, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    pipeliner = await connect(own_valkey.url)
    await pipeliner.submit("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await pipeliner.submit("CONFIG", "SET", "appendonly", "no")
    facts = await check_server(pipeliner)
    assert (facts.eviction, facts.append_only) == ("allkeys-lru", False)
    assert "set maxmemory-policy noeviction there" in caplog.text
    assert "set appendonly yes there" in caplog.text


async def test_a_server_too_old_for_our_scripts_is_refused(connect: Connect) -> None:
    # No server that old can be had from the packages we use, so its side of the wire is written out here.
    info = b"# Server\r\nredis_version:6.2.14\r\n# Memory\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"
    replies = {b"PING": b"+PONG", b"INFO": b"$%d\r\n%b" % (len(info), info), b"SETNAME": b"+OK"}
    name = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal name
        while line := await reader.readline():
            if line.startswith(b"fairlead"):
                name = line.strip()
            elif line.strip() == b"GETNAME":
                writer.write(b"+" + name + b"\r\n")
            if reply := replies.get(line.strip()):
                writer.write(reply + b"\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as old:
        pipeliner = await connect(f"redis://127.0.0.1:{old.sockets[0].getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"has version 6\.2\.14: expected Redis 7\.0 or later"):
            await check_server(pipeliner)
        await pipeliner.aclose()
