"""Reads the file of roles: YAML with `roles`, `bindings`, and perhaps `tenants` and `approvals`, checked strictly.

    roles:
      deploy:
        - methods: [exec, file.*]
          agents: env=staging,team=web
        - verbs: [view, results]
          ids: [web-*]
    bindings:
      - tokens: [ci]
        groups: [company:web-team]
        roles: [deploy]
      - tenant: acme
        tokens: [ci]
        roles: [deploy]
    tenants:
      acme:
        agents: 500
    approvals:
      - methods: [exec]
        agents: env=prod
        approvers: [oncall]
        expires: 1h

Every error names the file's line and the member, what is expected and what to do; all errors are reported at once.
`policy_watch` calls it. It does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import yaml

from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.policy import AGENT_VERBS, GATEWAY_VERBS, Policy, Rule, Verb
from fairlead.authorization.rule_selector import EVERY, rule_selector
from fairlead.authorization.rules.policy_reader import StrictReader, check_events
from fairlead.errors import ConfigError, InvalidRequest
from fairlead.fleet.selector import Selector
from fairlead.fleet.tenants.quotas import QUOTAS, Quotas
from fairlead.tenant import DEFAULT_SHOWN, TENANT_RULE, parse_tenant, qualified

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a file: some ten thousand rules, which take three seconds of CPU time to read."""
ROLES_LIMIT: Final = 1_000
RULES_LIMIT: Final = 100
TENANTS_LIMIT: Final = 256
"""Metrics have a label for each tenant."""
ERRORS_SHOWN: Final = 20

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_RULE: Final = "1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"
_METHOD = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}|[A-Za-z0-9][A-Za-z0-9._-]{0,61}\.\*")
_ID = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,127}\*?")
_QUALIFIED = re.compile(NAME + r":(?! )[^\x00-\x1f\x7f]{1,256}(?<! )")
_SUBJECTS: Final = {
    "tokens": (re.compile(NAME), f"names of tokens ({NAME_RULE})"),
    "users": (_QUALIFIED, "names of users after the issuer's name, such as company:anna"),
    "groups": (_QUALIFIED, "names of groups after the issuer's name, such as company:oncall"),
}
"""Whom a binding can name, how, and what is expected in words."""
_LIFETIME = re.compile(r"([1-9][0-9]{0,3})([mh])")
LIFETIME_LIMIT: Final = 24 * 60
"""Minutes: an approval is for what is about to be done."""


def parse_policy(raw: bytes, source: str) -> Policy:
    """The policy of a file; `source` is its name in errors. Raises ConfigError."""
    if len(raw) > SIZE_LIMIT:
        raise ConfigError(
            f"{source}: {len(raw)} bytes exceed the maximum of {SIZE_LIMIT}: expected a smaller file (use selectors in "
            "place of lists of ids)"
        )
    try:
        text = raw.decode()
        check_events(text, source)
        root = yaml.compose(text, yaml.SafeLoader)
    except UnicodeDecodeError as e:
        raise ConfigError(f"{source}: byte {e.start} is not UTF-8: expected YAML in UTF-8") from e
    except yaml.MarkedYAMLError as e:
        line = f":{e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise ConfigError(
            f"{source}{line}: invalid YAML, {e.problem or e.context}: expected `roles` and `bindings` (write `*` in "
            "quotes)"
        ) from e
    except yaml.YAMLError as e:
        raise ConfigError(f"{source}: invalid YAML: {e}: expected printable text") from e
    reader = _PolicyReader(source)
    policy = reader.policy(root)
    if reader.errors:
        shown = reader.errors[:ERRORS_SHOWN]
        more = len(reader.errors) - len(shown)
        raise ConfigError("\n".join([*shown, *([f"{source}: {more} further errors"] if more else [])]))
    return policy


