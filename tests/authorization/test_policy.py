"""Decisions: roles are unions, deny is the default, and neither syntax, aliases nor an agent's own words get around."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead.authorization.policy import Access, AgentTraits, Policy, Rule, Verb
from fairlead.authorization.rule_selector import covers_name, implies, rule_selector, selector_text
from fairlead.authorization.subject import ADMINISTRATOR, Subject

KEYS = ("env", "team", "os")
VALUES = ("prod", "dev", "web")
METHODS = ("exec", "file.get", "file.put", "sys.info", "EXEC", "exec2")

keys, values = st.sampled_from(KEYS), st.sampled_from(VALUES)
terms = st.one_of(
    st.builds("{}={}".format, keys, values),
    st.builds("{}!={}".format, keys, values),
    st.builds("{}{}{}".format, keys, st.sampled_from(("<", "<=", ">", ">=")), values),
    st.builds("{}".format, keys),
    st.builds("!{}".format, keys),
    st.builds("{} in ({},{})".format, keys, values, values),
    st.builds("{} notin ({},{})".format, keys, values, values),
)
selectors = st.one_of(st.just("*"), st.lists(terms, min_size=1, max_size=3).map(",".join))
facts = st.dictionaries(keys, values, max_size=3)
agents = st.builds(AgentTraits, st.sampled_from(("web-1", "web-2", "db-1")), st.one_of(st.none(), facts), facts)
rules = st.builds(
    Rule,
    methods=st.frozensets(st.sampled_from((*METHODS, "file.*", "*")), max_size=2),
    verbs=st.frozensets(st.sampled_from(("view", "label", "*")), max_size=2),
    agents=st.one_of(st.none(), selectors.map(rule_selector)),
    ids=st.sampled_from(((), ("web-*",), ("db-1",))),
).filter(lambda rule: rule.agents is not None or bool(rule.ids))
roles = st.dictionaries(st.sampled_from("abc"), st.lists(rules, min_size=1, max_size=3).map(tuple), max_size=3)
accesses = st.one_of(
    st.sampled_from(METHODS).map(lambda method: Access(Verb.RUN, method)),
    st.sampled_from((Access(Verb.VIEW), Access(Verb.LABEL), Access(Verb.DELETE))),
)
CI = Subject("token:ci", "ci", "id")


def policy_of(known: dict[str, tuple[Rule, ...]]) -> Policy:
    return Policy(known, {"ci": frozenset(known)})


@given(roles, accesses, agents)
def test_what_a_subject_may_do_is_the_union_of_its_roles(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits
) -> None:
    alone = [policy_of({name: rules}).decide(CI, access, agent).allowed for name, rules in known.items()]
    assert policy_of(known).decide(CI, access, agent).allowed is any(alone)


@given(roles, accesses, agents)
def test_without_a_binding_everything_is_denied(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits
) -> None:
    policy = policy_of(known)
    for stranger in (Subject("token:other", "other", "id"), Subject("token:ci"), Subject("ci")):
        assert not policy.decide(stranger, access, agent).allowed
        assert not policy.may_ever(stranger, [access.verb])
        assert not policy.may_ever(stranger, [])
    assert policy.decide(ADMINISTRATOR, access, agent).allowed


@given(roles, accesses, agents, st.frozensets(st.sampled_from("abc")))
def test_a_limited_token_may_never_do_more(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits, limit: frozenset[str]
) -> None:
    policy = policy_of(known)
    limited = Subject("token:ci", "ci", "id", limit)
    if policy.decide(limited, access, agent).allowed:
        assert policy.decide(CI, access, agent).allowed
    within = {name: rules for name, rules in known.items() if name in limit}
    assert policy.decide(limited, access, agent).allowed is policy_of(within).decide(CI, access, agent).allowed


@given(roles, accesses, agents, facts)
def test_what_an_agent_says_about_itself_changes_nothing(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits, claimed: dict[str, str]
) -> None:
    policy = policy_of(known)
    liar = AgentTraits(agent.id, agent.labels, claimed)
    assert policy.decide(CI, access, liar) == policy.decide(CI, access, agent)


@given(roles, accesses, agents)
def test_lost_labels_allow_nothing_that_labels_decide(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits
) -> None:
    policy = policy_of(known)
    lost = AgentTraits(agent.id, None, agent.facts)
    if policy.decide(CI, access, lost).allowed:
        every = [AgentTraits(agent.id, labels, {}) for labels in ({}, {"env": "prod"}, {"env": "dev", "os": "web"})]
        assert all(policy.decide(CI, access, one).allowed for one in every)


@given(roles, accesses, agents)
def test_a_decision_without_labels_is_the_same_as_with_them(
    known: dict[str, tuple[Rule, ...]], access: Access, agent: AgentTraits
) -> None:
    policy = policy_of(known)
    early = policy.decide_by_id(CI, access, agent.id)
    if early is not None:
        assert early.allowed is policy.decide(CI, access, agent).allowed
    if policy.decide(CI, access, agent).allowed:
        assert policy.may_ever(CI, [access.verb])


@given(selectors, selectors, agents)
def test_a_selector_that_implies_another_matches_no_further_agent(asked: str, allowed: str, agent: AgentTraits) -> None:
    one, other = rule_selector(asked), rule_selector(allowed)
    assume(implies(one, other))
    if one.matches(agent.labels, agent.facts) is True:
        assert other.matches(agent.labels, agent.facts) is True


def test_the_fact_counts_only_where_the_rule_says_so() -> None:
    said = AgentTraits("web-1", {}, {"env": "dev"})
    assert rule_selector("env=dev").matches(said.labels, said.facts) is False
    assert rule_selector("label.env=dev").matches(said.labels, said.facts) is False
    assert rule_selector("fact.env=dev").matches(said.labels, said.facts) is True


def test_a_method_has_no_other_name() -> None:
    rule = Rule(methods=frozenset({"exec", "file.*"}), agents=rule_selector("*"))
    for method, allowed in {
        "exec": True, "file.get": True, "file.put.x": True,
        "Exec": False, "EXEC": False, "exec ": False, "exec2": False,
        "exec.": False, "exe": False, "file": False, "files.get": False, "xfile.get": False, "*": False, "": False,
    }.items():  # fmt: skip
        assert rule.allows(Access(Verb.RUN, method)) is allowed, method


def test_verbs_on_agents_do_not_reach_the_gateway() -> None:
    everything = Rule(methods=frozenset("*"), verbs=frozenset("*"), agents=rule_selector("*"))
    policy = policy_of({"all": (everything,)})
    assert policy.decide(CI, Access(Verb.DELETE), AgentTraits("a", {}, {})).allowed
    assert not policy.decide(CI, Access(Verb.TOKENS)).allowed
    assert not policy.may_ever(CI, [Verb.TOKENS])
    assert not Rule(methods=frozenset("*"), agents=rule_selector("*")).allows(Access(Verb.VIEW))


def test_a_denial_names_the_missing_rule_and_nothing_of_the_agent() -> None:
    policy = policy_of({"deploy": (Rule(methods=frozenset({"exec"}), agents=rule_selector("env=dev")),)})
    secret = AgentTraits("web-1", {"env": "prod", "customer": "acme"}, {"os": "linux"})
    decision = policy.decide(CI, Access(Verb.RUN, "exec"), secret)
    assert decision.reason == (
        "token:ci may not use method exec on agent 'web-1': expected a rule with method exec for this agent in one of "
        "its roles, deploy (an administrator changes them in the file of roles)"
    )
    assert policy.denial(Subject("token:x", "x"), Access(Verb.VIEW), "web-1") == (
        "token:x may not use verb view on agent 'web-1': it has no role (an administrator binds one in the file of "
        "roles)"
    )


def test_patterns_stand_for_beginnings_only() -> None:
    assert covers_name("web-*", "web-1")
    assert not covers_name("web-*", "aweb-1")
    assert not covers_name("web", "web-1")


@given(roles, accesses, selectors, agents)
def test_yes_for_a_selector_is_yes_for_each_of_its_agents(
    known: dict[str, tuple[Rule, ...]], access: Access, text: str, agent: AgentTraits
) -> None:
    policy, asked = policy_of(known), rule_selector(text)
    if policy.decide_for_all(CI, access, asked).allowed and asked.matches(agent.labels, agent.facts) is True:
        assert policy.decide(CI, access, agent).allowed


@given(roles, accesses, agents, facts)
def test_labels_that_give_nothing_open_nothing(
    known: dict[str, tuple[Rule, ...]], access: Access, before: AgentTraits, labels: dict[str, str]
) -> None:
    policy, after = policy_of(known), AgentTraits(before.id, labels, before.facts)
    opens = policy.decide(CI, access, after).allowed and not policy.decide(CI, access, before).allowed
    if opens:
        assert policy.gained(CI, before, after)
    assert not policy.gained(CI, before, before)


@given(selectors)
def test_a_selector_is_shown_as_it_can_be_written(text: str) -> None:
    assert rule_selector(selector_text(rule_selector(text))) == rule_selector(text)
