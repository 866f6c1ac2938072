"""A tree of hashes over many octets, so that one signature of its root covers each of them.

The caller of a run makes it to sign the root, the gateway makes the same one to give each agent the path from its own
command to the root, and the agent goes along that path. A leaf and a node are hashed under different first octets, so
nothing that was made of two nodes is ever taken for a leaf (RFC 6962 §2.1 has the same tree). Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

HASH_BYTES: Final = 32
STEP_BYTES: Final = 1 + HASH_BYTES
"""One octet says on which side the neighbour is: 0 for left, 1 for right."""
STEPS_LIMIT: Final = 20
"""Steps of a path: those of a tree with a million leaves."""


def root_of(octets: bytes, path: bytes) -> bytes:
    """The root to which `path` leads from the leaf of `octets`."""
    node = _leaf(octets)
    for at in range(0, len(path), STEP_BYTES):
        neighbour = path[at + 1 : at + STEP_BYTES]
        node = _node(node, neighbour) if path[at] else _node(neighbour, node)
    return node


class HashTree:
    def __init__(self, leaves: Sequence[bytes]) -> None:
        """Of at least one leaf, each given as its octets."""
        # Each level as one object: a tree of 100,000 leaves takes 6 MB, and four times that as objects of their own.
        level = b"".join(map(_leaf, leaves))
        self._levels = [level]
        while len(level) > HASH_BYTES:
            pairs = len(level) // (2 * HASH_BYTES)
            nodes = [_node(_at(level, 2 * one), _at(level, 2 * one + 1)) for one in range(pairs)]
            # A node without a neighbour goes up as it is.
            level = b"".join(nodes) + level[pairs * 2 * HASH_BYTES :]
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        return self._levels[-1]

    def path(self, leaf: int) -> bytes:
        """The path from the leaf with this number to the root, for `root_of`."""
        steps: list[bytes] = []
        for level in self._levels[:-1]:
            neighbour = leaf ^ 1
            if neighbour * HASH_BYTES < len(level):
                steps += (b"\1" if neighbour > leaf else b"\0", _at(level, neighbour))
            leaf //= 2
        return b"".join(steps)


def _leaf(octets: bytes) -> bytes:
    return hashlib.sha256(b"\0" + octets).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _at(level: bytes, node: int) -> bytes:
    return level[node * HASH_BYTES : (node + 1) * HASH_BYTES]
