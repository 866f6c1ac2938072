"""The file of issuers: what it says, and what each mistake is told as."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.configuration.tables_reader import SIZE_LIMIT
from fairlead.errors import ConfigError
from fairlead.oidc.issuers_file import ALGORITHMS, TrustedIssuer, parse_issuers

GOOD = b"""
[issuers.company]
url = "https://login.example.com/realms/a"
audience = "fairlead"
user_claim = "email"
groups_claim = "https://example.com/groups"
algorithms = ["ES256"]
ca = "/etc/ca.pem"
refused_keys = ["old"]

[issuers.here]
url = "http://127.0.0.1:5556"
audience = "cli"
"""


def test_a_file_is_read_with_its_defaults() -> None:
    assert parse_issuers(GOOD, "issuers.toml") == (
        TrustedIssuer(
            "company", "https://login.example.com/realms/a", "fairlead", "email", "https://example.com/groups",
            ("ES256",), Path("/etc/ca.pem"), frozenset({"old"}),
        ),
        TrustedIssuer("here", "http://127.0.0.1:5556", "cli", "sub", "", ALGORITHMS, None, frozenset()),
    )  # fmt: skip
    assert parse_issuers(b"", "issuers.toml") == ()


def test_every_mistake_is_told_with_its_place() -> None:
    table = '[issuers.a]\nurl = "https://a.example"\naudience = "x"\n'
    for text, problem in (
        ("issuers = 7", "issuers is not a table of tables: expected tables such as [issuers.company]"),
        ("[issuer.a]", "the file has the unknown member 'issuer'"),
        ("[issuers.a", "not valid TOML"),
        ("[issuers.a]\naudience = 'x'", "issuers.a.url is missing: expected https://HOST"),
        ("[issuers.a]\nurl = 'https://a.example'", "issuers.a.audience is missing"),
        ("[issuers.a]\nurl = 'http://a.example'\naudience = 'x'", "over which anybody in between could send keys"),
        ("[issuers.a]\nurl = 'ftp://a.example'\naudience = 'x'", "issuers.a.url is 'ftp://a.example'"),
        ("[issuers.a]\nurl = 'https://a.example?x=1'\naudience = 'x'", "issuers.a.url is 'https://a.example?x=1'"),
        ("[issuers.a]\nurl = 'https://[a'\naudience = 'x'", "which is no URL"),
        ("[issuers.a]\nurl = 7\naudience = 'x'", "issuers.a.url is not text"),
        (table + "algorithms = ['HS256']", "issuers.a.algorithms contains 'HS256': expected RS256"),
        (table + "algorithms = ['none']", "issuers.a.algorithms contains 'none'"),
        (table + "algorithms = []", "issuers.a.algorithms is empty"),
        (table + "user_claim = ''", "issuers.a.user_claim is ''"),
        (table + "refused_keys = 'old'", "issuers.a.refused_keys is not a list of texts"),
        (table + "secret = 'x'", "issuers.a has the unknown member 'secret': expected url, audience"),
        (table + table.replace(".a]", ".b]"), "issuers.b.url is 'https://a.example', as in another table"),
        (table.replace(".a]", ".'a b']"), "has an invalid name"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_issuers(text.encode(), "issuers.toml")
        assert caught.value.message.startswith("issuers.toml: ")
        assert problem in caught.value.message
    with pytest.raises(ConfigError, match="exceed the maximum"):
        parse_issuers(b"#" * (SIZE_LIMIT + 1), "issuers.toml")


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    example = page.split("```toml\n[issuers.")[1].split("```")[0]
    (issuer,) = parse_issuers(f"[issuers.{example}".encode(), "docs/security.md")
    assert (issuer.name, issuer.user_claim, issuer.algorithms) == ("company", "email", ("RS256", "ES256"))
