"""The tree of a signed run: every leaf has a path to the root, and no other octets have."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from fairlead.signing.hash_tree import STEP_BYTES, STEPS_LIMIT, HashTree, root_of


@given(leaves=st.lists(st.binary(max_size=8), min_size=1, max_size=70), data=st.data())
def test_a_path_leads_from_its_leaf_to_the_root_and_from_no_other(leaves: list[bytes], data: st.DataObject) -> None:
    tree = HashTree(leaves)
    at = data.draw(st.integers(0, len(leaves) - 1))
    path = tree.path(at)
    assert len(path) <= len(leaves).bit_length() * STEP_BYTES
    assert root_of(leaves[at], path) == tree.root
    assert root_of(leaves[at] + b"x", path) != tree.root
    if path:
        changed = bytearray(path)
        changed[data.draw(st.integers(0, len(path) - 1))] ^= 1
        # A step on the other side of an equal neighbour is the same step.
        assert root_of(leaves[at], bytes(changed)) != tree.root or len(set(leaves)) < len(leaves)


def test_two_nodes_are_never_taken_for_a_leaf() -> None:
    left, right = (hashlib.sha256(b"\0" + leaf).digest() for leaf in (b"a", b"b"))
    assert root_of(left + right, b"") != HashTree([b"a", b"b"]).root


def test_the_longest_path_is_that_of_a_million_leaves() -> None:
    assert (1 << STEPS_LIMIT) >= 1_000_000
    tree = HashTree([b"%d" % n for n in range(1_025)])
    assert len(tree.path(0)) == 11 * STEP_BYTES
    assert len(tree.path(1_024)) == STEP_BYTES  # it has no neighbour until the last level
