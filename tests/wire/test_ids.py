"""Agent ids and UUIDv7."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.shards import SHARDS, agent_shard, command_shard, of_agent
from fairlead.wire.ids import check_agent_id, check_command_id, check_run_id, uuid7

LEGAL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_legal_agent_ids_are_accepted(agent: str) -> None:
    assert check_agent_id(agent) == agent


@pytest.mark.parametrize(
    "agent",
    [
        "",
        ".hidden",
        "-flag",
        "_x",
        "a" * 129,
        "a b",
        "a{b}",
        "a:b",
        "a/b",
        "a\n",
        "ä",
        "a\0",
        "{a}",
        "a%2f",
        "а",
    ],
    ids=ascii,
)
def test_illegal_agent_ids_are_refused(agent: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 128 characters") as caught:
        check_agent_id(agent)
    assert caught.value.details["field"] == "agent"
    assert len(caught.value.message) < 700


@given(st.text())
def test_accepted_ids_are_safe_in_a_hash_tag_and_a_url(agent: str) -> None:
    try:
        check_agent_id(agent)
    except InvalidRequest:
        return
    assert agent[0] in LEGAL
    assert set(agent) <= set(LEGAL + "._-")
    assert len(agent) <= 128


@pytest.mark.parametrize(
    "given_",
    ["01890A5D-AC96-774B-BCCE-B302099A8057", "01890a5dac96774bbcceb302099a8057",
     "{01890a5d-ac96-774b-bcce-b302099a8057}", "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057"],
)  # fmt: skip
def test_command_ids_become_canonical(given_: str) -> None:
    assert check_command_id(given_) == "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize("given_", ["", "x", "01890a5d-ac96-774b-bcce-b302099a805", "../../etc/passwd", "0" * 33])
def test_invalid_command_ids_are_refused(given_: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a UUID") as caught:
        check_command_id(given_)
    assert caught.value.details["field"] == "id"
    with pytest.raises(InvalidRequest, match=r"invalid run id .*: expected a UUID") as caught:
        check_run_id(given_)
    assert caught.value.details["field"] == "run"


times = st.integers(0, (1 << 48) - 1)
entropies = st.binary(min_size=10, max_size=10)


def test_uuid7_has_the_layout_of_the_rfc() -> None:
    """RFC 9562 appendix A.6: 2022-02-22 19:22:22 UTC."""
    rand_a, rand_b = 0xCC3, 0x18C4DC0C0C07398F
    entropy = (rand_b << 12 | rand_a).to_bytes(10, "big")
    assert uuid7(0x017F22E279B0, entropy) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(times, entropies)
def test_uuid7_has_version_variant_and_time(now: int, entropy: bytes) -> None:
    made = uuid.UUID(uuid7(now, entropy))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == now
    assert check_command_id(str(made)) == str(made)


@given(times, times, entropies, entropies)
def test_ids_sort_by_time(one: int, other: int, first: bytes, second: bytes) -> None:
    if one != other:
        assert (uuid7(one, first) < uuid7(other, second)) == (one < other)


@given(times, entropies, st.integers(0, 73))
def test_74_bits_of_randomness_count(now: int, entropy: bytes, bit: int) -> None:
    flipped = int.from_bytes(entropy, "big") ^ (1 << bit)
    assert uuid7(now, entropy) != uuid7(now, flipped.to_bytes(10, "big"))


@pytest.mark.parametrize("size", [0, 9, 11, 16])
def test_entropy_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"takes 10 random bytes, got {size}"):
        uuid7(0, bytes(size))


@given(st.uuids(), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_a_command_id_names_the_shard_of_its_agent(drawn: uuid.UUID, agent: str) -> None:
    id = of_agent(str(drawn), agent)
    assert command_shard(id) == agent_shard(agent) < SHARDS
    assert (uuid.UUID(id).version, id[18:], of_agent(id, agent)) == (drawn.version, str(drawn)[18:], id)


@pytest.mark.parametrize("id", ["", "c1", "0192f1b0-0000-7\xff\xff0-8000-000000000000", "x" * 36])
def test_what_is_no_command_id_has_a_shard_too(id: str) -> None:
    assert command_shard(id) == 0
