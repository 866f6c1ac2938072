"""The signature of a run: one, made by its caller, for the commands of all its targets.

The caller signs the root of a hash tree whose leaves are what it would have signed for each command by itself. The
gateway knows the same terms and makes the same tree, so it can give each agent its path, and nothing that the caller
has not put into the tree. Nothing more than the 98 octets of `CommandSignature` has to be posted or stored. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fairlead.shards import of_agent
from fairlead.signing.command_signature import CommandSignature, command_octets, run_octets
from fairlead.signing.hash_tree import HashTree

TARGETS_LIMIT: Final = 10_000
"""Targets of a signed run: as many as the API takes in a list, because the signature is for a list."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What all commands of a run have in common, as `CommandTerms` has it."""

    run: str
    method: str
    payload: bytes
    lane: str
    retry: str
    issued: int
    expires: int


def target_id(run: str, agent: str) -> str:
    """The id of the command of a signed run for this agent: a UUIDv8, so it is neither one that the gateway makes nor
    one that a caller may choose for a single command."""
    digits = hashlib.sha256(f"{run} {agent}".encode()).hexdigest()
    variant = f"{int(digits[16], 16) & 3 | 8:x}"
    id = f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
    return of_agent(id, agent)


class SignedTargets:
    def __init__(self, order: RunOrder, key_id: bytes, agents: Collection[str]) -> None:
        """`agents` as the caller knows them, without a tenant, in any order: their own order is that of the tree."""
        digest = hashlib.sha256(order.payload).digest()
        self._places = {agent: at for at, agent in enumerate(sorted(agents))}
        self._key_id = key_id
        self._tree = HashTree(
            [
                command_octets(
                    key_id, agent, target_id(order.run, agent), order.method, digest, order.lane, order.retry, "none",
                    order.issued, order.expires,
                )
                for agent in self._places
            ]
        )  # fmt: skip

    def to_sign(self) -> bytes:
        """The octets that the key signs."""
        return run_octets(self._key_id, self._tree.root)

    def of_target(self, head: CommandSignature, agent: str) -> bytes:
        """The octets that travel to `agent`, from those of the run."""
        return head.along(self._tree.path(self._places[agent])).pack()
