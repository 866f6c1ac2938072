"""A rule of the file of roles that marks methods: on some agents they need the approval of a second person.

`policy` keeps the rules, and `authorizer` asks which hold. Unlike a rule of a role, it holds for an agent unless it
surely does not: labels that were lost never make an approval unnecessary. It is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.authorization.rule_selector import EVERY, covers_name, excludes, implies, selector_text
from fairlead.fleet.selector import Selector
from fairlead.tenant import local_id


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """`approvers` are roles, of which whoever approves has one. A request and its approval are valid for `lifetime_ms`
    from the request on."""

    methods: frozenset[str]
    approvers: frozenset[str]
    lifetime_ms: int
    agents: Selector | None = None
    ids: tuple[str, ...] = ()

    def marks(self, method: str) -> bool:
        return any(covers_name(pattern, method) for pattern in self.methods)

    def holds_for_all(self, asked: Selector) -> bool:
        """Whether the rule surely holds for every agent that matches `asked`."""
        every_id = not self.ids or EVERY in self.ids
        return every_id and (self.agents is None or implies(asked, self.agents))

    def holds_for_some(self, asked: Selector) -> bool:
        """Whether it may hold for an agent that matches `asked`."""
        return self.agents is None or not excludes(asked, self.agents)

    def describe_agents(self) -> str:
        """For which agents the rule holds, as the file says it."""
        parts = [] if self.agents is None else [selector_text(self.agents)]
        return " and ".join([*parts, *([f"ids {', '.join(self.ids)}"] if self.ids else [])]) or EVERY

    def may_hold(self, agent: str, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool:
        """Whether the agent is not surely another one. `labels` is None if they were lost."""
        if self.ids and not any(covers_name(pattern, local_id(agent)) for pattern in self.ids):
            return False
        return self.agents is None or self.agents.matches(labels, facts) is not False
