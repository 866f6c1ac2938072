"""Answers every question of the API about rights: with the current policy, tokens, labels and owners of commands.

The node creates one and runs its loops. An administrator passes every check without a look-up. Raises PermissionDenied,
whose text says which rule is missing and nothing about agents that the caller may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.authorization.agent_traits import AgentTraitsCache, traits_of
from fairlead.authorization.command_owners import CommandOwners
from fairlead.authorization.policy import Access, AgentTraits, Decision, Policy, Verb
from fairlead.authorization.policy_watch import PolicyWatch
from fairlead.authorization.subject import Subject
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
        self._unknown_command = unknown_command
        self._denied = 0

    @property
    def policy(self) -> Policy:
        return self.policy_watch.policy

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
        """Raises Unauthorized if the credential of `subject` is not valid any more, and Unavailable if that cannot be
        found out."""
        self.tokens.check(subject)
        self.users.check(subject)

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
        self.check_credential(subject)
        self.require_verb(subject, verbs)

    async def decide(self, subject: Subject, access: Access, agent: str) -> Decision:
        decided = self.policy.decide_by_id(subject, access, agent)
        return decided or self.policy.decide(subject, access, await self._traits.find(agent))

    async def allows(self, subject: Subject, verb: Verb, agent: str) -> bool:
        """Whether the subject may do this to the agent; labels may be 2 seconds old."""
        return subject.administrator or (await self.decide(subject, Access(verb), agent)).allowed

    async def traits(self, agent: str) -> AgentTraits:
        """The agent as rules see it, which may be 2 seconds old."""
        return await self._traits.find(agent)

    async def require(self, subject: Subject, access: Access, agent: str) -> None:
        """Raises PermissionDenied if the subject may not do this to the agent."""
        if subject.administrator:
            return
        decision = await self.decide(subject, access, agent)
        if not decision.allowed:
            self._forbid(decision.reason, subject)

    def require_on_row(self, subject: Subject, verb: Verb, row: AgentRow) -> None:
        """`require` for an agent whose row has just been read."""
        if subject.administrator:
            return
        decision = self.policy.decide(subject, Access(verb), traits_of(row))
        if not decision.allowed:
            self._forbid(decision.reason, subject)

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
                f"{subject.identity} may not set these labels on agent {row.agent!r}: expected that a rule with "
                f"{Access(Verb.LABEL)} still holds for it afterwards",
                subject,
            )
        if gained := self.policy.gained(subject, before, after):
            self._forbid(
                f"{subject.identity} may not set these labels on agent {row.agent!r}, for they would give it {gained} "
                "there: expected labels that give the caller no right which it has not already",
                subject,
            )

    def allows_on_row(self, subject: Subject, verb: Verb, row: AgentRow) -> bool:
        return subject.administrator or self.policy.decide(subject, Access(verb), traits_of(row)).allowed

    def allows_run_on_row(self, subject: Subject, method: str, row: AgentRow) -> bool:
        """Whether the subject may run the method on the agent whose row has just been read."""
        return subject.administrator or self.policy.decide(subject, Access(Verb.RUN, method), traits_of(row)).allowed

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
        if subject.administrator:
            return
        if poster == subject.identity and self.policy.allowing(subject, Access(Verb.RUN, method)):
            return
        decision = self.policy.decide_for_all(subject, Access(verb), Selector(()))
        if not decision.allowed:
            self._forbid(decision.reason, subject)

    async def require_command(self, subject: Subject, verb: Verb, command: str) -> None:
        """Raises PermissionDenied if the subject may not do this to the command: whoever may run its method on its
        agent may do everything to the commands that they have posted themselves; for others, a rule has to allow
        `verb`."""
        if subject.administrator:
            return
        owner = await self._owners.find(command)
        if owner is None:
            raise self._unknown_command(command)
        await self.require_owned(subject, verb, owner)

    async def require_owned(self, subject: Subject, verb: Verb, owner: OwnedCommand) -> None:
        if subject.administrator:
            return
        if owner.subject == subject.identity:
            run = Access(Verb.RUN, owner.method)
            if (await self.decide(subject, run, owner.agent)).allowed:
                return
        if not (await self.decide(subject, Access(verb), owner.agent)).allowed:
            self._forbid(self.policy.denial(subject, Access(verb), of_command=True), subject)

    def remember_command(self, subject: Subject, command: str, method: str, agent: str) -> None:
        if not subject.administrator:
            self._owners.remember(command, OwnedCommand(subject.identity, method, agent))

    def forget_labels(self, agent: str) -> None:
        self._traits.forget(agent)

    def _forbid(self, reason: str, subject: Subject) -> None:
        self._denied += 1
        raise PermissionDenied(reason, subject=subject.identity)
