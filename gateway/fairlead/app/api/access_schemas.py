"""The bodies of requests and answers about access: tokens, callers, rights. `schemas` says how they are used."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.app.api.identifiers import LabelKey, LabelValue
from fairlead.authorization.policy_file import NAME, NAME_RULE

DAY = 86_400

AccessName = Annotated[str, Meta(pattern=rf"^{NAME}\Z", description=f"a name ({NAME_RULE})")]


class NewServiceToken(Struct, forbid_unknown_fields=True):
    """A service token to create. Two tokens may have the same name, so that one can replace the other without a gap."""

    name: AccessName
    roles: Annotated[
        Annotated[list[AccessName], Meta(min_length=1, max_length=100)] | None,
        Meta(description="The roles to which the token is limited, of those that are bound to its name; null for all."),
    ] = None
    lifetime: Annotated[float, Meta(ge=60, le=366 * DAY, description="Seconds until the token expires.")] = 90.0 * DAY


class StoredServiceToken(Struct):
    """A service token without its secret. `roles` are those to which it is limited, null for all that are bound to its
    name; `used` is accurate to a minute."""

    id: str
    name: str
    roles: list[str] | None
    created: str
    created_by: str
    expires: str
    expired: bool
    used: Annotated[str | None, Meta(description="When it was last used; null if it never was.")]


class CreatedServiceToken(StoredServiceToken, kw_only=True):
    """A new service token. `token` is its text, which cannot be shown again."""

    token: str


class ServiceTokenList(Struct):
    """All service tokens, ordered by name and creation."""

    tokens: list[StoredServiceToken]


class NewEnrolmentToken(Struct, forbid_unknown_fields=True):
    """An enrolment token to create."""

    agents: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="The ids that may enrol with it: `?` stands for one character, "
             "`*` for any number of them."),
    ]  # fmt: skip
    uses: Annotated[int, Meta(ge=1, le=100_000, description="How many agents it enrols.")] = 1
    lifetime: Annotated[float, Meta(ge=60, le=366 * DAY, description="Seconds until the token expires.")] = 1.0 * DAY
    labels: Annotated[
        dict[LabelKey, LabelValue],
        Meta(max_length=16, description="Labels of the agents that it enrols; only an administrator may name any."),
    ] = {}
    rate: Annotated[
        int, Meta(ge=0, le=100_000, description="How many agents it enrols in a minute at most; 0 for any number.")
    ] = 0
    approval: Annotated[bool, Meta(description="An administrator has to approve each agent.")] = False


class StoredEnrolmentToken(Struct):
    """An enrolment token without its secret. `used` is the number of agents that it has enrolled; `rate` is for a
    minute, 0 for any number."""

    id: str
    agents: str
    uses: int
    used: int
    created: str
    created_by: str
    expires: str
    expired: bool
    labels: dict[str, str]
    rate: int
    approval: bool


class CreatedEnrolmentToken(StoredEnrolmentToken, kw_only=True):
    """A new enrolment token. `token` is its text, which cannot be shown again."""

    token: str


class EnrolmentTokenList(Struct):
    """All enrolment tokens, the newest first."""

    tokens: list[StoredEnrolmentToken]


class PendingAgent(Struct):
    """An agent that wants to enrol and waits for an administrator. `key` is the thumbprint of its key (RFC 7638)."""

    agent: str
    key: str
    state: Annotated[
        str, Meta(description="`pending`; or `approved` or `denied`, until its agent asks again or a day has passed.")
    ]
    token: Annotated[str, Meta(description="The id of its enrolment token.")]
    address: Annotated[str, Meta(description="Where it asked from last.")]
    first: Annotated[str, Meta(description="When it asked first.")]
    last: Annotated[str, Meta(description="When it asked last, or when it was decided.")]


class PendingAgentList(Struct):
    """All agents that wait, ordered by id and by time."""

    agents: list[PendingAgent]


class ShownKey(Struct, forbid_unknown_fields=True):
    """The key and the enrolment token that the administrator was shown: nothing else is approved or denied."""

    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{43}\Z", description="The thumbprint of the key.")]
    token: Annotated[str, Meta(pattern=r"^[0-9a-f]{12}\Z", description="The id of the token, which grants labels.")]


class RevokedAgentKey(Struct):
    """The key of an agent that was revoked. `key` is its thumbprint (RFC 7638)."""

    agent: str
    key: str


class Caller(Struct):
    """Who the caller is. An administrator may do everything and has no roles. `roles` are those that the caller has
    now; `unbound` are those to which its token is limited and which are not bound to its name."""

    subject: str
    administrator: bool
    roles: list[str]
    unbound: list[str]
    expires: Annotated[
        str | None, Meta(description="When the service token or the JWT expires; null for the platform token.")
    ]
    issuer: Annotated[str | None, Meta(description="The URL of a user's issuer; null for a token.")]
    groups: Annotated[list[str], Meta(description="The groups of a user, as the issuer names them.")]


class AllowingRule(Struct):
    """A rule that allows it on some agents: those that `agents` describes, as in the file of roles."""

    role: str
    agents: str


class Permission(Struct):
    """Whether the caller may. `reason` names the role that allows it, or what is missing."""

    allowed: bool
    reason: str
    rules: Annotated[list[AllowingRule], Meta(description="The rules that allow it at least on some agents.")]