class _PolicyReader(StrictReader):
    """Turns the nodes of a file of roles into a policy."""

    def policy(self, root: yaml.Node | None) -> Policy:
        if root is None:
            self.errors.append(f"{self._source}:1: the file is empty: expected `roles` and `bindings`")
            return Policy()
        members = self.members(root, "the file", ("roles", "bindings", "tenants", "approvals"))
        roles: dict[str, tuple[Rule, ...]] = {}
        if "roles" in members:
            roles = dict(self._roles(members["roles"]))
        else:
            self.fault(root, "the file", "has no member roles", "roles and bindings")
        tenants = dict(self._tenants(members["tenants"])) if "tenants" in members else {}
        bound: dict[str, dict[str, set[str]]] = {kind: {} for kind in _SUBJECTS}
        for path, one in self.items(members.get("bindings"), "bindings"):
            self._bind(one, path, roles, tenants, bound)
        tokens, users, groups = ({name: frozenset(names) for name, names in bound[kind].items()} for kind in _SUBJECTS)
        approvals = tuple(
            self._approval(one, path, roles)
            for path, one in self.items(members.get("approvals"), "approvals", RULES_LIMIT)
        )
        return Policy(roles, tokens, users, groups, approvals, tenants)

    def _roles(self, node: yaml.Node) -> Iterator[tuple[str, tuple[Rule, ...]]]:
        members = self.members(node, "roles", None)
        if len(members) > ROLES_LIMIT:
            self.fault(node, "roles", f"has {len(members)} members", f"at most {ROLES_LIMIT}")
        for name, rules in members.items():
            if not re.fullmatch(NAME, name):
                self.fault(rules, "roles", f"has the invalid name {name[:80]!r}", NAME_RULE)
            read = [self._rule(one, path) for path, one in self.items(rules, f"roles.{name}", RULES_LIMIT)]
            if not read and isinstance(rules, yaml.SequenceNode):
                self.fault(rules, f"roles.{name}", "has no rule", "at least one rule (or remove the role)")
            yield name, tuple(read)

    def _tenants(self, node: yaml.Node) -> Iterator[tuple[str, Quotas]]:
        members = self.members(node, "tenants", None)
        if len(members) > TENANTS_LIMIT:
            self.fault(node, "tenants", f"has {len(members)} members", f"at most {TENANTS_LIMIT}")
        for name, given in members.items():
            path = f"tenants.{name}"
            tenant = parse_tenant(name)
            if tenant is None:
                self.fault(given, "tenants", f"has the invalid name {name[:80]!r}", TENANT_RULE)
                continue
            quotas = {}
            for quota, value in self.members(given, path, QUOTAS).items():
                number = self.whole_number(value, f"{path}.{quota}", 1, 1 << 40)
                if number is not None:
                    quotas[quota] = number
            yield tenant, Quotas(**quotas)

    def _rule(self, node: yaml.Node, path: str) -> Rule:
        members = self.members(node, path, ("methods", "verbs", "gateway", "agents", "ids"))
        methods = self.words(members, "methods", path, _is_method, "names of methods, `file.*`, or `*` in quotes")
        verbs = self.words(
            members, "verbs", path, lambda word: word == EVERY or word in AGENT_VERBS,
            f"{', '.join(AGENT_VERBS)}, or `*` in quotes",
        )  # fmt: skip
        gateway = self.words(members, "gateway", path, lambda word: word in GATEWAY_VERBS, " or ".join(GATEWAY_VERBS))
        agents, ids = self._agents(members, path)
        for_agents = bool({"methods", "verbs"} & members.keys())
        if isinstance(node, yaml.MappingNode):
            if not for_agents and "gateway" not in members:
                self.fault(node, path, "allows nothing", "one of methods, verbs and gateway")
            if for_agents and not {"agents", "ids"} & members.keys():
                self.fault(node, path, "names no agents", 'agents, a selector or "*" for every agent, or ids')
            if not for_agents and {"agents", "ids"} & members.keys():
                self.fault(node, path, "names agents but nothing to do with them", "methods or verbs beside them")
        return Rule(frozenset(methods), frozenset(verbs), frozenset(gateway), agents, ids)

    def _agents(self, members: dict[str, yaml.Node], path: str) -> tuple[Selector | None, tuple[str, ...]]:
        """The members `agents` and `ids` of a rule."""
        ids = self.words(
            members, "ids", path, lambda word: _ID.fullmatch(word) is not None, "ids of agents, or `web-*` in quotes"
        )
        agents = None
        if "agents" in members and (text := self.text(members["agents"], f"{path}.agents")) is not None:
            try:
                agents = rule_selector(text) if text.strip() else None
            except InvalidRequest as e:
                self.errors.append(f"{self.at(members['agents'])}: {path}.agents: {e.message}")
            else:
                if agents is None:
                    self.fault(members["agents"], f"{path}.agents", "is empty", 'a selector, or "*" for every agent')
        return agents, tuple(ids)

    def _approval(self, node: yaml.Node, path: str, roles: dict[str, tuple[Rule, ...]]) -> ApprovalRule:
        members = self.members(node, path, ("methods", "agents", "ids", "approvers", "expires"))
        methods = self.words(members, "methods", path, _is_method, "names of methods, `file.*`, or `*` in quotes")
        approving = {name for name, rules in roles.items() if any(Verb.APPROVE in rule.gateway for rule in rules)}
        approvers = self.words(
            members, "approvers", path, lambda word: word in approving, "roles with `gateway: [approve]`"
        )
        agents, ids = self._agents(members, path)
        minutes = 60
        if "expires" in members and (text := self.text(members["expires"], f"{path}.expires")) is not None:
            found = _LIFETIME.fullmatch(text)
            minutes = int(found[1]) * (60 if found[2] == "h" else 1) if found else 0
            if not 1 <= minutes <= LIFETIME_LIMIT:
                self.fault(members["expires"], f"{path}.expires", f"is {text[:80]!r}", "1m to 24h, such as 30m or 2h")
        if isinstance(node, yaml.MappingNode):
            for name in {"methods", "approvers"} - members.keys():
                self.fault(node, path, f"has no member {name}", "methods, approvers, and agents or ids")
            if not {"agents", "ids"} & members.keys():
                self.fault(node, path, "names no agents", 'agents, a selector or "*" for every agent, or ids')
        return ApprovalRule(frozenset(methods), frozenset(approvers), minutes * 60_000, agents, ids)

    def _bind(
        self,
        node: yaml.Node,
        path: str,
        roles: dict[str, tuple[Rule, ...]],
        tenants: dict[str, Quotas],
        bound: dict[str, dict[str, set[str]]],
    ) -> None:
        members = self.members(node, path, (*_SUBJECTS, "roles", "tenant"))
        tenant = self._tenant(members["tenant"], f"{path}.tenant", tenants) if "tenant" in members else ""
        given = self.words(members, "roles", path, lambda word: word in roles, f"one of the roles {_some(roles)}")
        if isinstance(node, yaml.MappingNode):
            if not members.keys() & _SUBJECTS.keys():
                self.fault(node, path, f"has no member {' or '.join(_SUBJECTS)}", "whom the roles are for")
            if "roles" not in members:
                self.fault(node, path, "has no member roles", "names of roles")
        for kind, (pattern, expected) in _SUBJECTS.items():
            for word in self.words(members, kind, path, partial(_matches, pattern), expected):
                bound[kind].setdefault(qualified(tenant, word), set()).update(given)

    def _tenant(self, node: yaml.Node, path: str, tenants: dict[str, Quotas]) -> str:
        """The tenant that a binding names. An unknown one is a fault, and what is read then is not used."""
        shown = self.text(node, path)
        tenant = None if shown is None else parse_tenant(shown)
        if (tenant and tenant in tenants) or tenant == "":
            return tenant
        if shown is not None:
            self.fault(node, path, f"is {shown[:80]!r}", f"one of the tenants {_some({DEFAULT_SHOWN: 0, **tenants})}")
        return ""


def _matches(pattern: re.Pattern[str], word: str) -> bool:
    return pattern.fullmatch(word) is not None


def _is_method(word: str) -> bool:
    return _METHOD.fullmatch(word) is not None


def _some(names: Mapping[str, object]) -> str:
    listed = ", ".join(list(names)[:10])
    return listed + (" and others" if len(names) > 10 else "") if names else "(there is none)"
