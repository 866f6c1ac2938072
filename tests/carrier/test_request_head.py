"""The rules for a request head, on arbitrary input."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.http_server.request.head import RequestRefused, check_head

octets = st.binary(max_size=40)


@given(
    st.sampled_from(["1.0", "1.1", "2.0", "0.9"]),
    octets,
    st.dictionaries(st.sampled_from([b"host", b"content-length", b"transfer-encoding"]), octets),
    st.booleans(),
)
def test_any_head_is_accepted_or_refused(
    version: str, target: bytes, single: dict[bytes, bytes], upgrade: bool
) -> None:
    with contextlib.suppress(RequestRefused):
        check_head(version, target, single, upgrade)
        assert version in ("1.0", "1.1")
        assert not upgrade or version == "1.1"
