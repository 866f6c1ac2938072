"""What the operator writes to Redis is in the audit log of the node that acts on it, written by the operator's own
code."""

from __future__ import annotations

import time
from pathlib import Path

from fairlead.audit.records import DIRECTIVE, DRAINING
from fairlead.audit.verification import read_lines
from fairlead.fleet.directives.preferred_revision import PreferredRevision, PreferredRevisions
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_a_node_records_what_it_does_because_of_a_directive(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, dial: DialAgent, tmp_path: Path
) -> None:
    node = make_gateway(own_valkey.url, "--revision", "r1", "--audit-log", str(tmp_path / "audit"), name="node-1")
    await (await dial(node)).greet()
    store = await redis_of(own_valkey)
    revisions, targets = PreferredRevisions(store), RebalanceTargets(store)

    def audited() -> list[tuple[str, str, str, str, int | None]]:
        lines = [line for line in read_lines(tmp_path / "audit") if line.action == DIRECTIVE]
        return [(line.subject, line.issuer, line.reason, line.detail, line.count) for line in lines]

    await targets.write({"node-1": RebalanceTarget(7)})
    await until(lambda: len(audited()) == 1)
    await targets.write({})
    await until(lambda: len(audited()) == 2)
    await revisions.write(PreferredRevision("r2", int(time.time() * 1000) + 600_000))
    await until(lambda: len(audited()) == 3)
    await revisions.write(PreferredRevision())
    await until(lambda: len(audited()) == 4)
    assert audited() == [
        ("operator", "redis", "rebalance begins", "keep 7 links and move the others", 1),
        ("operator", "redis", "rebalance ends", "", 1),
        ("operator", "redis", "rollout begins", "nodes of the revision r2 take all new links", 1),
        ("operator", "redis", "rollout ends", "the revision r2 is not preferred any more", 1),
    ]
    node.stop()
    (line,) = [line for line in read_lines(tmp_path / "audit") if line.action == DRAINING]
    assert line.count == 1
