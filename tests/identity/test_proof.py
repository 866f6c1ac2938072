"""Proofs of possession: valid for one purpose, one nonce, one id and one credential, and for nothing else."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead.errors import Unauthorized
from fairlead.identity.agent_key import AgentKey, thumbprint
from fairlead.identity.proof import check_proof, enrolment_statement, link_statement, prove, renewal_statement

KEY, OTHER = AgentKey(b"k" * 32), AgentKey(b"o" * 32)
ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
nonces = st.binary(min_size=16, max_size=16).map(bytes.hex)
credentials = st.text(st.characters(codec="ascii"), max_size=64)
statements = st.one_of(
    st.builds(link_statement, nonces, ids, credentials),
    st.builds(enrolment_statement, st.binary(min_size=6, max_size=6).map(bytes.hex), ids, st.just(KEY.public)),
    st.builds(renewal_statement, ids, credentials),
)


def test_statements_are_the_documented_lines() -> None:
    digest = hashlib.sha256(b"c").hexdigest()
    assert link_statement("00ff", "web-1", "c") == f"fairlead-link-v1\n00ff\nweb-1\n{digest}\n-".encode()
    assert link_statement("00ff", "web-1", "c", "5e") == f"fairlead-link-v1\n00ff\nweb-1\n{digest}\n5e".encode()
    assert renewal_statement("web-1", "c") == f"fairlead-renewal-v1\nweb-1\n{digest}".encode()
    print_ = thumbprint(KEY.public)
    assert enrolment_statement("0123", "web-1", KEY.public) == f"fairlead-enrolment-v1\n0123\nweb-1\n{print_}".encode()


@given(statements, statements)
def test_a_proof_is_valid_for_its_statement_alone(statement: bytes, other: bytes) -> None:
    proof = prove(KEY, statement)
    check_proof(KEY.public, proof, statement)
    with pytest.raises(Unauthorized, match="wrong proof of possession"):
        check_proof(OTHER.public, proof, statement)
    assume(statement != other)
    with pytest.raises(Unauthorized, match="wrong proof of possession"):
        check_proof(KEY.public, proof, other)


@given(nonces, nonces, ids, credentials)
def test_a_proof_replayed_on_another_connection_is_refused(nonce: str, later: str, agent: str, credential: str) -> None:
    assume(nonce != later)
    proof = prove(KEY, link_statement(nonce, agent, credential))
    with pytest.raises(Unauthorized) as refused:
        check_proof(KEY.public, proof, link_statement(later, agent, credential))
    assert refused.value.details["reason"] == "proof"


@given(st.text(max_size=100))
def test_any_other_text_is_refused(proof: str) -> None:
    with pytest.raises(Unauthorized):
        check_proof(KEY.public, proof, renewal_statement("web-1", "c"))


@pytest.mark.parametrize("value", ["", "a\nb", "a\n", "a b", "ä", "a:b"])
def test_a_value_that_could_end_a_line_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a proof"):
        link_statement(value, "web-1", "c")
    with pytest.raises(ValueError, match="cannot be part of a proof"):
        link_statement("00", value, "c")
