from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.redis_url import StoreKind, parse_redis_url, with_option


def test_one_server_is_left_as_it_is() -> None:
    for raw in ("redis://h", "rediss://user:p@h:1/2?ssl_ca_certs=x", "unix://:p@/run/valkey.sock?db=1"):
        parsed = parse_redis_url(raw)
        assert (parsed.kind, parsed.server, parsed.tls) == (StoreKind.SERVER, raw, raw.startswith("rediss"))


def test_sentinels_have_a_password_of_their_own_and_a_primary_by_name() -> None:
    parsed = parse_redis_url(
        "rediss+sentinel://user:p%40ss@a,b:1,[::1]:2/my%20fleet/3?sentinel_password=q%26&ssl_ca_certs=%2Fca.pem"
    )
    assert parsed.kind is StoreKind.SENTINEL
    assert parsed.tls
    assert parsed.nodes == (("a", 26379), ("b", 1), ("::1", 2))
    assert parsed.primary == "my fleet"
    assert (parsed.sentinel_user, parsed.sentinel_password) == ("", "q&")
    assert parsed.server == "rediss://user:p%40ss@a:26379/3?ssl_ca_certs=%2Fca.pem"


@pytest.mark.parametrize(
    "raw",
    [
        "http://h", "redis:///", "redis://h:0", "redis://h:x", "redis+server://h", "redis+other://h", "unix://",
        "redis+sentinel://a,b", "redis+sentinel://a,b/", "redis+sentinel://a,,b/m", "redis+sentinel://a:0/m",
        "redis+sentinel:///m", "redis+sentinel://u:p@/m", "unix+sentinel://a/m",
        "redis+sentinel://" + ",".join(["h"] * 65) + "/m",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_redis_url(raw)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(raw: str) -> None:
    for prefix in ("", "redis+sentinel://", "redis://"):
        try:
            parse_redis_url(prefix + raw)
        except ValueError:
            pass


def test_an_option_is_added_after_the_others() -> None:
    assert with_option("redis://h", "a", "b") == "redis://h?a=b"
    assert with_option("redis+sentinel://h/m?x=y", "a", "b%20c") == "redis+sentinel://h/m?x=y&a=b%20c"
