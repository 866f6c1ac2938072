"""In which tenant a caller acts, and that its roles are those of that tenant alone."""

from __future__ import annotations

import pytest

from fairlead.authorization.policy import Access, AgentTraits, Policy, Verb
from fairlead.authorization.rules.policy_file import parse_policy
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.authorization.tenant_choice import TenantChoice
from fairlead.errors import ConfigError, InvalidRequest, PermissionDenied
from fairlead.fleet.tenants.quotas import Quotas
from fairlead.oidc.user import OidcUser
from fairlead.tenant import bounds, local_id, qualified, tenant_of

FILE = b"""\
roles:
  all:
    - methods: ["*"]
      verbs: ["*"]
      ids: ["web-*"]
    - gateway: [tokens, enrolment, nodes, tenants]
tenants:
  acme: {agents: 500, open_commands: 20, command_rate: 5, run_concurrency: 10, events_bytes: 1000}
  globex: {}
bindings:
  - {tenant: acme, tokens: [ci], users: ["company:anna", "company:both"], roles: [all]}
  - {tenant: globex, users: ["company:both"], roles: [all]}
  - {tokens: [ci], users: ["company:three"], roles: [all]}
  - {tenant: globex, users: ["company:three"], roles: [all]}
"""
POLICY = parse_policy(FILE, "roles.yaml")


def user(name: str) -> Subject:
    return Subject(f"user:company:{name}", user=OidcUser("company", "https://login", name, frozenset(), "key", 0))


def token(tenant: str) -> Subject:
    return Subject("token:ci", "ci", "0" * 12, tenant=tenant)


def choose(subject: Subject, named: str | None = None, policy: Policy = POLICY) -> Subject:
    return TenantChoice().choose(policy, subject, named)


def test_the_file_has_the_quotas_of_each_tenant() -> None:
    assert POLICY.tenants == {"acme": Quotas(500, 20, 5, 10, 1000), "globex": Quotas()}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tenants: {Acme: {}}", "tenants has the invalid name 'Acme': expected 1 to 32 characters of a-z 0-9 -"),
        ("tenants: {acme: {agents: many}}", "tenants.acme.agents is 'many': expected a whole number from 1"),
        ("tenants: {acme: {agents: 0}}", "tenants.acme.agents is '0': expected a whole number from 1"),
        ("tenants: {acme: {links: 1}}", "tenants.acme has the unknown member 'links': expected agents, open_commands"),
        ("bindings: [{tenant: acme, tokens: [ci], roles: [r]}]", "is 'acme': expected one of the tenants default"),
    ],
)  # fmt: skip
def test_a_wrong_tenant_is_an_error_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policy(f"roles: {{r: [{{gateway: [nodes]}}]}}\n{text}\n".encode(), "roles.yaml")
    assert problem in error.value.message


def test_who_names_no_tenant_acts_in_their_own() -> None:
    assert [choose(token(tenant)).tenant for tenant in ("", "acme")] == ["", "acme"]
    assert choose(ADMINISTRATOR).tenant == ""
    assert choose(user("anna")).tenant == "acme"
    assert choose(user("three")).tenant == ""  # the default tenant is among several
    assert choose(user("nobody")).tenant == ""
    with pytest.raises(InvalidRequest, match="roles in several tenants, acme, globex"):
        choose(user("both"))
    assert choose(user("both"), "globex").tenant == "globex"
    assert choose(user("three"), "default").tenant == ""


def test_nobody_but_an_administrator_enters_a_tenant_without_a_role_there() -> None:
    assert choose(ADMINISTRATOR, "globex").tenant == "globex"
    with pytest.raises(InvalidRequest, match="unknown tenant 'nowhere': expected one of default, acme, globex"):
        choose(ADMINISTRATOR, "nowhere")
    for subject in (token("acme"), user("anna")):
        answers = set()
        for named in ("globex", "nowhere", "", "/globex", "Globex"):
            with pytest.raises(PermissionDenied) as denied:
                choose(subject, named)
            answers.add(denied.value.message.replace(repr(named), "NAME"))
        assert len(answers) == 1, answers  # those that there are look like those that there are not
    with pytest.raises(PermissionDenied):
        choose(token(""), "acme")
    with pytest.raises(PermissionDenied):
        choose(user("anna"), "default")


def test_a_subject_is_the_same_object_each_time_until_the_policy_changes() -> None:
    """Rules are kept by the object of a subject."""
    choice, anna = TenantChoice(), user("anna")
    first = choice.choose(POLICY, anna, None)
    assert choice.choose(POLICY, anna, None) is first
    other = parse_policy(FILE.replace(b'"company:anna", ', b""), "roles.yaml")
    assert choice.choose(other, anna, None).tenant == ""


def test_no_role_reaches_an_agent_of_another_tenant() -> None:
    run = Access(Verb.RUN, "exec")
    for subject, own in ((token(""), ""), (token("acme"), "acme"), (choose(ADMINISTRATOR, "globex"), "globex")):
        for tenant in ("", "acme", "globex"):
            agent = qualified(tenant, "web-1")
            allowed = tenant == own
            assert POLICY.decide(subject, run, AgentTraits(agent, {}, {})).allowed is allowed
            by_id = POLICY.decide_by_id(subject, run, agent)
            assert by_id is not None
            assert by_id.allowed is allowed
    assert not POLICY.decide(token("acme"), run, AgentTraits("/acme/db-1", {}, {})).allowed  # ids are the tenant's own


def test_what_concerns_all_tenants_is_allowed_in_none() -> None:
    for verb in (Verb.NODES, Verb.TENANTS):
        assert POLICY.may_ever(token(""), (verb,))
        assert not POLICY.may_ever(token("acme"), (verb,))
        assert "concerns all tenants" in POLICY.denial(token("acme"), Access(verb))
    assert POLICY.may_ever(token("acme"), (Verb.TOKENS,))


def test_ids_of_tenants_are_a_range_of_their_own() -> None:
    names = sorted(qualified(tenant, id) for tenant in ("", "a", "ab", "b") for id in ("0", "a", "Z", "z-1"))
    for tenant in ("", "a", "ab", "b"):
        low, high = bounds(tenant)
        inside = [n for n in names if n >= low[1:] and (high == "+" or n < high[1:])]
        assert inside == [n for n in names if tenant_of(n) == tenant]
    assert all(qualified(tenant_of(name), local_id(name)) == name for name in names)
