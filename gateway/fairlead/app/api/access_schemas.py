"""The bodies of requests and answers about access: tokens, callers, rights. `schemas` says how they are used."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.app.api.identifiers import LabelKey, LabelValue
from fairlead.authorization.rules.policy_file import NAME, NAME_RULE

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
    """The key of an agent that was revoked. `key` is its thumbprint: that of RFC 7638, or the SHA-256 of the public key
    of a certificate."""

    agent: str
    key: str


class NeededApproval(Struct):
    """Methods that the caller starts only with the approval of another person, who has one of the roles `approvers`, on
    the agents that `agents` describes, as in the file of roles."""

    methods: list[str]
    agents: str
    approvers: list[str]
    always: Annotated[bool, Meta(description="Whether it is needed on all agents that the question is about.")] = False


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
    tenant: Annotated[str, Meta(description="The tenant in which the caller acts.")]
    approvals: Annotated[
        list[NeededApproval], Meta(description="What the caller may start only with the approval of another person.")
    ]


class AllowingRule(Struct):
    """A rule that allows it on some agents: those that `agents` describes, as in the file of roles."""

    role: str
    agents: str


class Permission(Struct):
    """Whether the caller may. `reason` names the role that allows it, or what is missing."""

    allowed: bool
    reason: str
    rules: Annotated[list[AllowingRule], Meta(description="The rules that allow it at least on some agents.")]
    approvals: Annotated[
        list[NeededApproval], Meta(description="The approvals of other persons that it needs besides.")
    ]


class TenantQuotas(Struct):
    """Null for no quota. `agents` are those that have enrolled, `command_rate` is in commands a second."""

    agents: int | None
    open_commands: int | None
    command_rate: int | None
    run_concurrency: int | None
    events_bytes: int | None


class Tenant(Struct):
    """A tenant with its quotas. `open_commands` and `run_concurrency` are null if it has no quota for them, because
    they are not counted then."""

    name: str
    agents: Annotated[int, Meta(ge=0, description="Agents that the gateway knows, linked or not.")]
    open_commands: Annotated[int | None, Meta(description="Commands that were posted one by one and have not ended.")]
    run_concurrency: Annotated[int | None, Meta(description="The concurrency of all open runs.")]
    quotas: TenantQuotas


class TenantList(Struct):
    """All tenants, the default one first."""

    tenants: list[Tenant]


class Approval(Struct):
    """A request for an approval of a second person, and what was decided. `payload` is what would be sent, as text;
    null if it is too large to be shown. `mine` says that the caller has asked, `decidable` that the caller may
    decide."""

    id: str
    state: Literal["pending", "approved", "denied", "used"]
    subject: str
    kind: Annotated[
        Literal["command", "run", "resume"],
        Meta(description="What would be started; `resume` is for what a paused run has not started."),
    ]
    method: str
    target: str
    targets: int
    digest: str
    payload: str | None
    content: Annotated[str | None, Meta(description="The digest of the content that goes with it, such as a script.")]
    content_text: Annotated[
        str | None,
        Meta(
            description="That content, if it is text of at most 64 KiB and the caller may decide. Only a single "
            "request shows it."
        ),
    ]
    approvers: list[list[str]]
    created: str
    expires: str
    decided_by: str | None
    decided: str | None
    command: Annotated[str | None, Meta(description="The command or run that has used it.")]
    mine: bool
    decidable: bool


class ApprovalList(Struct):
    """The requests for an approval that the caller has made or may decide, the oldest first."""

    approvals: list[Approval]
