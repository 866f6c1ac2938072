"""What the body of a request for a run asks for: checks what no type can say, and makes the terms of the run of it.

`run_start` calls it, and has the targets selected.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request

from fairlead.app.api.body_fingerprint import fingerprint
from fairlead.app.api.headers import find_header
from fairlead.app.api.runs import run_schemas
from fairlead.app.api.schemas import Queue
from fairlead.app.routes.commands import PAYLOAD_LIMIT
from fairlead.authorization.posters.poster_rights import poster_of
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest
from fairlead.fleet.runs.run_record import Pace, RunTerms
from fairlead.methods.library import check_content, check_input, check_payload
from fairlead.routing.runs.batches import arrange
from fairlead.routing.runs.selection import Selection
from fairlead.tenant import local_id


def check_body(body: run_schemas.NewRun) -> None:
    if body.spread and body.batches is not None:
        raise InvalidRequest("starts are spread or in batches: expected one of them", field="spread")
    if (body.agents is UNSET) == (body.selector is UNSET):
        raise InvalidRequest("expected either agents or a selector, and not both", field="agents")
    if body.late and body.selector is UNSET:
        raise InvalidRequest("agents join a run by its selector: expected a selector, and no agents", field="late")
    if body.late and body.batches is not None:
        raise InvalidRequest("batches are those of a snapshot: expected no batches where agents join", field="batches")
    if (wanted := body.batches) is not None:
        if wanted.by is None and wanted.size is None and wanted.share is None:
            raise InvalidRequest("expected by, size or share in batches", field="batches")
        if wanted.size is not None and wanted.share is not None:
            raise InvalidRequest("expected size or share in batches, and not both", field="batches")
    if len(bytes(body.payload)) > PAYLOAD_LIMIT:
        raise InvalidRequest(
            f"payload of {len(bytes(body.payload))} bytes exceeds the maximum of {PAYLOAD_LIMIT}", field="payload"
        )


def check_arguments(body: run_schemas.NewRun) -> None:
    """Raises InvalidRequest if the payload does not fit the built-in method or the content, or the method waits for an
    input."""
    payload, content = bytes(body.payload), "" if body.content is UNSET else body.content
    if content:  # whether or not its arguments are checked: the audit log has this digest
        check_content(body.method, payload, content)
    if body.unchecked is True:
        return
    check_payload(body.method, payload)
    check_input(body.method, payload, content=bool(content), takes_input=False)


def body_digest(body: run_schemas.NewRun, payload: bytes) -> str:
    """Equal for two bodies with the same meaning."""
    return fingerprint((without_payload(body),), payload)


def without_payload(body: run_schemas.NewRun) -> bytes:
    """What a caller has posted, without the payload, without the id and signature, which are made anew with each
    attempt, and without `unchecked`, which changes nothing of the run."""
    bare = msgspec.structs.replace(body, payload=msgspec.Raw(b"0"), id=UNSET, signature=UNSET, unchecked=UNSET)
    return msgspec.json.encode(bare)


def arranged(selection: Selection, wanted: run_schemas.Batches | None) -> tuple[list[str], tuple[int, ...]]:
    """The targets in the order of their batches, and where these end."""
    if wanted is None:
        return selection.agents, ()
    return arrange(selection.agents, selection.values if wanted.by else None, wanted.size or 0, wanted.share or 0.0)


def traceparent_of(request: Request) -> str:
    return (find_header(request, b"traceparent") or "")[:64]


def run_terms(
    body: run_schemas.NewRun, subject: Subject, request: Request, now: int, batches: tuple[int, ...], signature: bytes
) -> RunTerms:
    above, after = body.abort_above, body.abort_after
    pace = Pace(
        body.concurrency, body.ramp, body.canary, after.failed if after is not None else 0,
        above.share if above is not None else 1.0, above.minimum if above is not None else 0, batches,
    )  # fmt: skip
    return RunTerms(
        body.method, body.lane, body.retry, int(body.deadline * 1000), body.on_offline == "skip",
        body.selector if isinstance(body.selector, str) else "", subject.identity,
        traceparent_of(request), now, now + int(body.run_deadline * 1000), pace,
        int(body.on_offline.queue * 1000) if isinstance(body.on_offline, Queue) else 0, tenant=subject.tenant,
        signature=signature, fail_on_exit=body.fail_on_exit, late=body.late,
        poster=poster_of(subject) if body.late else None, content="" if body.content is UNSET else body.content,
        spread=int(body.spread * 1000),
    )  # fmt: skip


def named_targets(agents: Sequence[str]) -> str:
    """How many agents, and the first of them by name, for whoever approves what is to run on them."""
    return f"{len(agents)} agents ({', '.join(map(local_id, agents[:5]))}{', …' * (len(agents) > 5)})"
