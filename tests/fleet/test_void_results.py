"""Results that a later run has made void take nothing from the output limit of that run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fairlead.fleet import schema
from fairlead.fleet.command_record import NewRecord, StoredEnd
from fairlead.fleet.commands import Commands, data, ending
from fairlead.fleet.schema import TargetState
from fairlead.shards import of_agent
from fairlead.wire.ids import uuid7

from support.fleet.script_server import FAR_MS, RETENTION_MS, ScriptServer

LIMIT = 64 << 10
MOST = LIMIT // 64
"""Chunks that are kept at most."""
AGENT = "host-1"


def test_the_second_run_has_as_many_chunks_as_the_first_could_have(tmp_path: Path) -> None:
    server = ScriptServer(tmp_path, cluster=False)
    try:
        records, now = Commands(server.store, LIMIT), server.run(server.time())
        command = of_agent(uuid7(now, bytes(10)), AGENT)
        record = NewRecord(
            command, AGENT, "do", b"", "interactive", now, now + FAR_MS, RETENTION_MS, now + FAR_MS, "safe"
        )
        server.submit("HSET", schema.agent_key(AGENT), "lease", "n#a", "gen", 1)
        server.call(lambda: records.accept(record, now, now + FAR_MS))
        for gen, memory in ((1, "first"), (2, "second")):
            server.call(partial(records.fence, command, AGENT, gen, memory))
            for at in range(0, MOST - 1, 93):  # the line `retry` is one, too
                steps = [arg for n in range(at, at + 93) for arg in data(n, "stdout", b"x")]
                stored = server.call(partial(records.append, command, AGENT, gen, steps))
                assert (stored.why, stored.added) == ("ok", 93)
        server.call(lambda: records.append(command, AGENT, 2, ending(MOST - 1, TargetState.OK, StoredEnd(b"null"))))
        found = server.call(lambda: records.look_up(command))
        assert found is not None
        assert (found.targets[0].state, found.truncated) == (TargetState.OK, False)
    finally:
        server.close()
