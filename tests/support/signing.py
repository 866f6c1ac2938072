"""Signs commands of the link protocol as a caller does, for the tests of whoever verifies them."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence

from fairlead.shards import of_agent
from fairlead.signing.command_signature import CommandSignature, CommandTerms, Input
from fairlead.signing.keys import PrivateKey
from fairlead.signing.run_signature import RunOrder, SignedTargets, target_id
from fairlead.wire.ids import uuid7
from fairlead.wire.messages import Cmd

AGENT = "agent-1"


def unix_ms() -> int:
    return int(time.time() * 1000)


def signed(
    key: PrivateKey, method: str, payload: bytes = b"{}", *, agent: str = AGENT, id: str = "",
    lane: str = "interactive", retry: str = "never", input: Input = "none", issued: int | None = None,
    valid: int = 60_000,
) -> Cmd:  # fmt: skip
    """A command that `key` has signed, as a gateway delivers it."""
    id = id or of_agent(str(uuid.uuid4()), agent)
    issued = unix_ms() if issued is None else issued
    terms = CommandTerms(agent, id, method, payload, lane, retry, input, issued, issued + valid)
    signature = key.sign(terms.to_sign(key.public.id))
    packed = CommandSignature(key.public.id, input, terms.issued, terms.expires, signature).pack()
    return Cmd(id=id, method=method, payload=payload, lane=lane, retry=retry, sig=packed)  # type: ignore[arg-type]


def signed_run(key: PrivateKey, method: str, agents: Sequence[str], *, valid: int = 60_000) -> dict[str, Cmd]:
    """The commands of a run that `key` has signed, by agent, as a gateway delivers them."""
    issued = unix_ms()
    run = uuid7(issued, secrets.token_bytes(10))
    order = RunOrder(run, method, b"{}", "bulk", "never", issued, issued + valid)
    targets = SignedTargets(order, key.public.id, agents)
    head = CommandSignature(key.public.id, "none", issued, order.expires, key.sign(targets.to_sign()), path=b"")
    return {
        agent: Cmd(
            id=target_id(run, agent), method=method, payload=b"{}", lane="bulk", sig=targets.of_target(head, agent)
        )
        for agent in agents
    }
