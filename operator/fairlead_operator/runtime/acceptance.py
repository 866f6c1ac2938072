"""Decides whether the operator accepts a LinkGateway: its spec, its Redis, and what the policy lets it ask for.

Each reconciler has one and asks it at the beginning of every pass. Nothing is applied for a LinkGateway that is not
accepted. The canary executor asks it before it returns to a pod template that was accepted earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import ConfigError
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.policy import Policy, PolicyViolation, secrets_to_read, violations
from fairlead_operator.api.validation import read_spec
from fairlead_operator.inputs.secrets import SecretReader, Secrets
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.template_reading import asked_by_template, never_written


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a LinkGateway is not accepted: reason and message of its condition Accepted."""

    reason: str
    message: str


class Acceptance:
    def __init__(self, secrets: SecretReader, policy: Policy) -> None:
        self._secrets = secrets
        self._policy = policy

    async def check(self, body: Object, others: Sequence[Object]) -> tuple[LinkGatewaySpec, Secrets] | Rejection:
        """The spec and the Secrets if the operator accepts `body`, or else why it does not. `others` are the other
        LinkGateways of the namespace. Raises the API server's error if a Secret cannot be read for a reason other than
        its absence or a missing right.
        """
        try:
            spec = read_spec(body["spec"])
        except ConfigError as e:
            return Rejection("SpecInvalid", e.message)
        if older := _holder_of_redis(body, others):
            message = f"the LinkGateway {older} of this namespace already uses this Redis: give each its own"
            return Rejection("RedisInUse", message)
        secrets = await self._secrets.read(secrets_to_read(spec, self._policy))
        if refused := violations(spec, self._policy, secrets.states()):
            return Rejection("PolicyViolation", "; ".join(refused))
        return spec, secrets

    async def check_template(self, template: Object, wanted: Object, spec: LinkGatewaySpec) -> None:
        """Raises PolicyViolation unless the present policy allows `template`, which the operator wrote for an earlier
        spec. `wanted` is the template for `spec`.
        """
        try:
            asked = asked_by_template(template, wanted, spec)
            faults = [f"the operator does not write {field} so" for field in never_written(template, wanted)]
        except (LookupError, TypeError, AttributeError, ValueError) as e:  # its record is free-form
            raise PolicyViolation(f"the accepted pod template cannot be read: {e!r:.200}") from e
        if not faults:
            secrets = await self._secrets.read(secrets_to_read(asked, self._policy))
            faults = violations(asked, self._policy, secrets.states())
        if faults:
            raise PolicyViolation(f"the accepted pod template is not applied again: {'; '.join(faults)}")


def _holder_of_redis(body: Object, others: Sequence[Object]) -> str:
    """The oldest LinkGateway that uses the same Redis and is older than this one, or "". Two fleets in one Redis would
    serve each other's agents.
    """

    def age(one: Object) -> tuple[str, str]:
        return one["metadata"].get("creationTimestamp", ""), one["metadata"]["uid"]

    redis = body["spec"].get("redis")
    older = [one for one in others if age(one) < age(body) and one["spec"].get("redis") == redis]
    return str(min(older, key=age)["metadata"]["name"]) if older else ""
