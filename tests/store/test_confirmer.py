"""Answers that are held back until the disk of a real server has them."""

from __future__ import annotations

from pathlib import Path

from fairlead.store.script import WRITE
from fairlead.store.servers.confirmer import Durability
from fairlead.store.servers.opening import open_store

from support.valkey.server import PASSWORD, ValkeyServer


async def test_a_server_that_is_full_confirms_what_it_executes(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, ("--appendonly", "yes", "--appendfsync", "always"))
    try:
        await server.start()
        store = open_store(f"redis://:{PASSWORD}@{server.address}", durability=Durability.FSYNC)
        store.start()
        try:
            assert await store.wait_available(20), store.last_error
            await server.call("CONFIG", "SET", "maxmemory", 1)
            for number in (1, 2):
                assert await store.run(WRITE, ("ended",), ("INCR",)) == number
            assert store.unconfirmed == ""
            await server.call("CONFIG", "SET", "maxmemory", 0)
            assert await store.submit("INCR", "ended") == 3
            assert store.confirmations == (3, 0)
        finally:
            await store.aclose()
    finally:
        server.stop()
