"""Answers every question of the API about rights: with the current policy, tokens, labels and owners of commands.

The node creates one and runs its loops. An administrator passes every check of roles without a look-up. Nobody passes
one for what belongs to another tenant than the subject. Raises PermissionDenied, whose text says which rule is missing
and nothing about agents that the caller may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.authorization.agent_traits import AgentTraitsCache, traits_of
from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.command_owners import CommandOwners
from fairlead.authorization.policy import Access, AgentTraits, Decision, Policy, Verb
from fairlead.authorization.policy_watch import PolicyWatch
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.authorization.tenant_choice import TenantChoice
from fairlead.authorization.token_snapshot import TokenSnapshot
from fairlead.authorization.users import Users
from fairlead.errors import CommandUnknown, PermissionDenied
from fairlead.fleet.command_record import OwnedCommand
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow
from fairlead.fleet.selector import Selector
from fairlead.fleet.tokens.service_tokens import ServiceTokens
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import local_id, tenant_of


class Authorizer:
    """`now` is Redis TIME in ms, and `unknown_command` makes the error for a command that has no record."""

    def __init__(
        self,
        roles: Path | None,
        issuers: Path | None,
        directory: Directory,
        records: Commands,
        tokens: ServiceTokens,
        now: Callable[[], int],
        unknown_command: Callable[[str], CommandUnknown],
    ) -> None:
        self.policy_watch = PolicyWatch(roles)
        self.tokens = TokenSnapshot(tokens, now)
        self.users = Users(issuers)
        self._traits = AgentTraitsCache(directory)
        self._owners = CommandOwners(records)
        self._choice = TenantChoice()
        self._unknown_command = unknown_command
        self._denied = 0

    @property
    def policy(self) -> Policy:
        return self.policy_watch.policy

    def declares(self, tenant: str) -> bool:
        """Whether there is such a tenant."""
        return self.policy.declares(tenant)

    def in_tenant(self, subject: Subject, named: str | None) -> Subject:
        """The subject in the tenant that its request names, None if it names none. Raises PermissionDenied and
        InvalidRequest."""
        try:
            return self._choice.choose(self.policy, subject, named)
        except PermissionDenied:
            self._denied += 1
            raise

    def separates(self, subject: Subject) -> bool:
        """Whether there may be something of another tenant than that of the subject."""
        return bool(subject.tenant or self.policy.tenants)

    async def require_known_command(self, subject: Subject, command: str) -> None:
        """Raises CommandUnknown if the tenant of the subject has no such command."""
        if await self._owners.find(command, subject.tenant) is None:
            raise self._unknown_command(command)

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        policy = self.policy_watch
        metrics.add_counter(
            "fairlead_permission_denied_total", "Requests that no role of their caller allows", lambda: self._denied
        )
        metrics.add_gauge("fairlead_service_tokens", "Service tokens that this node knows", lambda: len(self.tokens))
        metrics.add_counter(
            "fairlead_roles_reloads_total",
            "Times that the changed file of roles was read again",
            lambda: policy.reloads,
        )
        metrics.add_counter(
            "fairlead_roles_reload_failures_total",
            "Times that the changed file of roles could not be used",
            lambda: policy.failures,
        )

        metrics.add_counter(
            "fairlead_issuer_key_fetches_total",
            "Times that the keys of a trusted issuer were asked for",
            lambda: sum(source.fetches for source in self.users.sources),
        )
        metrics.add_counter(
            "fairlead_issuer_key_failures_total",
            "Times that the keys of a trusted issuer could not be fetched",
            lambda: sum(source.failures for source in self.users.sources),
        )

    def load(self) -> None:
        """Read the files of roles and of issuers. Raises ConfigError if one cannot be used."""
        self.policy_watch.load()
        self.users.load()

    def check_credential(self, subject: Subject) -> None:
        """Raises Unauthorized if the credential of `subject` is not valid any more, Unavailable if that cannot be found
        out, and PermissionDenied if its tenant was removed."""
        self.tokens.check(subject)
        self.users.check(subject)
        if not self.policy.declares(subject.tenant):
            self._forbid(f"the tenant {subject.tenant} was removed from the file of roles", subject)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        return self.policy_watch.run(), self.tokens.run(), self.users.run()

    def require_verb(self, subject: Subject, verbs: Collection[Verb]) -> None:
        """Raises PermissionDenied if no rule allows the subject one of `verbs`, on whichever agent; without verbs, if
        it has no role."""
        if not self.policy.may_ever(subject, verbs):
            self._forbid(self.policy.denial(subject, Access(next(iter(verbs), Verb.VIEW))), subject)

    def require_still(self, subject: Subject, verbs: Collection[Verb]) -> None:
        """Check once more what was checked when the request began: a body may take half a minute to arrive, and
        meanwhile the credential may have been revoked or the roles changed."""
        if subject is ADMINISTRATOR:
            return  # the platform token neither expires nor has roles
        self.check_credential(subject)
        self.require_verb(subject, verbs)

    async def decide(self, subject: Subject, access: Access, agent: str) -> Decision:
        decided = self.policy.decide_by_id(subject, access, agent)
        return decided or self.policy.decide(subject, access, await self._traits.find(agent))

    async def allows(self, subject: Subject, verb: Verb, agent: str) -> bool:
        """Whether the subject may do this to the agent; labels may be 2 seconds old."""
        return (await self.decide(subject, Access(verb), agent)).allowed

    async def traits(self, agent: str) -> AgentTraits:
        """The agent as rules see it, which may be 2 seconds old."""
        return await self._traits.find(agent)

    async def require(self, subject: Subject, access: Access, agent: str) -> None:
        """Raises PermissionDenied if the subject may not do this to the agent."""
        if subject.administrator and tenant_of(agent) == subject.tenant:
            return
        decision = await self.decide(subject, access, agent)
        if not decision.allowed:
            self._forbid(decision.reason, subject)

    def require_on_row(self, subject: Subject, verb: Verb, row: AgentRow) -> None:
        """`require` for an agent whose row has just been read."""
        if subject.administrator and tenant_of(row.agent) == subject.tenant:
            return  # without its labels
        decision = self.policy.decide(subject, Access(verb), traits_of(row))
        if not decision.allowed:
            self._forbid(decision.reason, subject)
        if verb is Verb.DELETE:
            self._require_approvals_kept(subject, traits_of(row), None)

    def _require_approvals_kept(self, subject: Subject, before: AgentTraits, after: AgentTraits | None) -> None:
        """Nobody takes away the labels because of which they need an approval."""
        if method := self.policy.escapes_approval(subject, before, after):
            self._forbid(
                f"{subject.identity} may not do this to agent {before.id!r}, whose labels say that method {method} "
                "needs an approval there: expected somebody who may not run it (or an administrator)",
                subject,
            )

    def require_labelled(self, subject: Subject, row: AgentRow, changes: dict[str, str | None]) -> None:
        """Raises PermissionDenied if the subject may not label the agent as it is, would not be allowed to once the
        labels are changed, or would then have a right that it has not now: nobody labels an agent out of or into the
        agents of others, and nobody makes an agent one of its own."""
        self.require_on_row(subject, Verb.LABEL, row)
        if subject.administrator:
            return
        before = traits_of(row)
        labels = {**(before.labels or {}), **changes}
        after = replace(before, labels={key: value for key, value in labels.items() if value is not None})
        if not self.policy.decide(subject, Access(Verb.LABEL), after).allowed:
            self._forbid(
                f"{subject.identity} may not set these labels on agent {local_id(row.agent)!r}: expected that a rule "
                f"with {Access(Verb.LABEL)} still holds for it afterwards",
                subject,
            )
        self._require_approvals_kept(subject, before, after)
        if gained := self.policy.gained(subject, before, after):
            self._forbid(
                f"{subject.identity} may not set these labels on agent {local_id(row.agent)!r}, for they would give it "
                f"{gained} there: expected labels that give the caller no right which it has not already",
                subject,
            )

    def visible(self, subject: Subject) -> list[Selector] | None:
        """The subject may see exactly those agents of its tenant that match one of these selectors. None if that
        depends on their ids too."""
        if subject.administrator:
            return [Selector(())]
        rules = [rule for _, rule in self.policy.allowing(subject, Access(Verb.VIEW))]
        if any(rule.ids for rule in rules):
            return None
        return [rule.agents or Selector(()) for rule in rules]

    def allows_on_row(self, subject: Subject, verb: Verb, row: AgentRow) -> bool:
        return self._allows_on_row(subject, Access(verb), row)

    def allows_run_on_row(self, subject: Subject, method: str, row: AgentRow) -> bool:
        """Whether the subject may run the method on the agent whose row has just been read."""
        return self._allows_on_row(subject, Access(Verb.RUN, method), row)

    def _allows_on_row(self, subject: Subject, access: Access, row: AgentRow) -> bool:
        if subject.administrator:
            return tenant_of(row.agent) == subject.tenant
        return self.policy.decide(subject, access, traits_of(row)).allowed

    def require_run_on(
        self, subject: Subject, method: str, agents: Collection[str], rows: Collection[AgentRow]
    ) -> None:
        """Raises PermissionDenied unless the subject may run the method on each of `agents`; `rows` are those that have
        just been read of them."""
        known = {row.agent: traits_of(row) for row in rows}
        access = Access(Verb.RUN, method)
        for agent in agents:
            decision = self.policy.decide(subject, access, known.get(agent) or AgentTraits(agent, None, {}))
            if not decision.allowed:
                self._forbid(decision.reason, subject)

    def require_run(self, subject: Subject, verb: Verb, poster: str, method: str) -> None:
        """Raises PermissionDenied if the subject may not do this to a run: whoever may run its method may do everything
        to the runs that they have posted themselves; for others, a rule has to allow `verb` on every agent."""
        if not self._has_run(subject, poster, method):
            decision = self.policy.decide_for_all(subject, Access(verb), Selector(()))
            if not decision.allowed:
                self._forbid(decision.reason, subject)

    def allows_run(self, subject: Subject, verb: Verb, poster: str, method: str) -> bool:
        """Whether `require_run` would raise nothing."""
        if self._has_run(subject, poster, method):
            return True
        return self.policy.decide_for_all(subject, Access(verb), Selector(())).allowed

    def _has_run(self, subject: Subject, poster: str, method: str) -> bool:
        if subject.administrator:
            return True
        return poster == subject.identity and bool(self.policy.allowing(subject, Access(Verb.RUN, method)))

    async def require_command(self, subject: Subject, verb: Verb, command: str) -> None:
        """Raises PermissionDenied if the subject may not do this to the command: whoever may run its method on its
        agent may do everything to the commands that they have posted themselves; for others, a rule has to allow
        `verb`."""
        if subject.administrator:
            return
        owner = await self._owners.find(command, subject.tenant)
        if owner is None:
            raise self._unknown_command(command)
        await self.require_owned(subject, verb, owner)

    async def require_input(self, subject: Subject, command: str) -> None:
        """`require_command` for input. What needs an approval is approved for one caller, so nobody else has a part in
        it."""
        await self.require_command(subject, Verb.INPUT, command)
        if subject.administrator or not self.policy.approvals:
            return
        owner = await self._owners.find(command, subject.tenant)
        if owner is None:
            raise self._unknown_command(command)
        if owner.subject != subject.identity and await self.approval_rules(subject, owner.method, owner.agent):
            self._forbid(
                f"{subject.identity} may not send input to this command, which somebody else has an approval for: "
                "expected its own caller",
                subject,
            )

    def may_need_approval(self, subject: Subject, method: str) -> bool:
        """Whether the subject needs an approval to run the method on any agent."""
        return not subject.administrator and any(rule.marks(method) for rule in self.policy.approvals)

    async def approval_rules(self, subject: Subject, method: str, agent: str) -> list[ApprovalRule]:
        """The rules because of which the subject needs an approval to run the method on the agent."""
        if not self.may_need_approval(subject, method):
            return []
        return self.policy.approval_rules(method, await self._traits.find(agent))

    def approval_rules_on(
        self, subject: Subject, method: str, agents: Collection[str], rows: Collection[AgentRow]
    ) -> list[ApprovalRule]:
        """`approval_rules` for many agents; `rows` are those that have just been read of them."""
        if not self.may_need_approval(subject, method):
            return []
        known = {row.agent: traits_of(row) for row in rows}
        found: dict[ApprovalRule, None] = {}
        for agent in agents:
            traits = known.get(agent) or AgentTraits(agent, None, {})
            found.update(dict.fromkeys(self.policy.approval_rules(method, traits)))
        return list(found)

    async def allows_owned(self, subject: Subject, verb: Verb, owner: OwnedCommand) -> bool:
        """Whether `require_owned` would raise nothing."""
        if subject.administrator and tenant_of(owner.agent) == subject.tenant:
            return True
        if owner.subject == subject.identity:
            run = Access(Verb.RUN, owner.method)
            if (await self.decide(subject, run, owner.agent)).allowed:
                return True
        return (await self.decide(subject, Access(verb), owner.agent)).allowed

    async def require_owned(self, subject: Subject, verb: Verb, owner: OwnedCommand) -> None:
        if not await self.allows_owned(subject, verb, owner):
            self._forbid(self.policy.denial(subject, Access(verb), of_command=True), subject)

    def remember_command(self, subject: Subject, command: str, method: str, agent: str) -> None:
        if not subject.administrator:
            self._owners.remember(command, OwnedCommand(subject.identity, method, agent))

    def forget_labels(self, agent: str) -> None:
        self._traits.forget(agent)

    def _forbid(self, reason: str, subject: Subject) -> None:
        self._denied += 1
        raise PermissionDenied(reason, subject=subject.identity)
