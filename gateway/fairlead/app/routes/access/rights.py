"""The handlers of `/v1/auth`: who the caller is, and what it may do. They tell a caller nothing but its own rights."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.caller import caller
from fairlead.app.api import access_schemas
from fairlead.app.api.schemas import iso
from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.policy import GATEWAY_VERBS, Access, Verb
from fairlead.authorization.rule_selector import EVERY, rule_selector
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest
from fairlead.node import Node
from fairlead.tenant import qualified, shown_tenant
from fairlead.wire.ids import check_agent_id

METHOD_LIMIT = 64

_encode = msgspec.json.Encoder().encode


class RightsRoutes:
    def __init__(self, node: Node) -> None:
        self._authorizer = node.authorizer

    async def whoami(self, request: Request) -> Response:
        subject = caller(request)
        roles = self._authorizer.policy.roles_of(subject)
        unbound = sorted((subject.roles or frozenset()) - set(roles))
        user = subject.user
        expires = iso(self._authorizer.tokens.expiry(subject) if user is None else user.expires * 1000)
        answer = access_schemas.Caller(
            subject.identity, subject.administrator, roles, unbound, expires,
            None if user is None else user.issuer_url, sorted(user.groups) if user is not None else [],
            shown_tenant(subject.tenant),
            [_needed(rule, False) for rule in self._authorizer.policy.approval_rules_of(subject)],
        )  # fmt: skip
        return Response(_encode(answer), media_type="application/json")

    async def can_i(self, request: Request) -> Response:
        subject, access = caller(request), _access(request)
        agent, text = request.query_params.get("agent"), request.query_params.get("selector")
        if agent is not None and text is not None:
            raise InvalidRequest("agent and selector are both given: expected one of them, or neither", field="agent")
        if access.verb in GATEWAY_VERBS and (agent is not None or text is not None):
            raise InvalidRequest(f"{access} concerns no agent: expected neither agent nor selector", field="verb")
        if agent is not None:
            decision = await self._authorizer.decide(subject, access, qualified(subject.tenant, check_agent_id(agent)))
        else:
            decision = self._authorizer.policy.decide_for_all(subject, access, rule_selector(text or EVERY))
        rules = [
            access_schemas.AllowingRule(role, rule.describe_agents())
            for role, rule in self._authorizer.policy.allowing(subject, access)
            if access.verb not in GATEWAY_VERBS
        ]
        approvals = await self._approvals(subject, access, agent, text or EVERY) if decision.allowed else []
        answer = access_schemas.Permission(decision.allowed, decision.reason, rules, approvals)
        return Response(_encode(answer), media_type="application/json")

    async def _approvals(
        self, subject: Subject, access: Access, agent: str | None, text: str
    ) -> list[access_schemas.NeededApproval]:
        """The approvals that it needs besides the right."""
        if access.verb is not Verb.RUN:
            return []
        if agent is not None:
            on_agent = await self._authorizer.approval_rules(subject, access.method, qualified(subject.tenant, agent))
            return [_needed(rule, True) for rule in on_agent]
        asked = rule_selector(text)
        found = self._authorizer.policy.approval_rules_for(subject, access.method, asked)
        return [_needed(rule, rule.holds_for_all(asked)) for rule in found]


def _needed(rule: ApprovalRule, always: bool) -> access_schemas.NeededApproval:
    return access_schemas.NeededApproval(sorted(rule.methods), rule.describe_agents(), sorted(rule.approvers), always)


def _access(request: Request) -> Access:
    method, verb = request.query_params.get("method"), request.query_params.get("verb")
    if (method is None) == (verb is None):
        raise InvalidRequest("expected either method or verb: give one of them", field="method")
    if method is not None:
        if not 1 <= len(method) <= METHOD_LIMIT:
            raise InvalidRequest(f"invalid method: expected 1 to {METHOD_LIMIT} characters", field="method")
        return Access(Verb.RUN, method)
    verbs = [one.value for one in Verb if one is not Verb.RUN]
    if verb not in verbs:
        raise InvalidRequest(f"invalid verb {str(verb)[:32]!r}: expected one of {', '.join(verbs)}", field="verb")
    return Access(Verb(verb))
