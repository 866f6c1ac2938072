"""The requests for an approval of a second person: `Client.approvals`."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fairlead.client.transport import Request, Transport
from fairlead.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalInfo:
    """A request for an approval. `state` is pending, approved, denied or used; `payload` is what would be sent, as
    text, None if it is too large to be shown. Times are RFC 3339."""

    id: str
    state: str
    subject: str
    kind: str = "command"
    method: str = ""
    target: str = ""
    targets: int = 1
    digest: str = ""
    payload: str | None = None
    content: str | None = None
    """The digest of the content that goes with it, such as a script."""
    content_text: str | None = None
    """That content, if it is text of at most 64 KiB, and somebody who may decide has called `get`."""
    approvers: list[list[str]] = field(default_factory=list)
    created: str = ""
    expires: str = ""
    decided_by: str | None = None
    decided: str | None = None
    command: str | None = None
    mine: bool = False
    decidable: bool = False


class _Approvals(msgspec.Struct):
    approvals: list[ApprovalInfo]


class Approvals:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[ApprovalInfo]:
        """Those that the caller has made or may decide, the oldest first."""
        return (await self._transport.ask(Request("GET", "/v1/approvals"), _Approvals)).approvals

    async def get(self, approval: str) -> ApprovalInfo:
        return await self._transport.ask(Request("GET", _path(approval)), ApprovalInfo)

    async def approve(self, approval: str) -> None:
        """Approve a request of another person, which they may then start once."""
        await self._transport.call(Request("POST", f"{_path(approval)}/approve"))

    async def deny(self, approval: str) -> None:
        await self._transport.call(Request("POST", f"{_path(approval)}/deny"))


def _path(approval: str) -> str:
    if not approval.isalnum() or not approval.isascii() or len(approval) > 32:
        raise InvalidRequest(f"invalid id of an approval {approval[:40]!r}: expected 16 digits of 0-9 a-f", field="id")
    return f"/v1/approvals/{approval}"
