"""The file of roles: what is read, and that every mistake is named with its line, its member and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.authorization.policy import Access, AgentTraits, Verb
from fairlead.authorization.rules.policy_file import SIZE_LIMIT, parse_policy
from fairlead.authorization.subject import Subject
from fairlead.errors import ConfigError

FILE = """\
roles:
  deploy:
    - methods: [exec, file.*]
      agents: env=dev,team in (web,db)
    - verbs: [view]
      agents: "*"
  oncall:
    - verbs: ["*"]
      ids: ["web-*"]
    - gateway: [tokens]
bindings:
  - tokens: [ci, bot]
    roles: [deploy]
  - tokens: [bot]
    roles: [oncall]
"""
RULE = "roles:\n  a:\n    - "
"""The beginning of a rule, which is in line 3."""
BOT, CI = Subject("token:bot", "bot", "1"), Subject("token:ci", "ci", "2")


def test_roles_and_bindings_are_read() -> None:
    policy = parse_policy(FILE.encode(), "roles.yaml")
    web = AgentTraits("web-1", {"env": "dev", "team": "web"}, {})
    db = AgentTraits("db-1", {"env": "prod", "team": "db"}, {})
    assert policy.roles_of(BOT) == ["deploy", "oncall"]
    assert policy.roles_of(CI) == ["deploy"]
    assert policy.decide(CI, Access(Verb.RUN, "file.get"), web).allowed
    assert not policy.decide(CI, Access(Verb.RUN, "file.get"), db).allowed
    assert policy.decide(CI, Access(Verb.VIEW), db).allowed
    assert policy.decide(BOT, Access(Verb.DELETE), web).allowed
    assert not policy.decide(BOT, Access(Verb.DELETE), db).allowed
    assert policy.decide(BOT, Access(Verb.TOKENS)).allowed
    assert not policy.decide(CI, Access(Verb.TOKENS)).allowed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "r:1: the file is empty: expected `roles` and `bindings`"),
        ("- a\n", "r:1: the file is not a mapping: expected roles, bindings"),
        ("roles: {}\nrole: {}\n", "r:2: the file has the unknown member 'role': expected roles, bindings"),
        ("roles: {}\nroles: {}\n", "r:2: the file has the member 'roles' twice: expected every name once (join"),
        ("bindings: []\n", "r:1: the file has no member roles: expected roles and bindings"),
        ("roles:\n  a b:\n    - gateway: [tokens]\n", "r:3: roles has the invalid name 'a b': expected 1 to 63"),
        ("roles:\n  a: exec\n", "r:2: roles.a is not a list: expected a list, each entry of which begins"),
        ("roles:\n  a: []\n", "r:2: roles.a has no rule: expected at least one rule (or remove the role)"),
        (RULE + "{}\n", "r:3: roles.a[0] allows nothing: expected one of methods, verbs and gateway"),
        (RULE + "methods: [exec]\n", "r:3: roles.a[0] names no agents: expected agents, a selector or"),
        (RULE + "agents: env=a\n", "r:3: roles.a[0] allows nothing: expected one of methods, verbs"),
        (RULE + "gateway: [tokens]\n      ids: [a]\n", "r:3: roles.a[0] names agents but nothing to do"),
        (RULE + "methods: [exec]\n      agents: ''\n", "r:4: roles.a[0].agents is empty: expected a selector"),
        (RULE + "methods: [exec]\n      agents: env>\n", "r:4: roles.a[0].agents: invalid selector 'env>'"),
        (RULE + "methods: [ex*]\n      agents: a\n", "r:3: roles.a[0].methods[0] is 'ex*': expected names of"),
        (RULE + "methods: []\n      agents: a\n", "r:3: roles.a[0].methods is empty: expected names of"),
        (RULE + "methods: exec\n      agents: a\n", "r:3: roles.a[0].methods is not a list: expected a list"),
        (RULE + "methods: [yes]\n      agents: a\n", "r:3: roles.a[0].methods[0] is 'yes': expected text (put"),
        (RULE + "methods: [[a]]\n      agents: a\n", "r:3: roles.a[0].methods[0] is a list: expected text"),
        (RULE + "verbs: [tokens]\n      agents: a\n", "r:3: roles.a[0].verbs[0] is 'tokens': expected view, "),
        (RULE + "verbs: [run]\n      agents: a\n", "r:3: roles.a[0].verbs[0] is 'run': expected view, label"),
        (RULE + "gateway: ['*']\n", "r:3: roles.a[0].gateway[0] is '*': expected tokens"),
        (RULE + "verbs: [view]\n      ids: ['*web']\n", "r:4: roles.a[0].ids[0] is '*web': expected ids of"),
        (RULE + "gateway: [tokens]\nbindings:\n  - tokens: [x]\n    roles: [b]\n", "r:6: bindings[0].roles[0] is"),
        (RULE + "gateway: [tokens]\nbindings:\n  - tokens: [x]\n", "r:5: bindings[0] has no member roles"),
        (RULE + "gateway: [tokens]\nbindings:\n  - {tokens: ['x*'], roles: [a]}\n", "r:5: bindings[0].tokens[0]"),
        (RULE + "methods: [*]\n      agents: a\n", "r:3: invalid YAML, "),
        ("roles: &a {}\nbindings: *a\n", "r: YAML aliases are not read: expected plain values (write `*` in quotes)"),
        ("roles: {a: 1\n", "r:2: invalid YAML, "),
        ("roles: {}\n---\nroles: {}\n", "r:2: invalid YAML, "),
        ("? [a]\n: b\n", "r:1: the file has a name that is not text, a list: expected text"),
        ("roles:\n  <<: {}\n", "r:2: roles has a name that is not text, '<<': expected text"),
        ("[" * 5000 + "]" * 5000, "r: invalid YAML: nested too deeply"),
        ("roles: " + "x" * SIZE_LIMIT, "exceed the maximum of 1048576: expected a smaller file"),
    ],
)  # fmt: skip
def test_every_mistake_is_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_policy(text.encode(), "r")
    assert error in raised.value.message


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_policy((RULE + "verbs: [vew]\n      agents: a\n  b:\n    - methods: [a]\nx: 1\n").encode(), "r")
    lines = raised.value.message.split("\n")
    assert [line.partition(": ")[0] for line in lines] == ["r:7", "r:3", "r:6"]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="byte 7 is not UTF-8"):
        parse_policy(b"roles: \xff", "r")


@pytest.mark.parametrize("bracket", ["[", "{", "? ", "- "])
def test_a_million_brackets_cost_no_more_than_the_first(bracket: str) -> None:
    """Without a limit of the depth, each of them costs the time of a thousand: hours for such a file."""
    text = bracket * (SIZE_LIMIT // len(bracket))
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_policy(text.encode(), "r")


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    policy = parse_policy(example.encode(), "docs/security.md")
    assert policy.roles
    assert policy.token_roles


APPROVALS = """\
roles:
  work:
    - methods: ["*"]
      verbs: ["*"]
      agents: "*"
  security:
    - gateway: [approve]
