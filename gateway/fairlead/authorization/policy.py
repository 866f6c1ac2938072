"""Roles, bindings, and the decision whether a subject may do something to an agent.

A role is a list of rules, and a binding gives roles to subjects. What no rule allows is denied, and no rule takes
anything away, so the rights of a subject are the union of its roles. A bare key in a rule's selector means the label,
which only the platform sets; what an agent says about itself counts only where the rule says `fact.`. `policy_file`
makes a policy of a file, and `authorizer` asks it. It is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.rule_selector import EVERY, covers_name, implies, overlap, selector_text
from fairlead.authorization.subject import Subject
from fairlead.fleet.selector import Selector
from fairlead.fleet.tenants.quotas import Quotas
from fairlead.tenant import local_id, qualified, tenant_of

SUBJECTS_CACHED = 8_192
"""The number of subjects whose rules are kept together: more than tenants may have service tokens."""
ACCESSES_CACHED = 64
"""The number of accesses for which the rules of a subject are kept: callers name methods, and may name many."""


class Verb(StrEnum):
    """What a rule can allow. RUN is written as `methods` in a role. Those of GATEWAY_VERBS concern the gateway, all
    others agents."""

    RUN = "run"
    VIEW = "view"
    LABEL = "label"
    DISCONNECT = "disconnect"
    DELETE = "delete"
    RESULTS = "results"
    CANCEL = "cancel"
    INPUT = "input"
    EVENTS = "events"
    TOKENS = "tokens"
    ENROLMENT = "enrolment"
    NODES = "nodes"
    APPROVE = "approve"
    TENANTS = "tenants"


GATEWAY_VERBS = (Verb.TOKENS, Verb.ENROLMENT, Verb.NODES, Verb.APPROVE, Verb.TENANTS)
PLATFORM_VERBS = frozenset({Verb.NODES.value, Verb.TENANTS.value})
"""Those that concern all tenants: nobody has them in a tenant but the default one."""
AGENT_VERBS = tuple(verb for verb in Verb if verb not in (Verb.RUN, *GATEWAY_VERBS))


@dataclass(frozen=True, slots=True)
class Access:
    """What a subject wants to do; `method` only with RUN."""

    verb: Verb
    method: str = ""

    def __str__(self) -> str:
        return f"method {self.method}" if self.verb is Verb.RUN else f"verb {self.verb}"


@dataclass(frozen=True, slots=True)
class AgentTraits:
    """An agent as rules see it. Its id is qualified by its tenant, and `labels` is None if they were lost."""

    id: str
    labels: Mapping[str, str] | None
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a role. It holds for agents that match `agents`, if that is given, and one of `ids`, if any are."""

    methods: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    gateway: frozenset[str] = frozenset()
    agents: Selector | None = None
    ids: tuple[str, ...] = ()

    def allows(self, access: Access) -> bool:
        """Whether the rule names what the subject wants to do, whomever it concerns."""
        if access.verb is Verb.RUN:
            return any(covers_name(pattern, access.method) for pattern in self.methods)
        if access.verb in GATEWAY_VERBS:
            return access.verb.value in self.gateway
        return access.verb.value in self.verbs or EVERY in self.verbs

    def holds_for_id(self, agent: str) -> bool:
        return not self.ids or any(covers_name(pattern, local_id(agent)) for pattern in self.ids)

    @property
    def asks_labels(self) -> bool:
        return self.agents is not None and bool(self.agents.terms)

    def holds_for_all(self, asked: Selector) -> bool:
        """Whether the rule surely holds for every agent that matches `asked`."""
        every_id = not self.ids or EVERY in self.ids
        return every_id and (self.agents is None or implies(asked, self.agents))

    def describe_agents(self) -> str:
        """For which agents the rule holds, as the file says it."""
        parts = [] if self.agents is None else [selector_text(self.agents)]
        return " and ".join([*parts, *([f"ids {', '.join(self.ids)}"] if self.ids else [])])

    def holds_for(self, agent: AgentTraits) -> bool:
        """False also if it depends on labels that were lost."""
        if not self.holds_for_id(agent.id):
            return False
        return self.agents is None or self.agents.matches(agent.labels, agent.facts) is True


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` names the role that allows it, or what is missing."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """All roles, and the roles that are bound to each service token by its name, and to each user and group by its
    issuer and name; all of these names are qualified by the tenant of the binding. `tenants` has the default tenant
    only if it has quotas."""

    roles: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    token_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    user_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    group_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    approvals: tuple[ApprovalRule, ...] = ()
    tenants: Mapping[str, Quotas] = field(default_factory=dict)
    _by_subject: dict[Subject, _SubjectRules] = field(default_factory=dict, compare=False, repr=False)

    def roles_of(self, subject: Subject) -> list[str]:
        """The roles that the bindings of its tenant give to the subject, without those to which its token is not
        limited."""
        tenant = subject.tenant
        bound = self.roles_of_token(tenant, subject.token_name) if subject.token_name else frozenset()
        if (user := subject.user) is not None:
            groups = (self.group_roles.get(qualified(tenant, group), frozenset()) for group in user.qualified_groups)
            bound = self.user_roles.get(qualified(tenant, user.qualified_name), frozenset()).union(*groups)
        return sorted(bound if subject.roles is None else bound & subject.roles)

    def roles_of_token(self, tenant: str, name: str) -> frozenset[str]:
        """The roles that are bound to service tokens of this name."""
        return self.token_roles.get(qualified(tenant, name), frozenset())

    def declares(self, tenant: str) -> bool:
        """Whether there is such a tenant."""
        return not tenant or tenant in self.tenants

    @property
    def all_tenants(self) -> list[str]:
        """All that there are; the default tenant is the first."""
        return list(dict.fromkeys(("", *self.tenants)))

    def tenants_of(self, subject: Subject) -> list[str]:
        """The tenants in which the subject has a role."""
        return [tenant for tenant in self.all_tenants if self.roles_of(replace(subject, tenant=tenant))]

    def may_ever(self, subject: Subject, verbs: Collection[Verb]) -> bool:
        """Whether some rule allows one of `verbs`, on whichever agent; without verbs, whether there is a role."""
        if subject.administrator:
            return True
        if not verbs:
            return bool(self.roles_of(subject))
        return self._rules(subject).may_ever(verbs)

    def decide(self, subject: Subject, access: Access, agent: AgentTraits | None = None) -> Decision:
        """Whether the subject may do this, to `agent` if it concerns one."""
        if agent is not None and tenant_of(agent.id) != subject.tenant:
            return Decision(False, self.denial(subject, access))
        if subject.administrator:
            return Decision(True, f"{subject.identity} is an administrator")
        for role, rule in self._rules(subject).allowing(access):
            if agent is None or rule.holds_for(agent):
                return Decision(True, f"role {role} allows it")
        return Decision(False, self.denial(subject, access, agent.id if agent is not None else ""))

    def decide_by_id(self, subject: Subject, access: Access, agent: str) -> Decision | None:
        """The decision for the agent with this id, if its labels and facts do not matter; otherwise None."""
        asks_labels = False
        if subject.administrator or tenant_of(agent) != subject.tenant:
            return self.decide(subject, access, AgentTraits(agent, None, {}))
        for role, rule in self._rules(subject).allowing(access):
            if rule.holds_for_id(agent):
                if not rule.asks_labels:
                    return Decision(True, f"role {role} allows it")
                asks_labels = True
        return None if asks_labels else Decision(False, self.denial(subject, access, agent))

    def denial(self, subject: Subject, access: Access, agent: str = "", *, of_command: bool = False) -> str:
        """What is missing, in words. It says nothing about the agent but the id that the caller gave: for a
        command, whose agent the caller may not know, it gives none."""
        roles = self.roles_of(subject)
        where = f" on agent {local_id(agent)!r}" if agent else " on the agent of this command" if of_command else ""
        if subject.tenant and access.verb in PLATFORM_VERBS:
            return (
                f"{subject.identity} may not use {access}: it concerns all tenants, and the caller acts in one of them"
            )
        if not roles:
            return (
                f"{subject.identity} may not use {access}{where}: it has no role (an administrator binds one in the "
                "file of roles)"
            )
        missing = f"a rule with {access}" + (" for this agent" if where else "")
        return (
            f"{subject.identity} may not use {access}{where}: expected {missing} in one of its roles, "
            f"{', '.join(roles)} (an administrator changes them in the file of roles)"
        )

    def allowing(self, subject: Subject, access: Access) -> tuple[tuple[str, Rule], ...]:
        """The rules that allow this on some agents, each with its role."""
        return self._rules(subject).allowing(access)

    def gained(self, subject: Subject, before: AgentTraits, after: AgentTraits) -> str:
        """A method or verb that the subject may use on the agent only once it is as in `after`; empty if there is
        none."""
        rules = self._rules(subject).all
        held = [rule for _, rule in rules if rule.holds_for(before)]
        new = [rule for _, rule in rules if rule.holds_for(after) and rule not in held]
        for pattern in sorted(name for rule in new for name in rule.methods):
            if not any(covers_name(known, pattern) for rule in held for known in rule.methods):
                return f"method {pattern}"
        for verb in AGENT_VERBS:
            access = Access(verb)
            if any(rule.allows(access) for rule in new) and not any(rule.allows(access) for rule in held):
                return str(access)
        return ""

    def approval_rules(self, method: str, agent: AgentTraits) -> list[ApprovalRule]:
        """The rules because of which the method needs an approval on this agent."""
        if not self.approvals:
            return []
        known = agent.id, agent.labels, agent.facts
        return [rule for rule in self.approvals if rule.marks(method) and rule.may_hold(*known)]

    def approval_rules_for(self, subject: Subject, method: str, asked: Selector) -> list[ApprovalRule]:
        """The rules because of which the subject needs an approval for the method on some agents that match `asked`."""
        if subject.administrator:
            return []
        return [rule for rule in self.approvals if rule.marks(method) and rule.holds_for_some(asked)]

    def approval_rules_of(self, subject: Subject) -> list[ApprovalRule]:
        """The rules that mark methods which the subject may use somewhere."""
        run = [name for _, rule in self._rules(subject).all for name in rule.methods]
        return [rule for rule in self.approvals if any(overlap(one, name) for one in rule.methods for name in run)]

    def escapes_approval(self, subject: Subject, before: AgentTraits, after: AgentTraits | None) -> str:
        """A method for which an approval is no longer needed once the agent is as in `after` (None: it is deleted), and
        which the subject may use; empty if there is none."""
        run = [rule for _, rule in self._rules(subject).all if rule.methods]
        for one in self.approvals:
            if not one.may_hold(before.id, before.labels, before.facts) or one.agents is None:
                continue
            if after is not None and one.may_hold(after.id, after.labels, after.facts):
                continue
            for pattern in sorted(one.methods):
                if any(overlap(pattern, other) for rule in run for other in rule.methods):
                    return pattern
        return ""

    def decide_for_all(self, subject: Subject, access: Access, asked: Selector) -> Decision:
        """Whether one rule allows this on every agent that matches `asked`, a selector of rules."""
        if subject.administrator or access.verb in GATEWAY_VERBS:
            return self.decide(subject, access)
        for role, rule in self.allowing(subject, access):
            if rule.holds_for_all(asked):
                return Decision(True, f"role {role} allows it")
        return Decision(False, self.denial(subject, access))

    def _rules(self, subject: Subject) -> _SubjectRules:
        found = self._by_subject.get(subject)
        if found is None:
            if len(self._by_subject) >= SUBJECTS_CACHED:
                self._by_subject.clear()
            rules = [(role, rule) for role in self.roles_of(subject) for rule in self.roles.get(role, ())]
            if subject.tenant:
                rules = [(role, replace(rule, gateway=rule.gateway - PLATFORM_VERBS)) for role, rule in rules]
            found = self._by_subject[subject] = _SubjectRules(tuple(rules))
        return found


class _SubjectRules:
    """All rules of one subject, and those that allow an access, as they were found before."""

    __slots__ = ("_allowing", "_verbs", "all")

    def __init__(self, rules: tuple[tuple[str, Rule], ...]) -> None:
        self.all = rules
        self._verbs = frozenset(verb.value for verb in Verb if any(_names_verb(rule, verb) for _, rule in rules))
        self._allowing: dict[str, tuple[tuple[str, Rule], ...]] = {}

    def may_ever(self, verbs: Collection[Verb]) -> bool:
        return any(verb.value in self._verbs for verb in verbs)

    def allowing(self, access: Access) -> tuple[tuple[str, Rule], ...]:
        key = f"{access.verb.value} {access.method}"
        found = self._allowing.get(key)
        if found is None:
            if len(self._allowing) >= ACCESSES_CACHED:
                self._allowing.clear()
            found = self._allowing[key] = tuple(one for one in self.all if one[1].allows(access))
        return found


def _names_verb(rule: Rule, verb: Verb) -> bool:
    return bool(rule.methods) if verb is Verb.RUN else rule.allows(Access(verb))
