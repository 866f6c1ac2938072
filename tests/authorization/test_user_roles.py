"""Bindings of users and groups: an issuer's name is part of theirs, and no other kind of subject has their roles."""

from __future__ import annotations

import pytest

from fairlead.authorization.policy import Policy
from fairlead.authorization.rules.policy_file import parse_policy
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.authorization.users import subject_of
from fairlead.errors import ConfigError
from fairlead.oidc.user import OidcUser

ROLES = """\
roles:
  look: [{verbs: [view], agents: "*"}]
  deploy: [{methods: [exec], agents: env=dev}]
  all: [{methods: ["*"], verbs: ["*"], agents: "*"}]
"""
BINDINGS = """\
bindings:
  - {users: ["company:anna", "company:bert o'neil"], roles: [look]}
  - {groups: [company:team/web], users: [company:carl], tokens: [ci], roles: [deploy]}
  - {users: [other:anna], groups: [other:team/web, "company:anna"], tokens: [anna, company], roles: [all]}
"""


def user(name: str, *groups: str, issuer: str = "company") -> Subject:
    return subject_of(OidcUser(issuer, f"https://{issuer}.example", name, frozenset(groups), "key", 0))


@pytest.fixture
def policy() -> Policy:
    return parse_policy((ROLES + BINDINGS).encode(), "roles.yaml")


def test_roles_of_the_name_and_of_all_groups_add_up(policy: Policy) -> None:
    for subject, roles in (
        (user("anna"), ["look"]), (user("bert o'neil"), ["look"]), (user("anna", "team/web"), ["deploy", "look"]),
        (user("carl"), ["deploy"]), (user("dora", "team/web", "x"), ["deploy"]), (user("dora"), []),
        (user("dora", "x"), []),
    ):  # fmt: skip
        assert policy.roles_of(subject) == roles, subject.identity


def test_an_issuer_makes_no_users_or_groups_of_another(policy: Policy) -> None:
    assert policy.roles_of(user("anna", issuer="other")) == ["all"]
    assert policy.roles_of(user("anna", "team/web", issuer="third")) == []
    # Names that look like those of another issuer, of a group, of a token or of an administrator.
    for name in (
        "other:anna",
        "team/web",
        "ci",
        "company",
        "shared-token",
        "token:ci",
        "user:company:anna",
        "Anna",
        "anna ",
    ):
        assert policy.roles_of(user(name)) == [], name
    assert policy.roles_of(user("dora", "anna")) == ["all"], "the group of this name, and not the user"
    assert policy.roles_of(user("dora", "other:team/web", "ci")) == []
    assert policy.roles_of(Subject("token:anna", "anna", "0" * 12)) == ["all"]
    assert not user("shared-token").administrator
    assert user("shared-token").identity != ADMINISTRATOR.identity


@pytest.mark.parametrize(
    ("binding", "problem"),
    [
        (
            "{users: [anna], roles: [look]}",
            "bindings[0].users[0] is 'anna': expected names of users after the issuer's name",
        ),
        ("{groups: [':web'], roles: [look]}", "bindings[0].groups[0] is ':web': expected names of groups"),
        ("{users: ['company: anna'], roles: [look]}", "bindings[0].users[0] is 'company: anna'"),
        ('{users: ["company:a\\nb"], roles: [look]}', "bindings[0].users[0] is"),
        ("{users: [7], roles: [look]}", "bindings[0].users[0] is '7': expected text"),
        ("{users: [], roles: [look]}", "bindings[0].users is empty"),
        ("{roles: [look]}", "bindings[0] has no member tokens or users or groups"),
        (
            "{people: [company:anna], roles: [look]}",
            "has the unknown member 'people': expected tokens, users, groups, roles",
        ),
    ],
)
def test_a_binding_that_names_nobody_is_refused(binding: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"{ROLES}bindings:\n  - {binding}\n".encode(), "roles.yaml")
    assert problem in caught.value.message