bindings:
  - {tokens: [ci], roles: [work]}
approvals:
  - methods: [exec, "file.*"]
    agents: env=prod
    approvers: [security]
    expires: 30m
  - methods: [shell]
    ids: ["db-*"]
    approvers: [security]
"""


def test_approvals_are_read_and_fail_closed() -> None:
    policy = parse_policy(APPROVALS.encode(), "r")
    of_label, of_id = policy.approvals
    assert (of_label.lifetime_ms, of_id.lifetime_ms) == (30 * 60_000, 60 * 60_000)
    prod, dev = AgentTraits("web-1", {"env": "prod"}, {}), AgentTraits("web-2", {"env": "dev"}, {"env": "prod"})
    lost, db = AgentTraits("web-3", None, {}), AgentTraits("db-1", {}, {})
    assert policy.approval_rules("exec", prod) == policy.approval_rules("file.put", prod) == [of_label]
    assert policy.approval_rules("exec", dev) == policy.approval_rules("shell", prod) == []
    assert policy.approval_rules("exec", lost) == [of_label]
    assert policy.approval_rules("shell", db) == [of_id]
    assert policy.escapes_approval(CI, prod, AgentTraits("web-1", {}, {})) == "exec"
    assert policy.escapes_approval(CI, prod, None) == "exec"
    assert policy.escapes_approval(CI, prod, AgentTraits("web-1", {"env": "prod", "a": "b"}, {})) == ""
    assert policy.escapes_approval(CI, db, None) == ""  # its id stays
    assert policy.escapes_approval(BOT, prod, None) == ""  # it may not run anything


@pytest.mark.parametrize(
    ("was", "becomes", "error"),
    [
        (
            "[security]\n    expires",
            "[work]\n    expires",
            "r:13: approvals[0].approvers[0] is 'work': expected roles with",
        ),
        ("    approvers: [security]\n    expires: 30m\n", "", "r:11: approvals[0] has no member approvers"),
        ("    agents: env=prod\n", "", "r:11: approvals[0] names no agents"),
        ("30m", "25h", "r:14: approvals[0].expires is '25h': expected 1m to 24h"),
        ("30m", "0m", "expected 1m to 24h"),
        ("30m", "soon", "expected 1m to 24h"),
        ("expires", "until", "approvals[0] has the unknown member 'until'"),
        ("[shell]", "[]", "approvals[1].methods is empty"),
    ],
)
def test_mistakes_in_approvals_are_named(was: str, becomes: str, error: str) -> None:
    assert was in APPROVALS
    with pytest.raises(ConfigError) as raised:
        parse_policy(APPROVALS.replace(was, becomes, 1).encode(), "r")
    assert error in raised.value.message
