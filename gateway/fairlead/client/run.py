"""One run from its post to its end: how each of its targets ended, in the order of their ends, even over lost
connections.

Made by `RunRequests`, which is `runs` of a client. The client knows the offset of what it has given to the caller, so a
stream that breaks is opened again after that, at the same node or the next. Leaving only stops reading: a run goes on
by itself.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Literal, TypeVar

import msgspec

from fairlead.client.command import NDJSON, RETRIES, RETRY
from fairlead.client.problem_details import error_class
from fairlead.client.result_lines import split_lines
from fairlead.client.run_models import EndedTarget, ListedRun, RunPreview, RunProgress, RunStatus
from fairlead.client.signer import Signer, sign_run
from fairlead.client.transport import ConnectionLost, Request, Transport
from fairlead.errors import ConnectionRefused, FairleadError, InvalidRequest, Unavailable
from fairlead.wire.ids import check_agent_id, check_run_id

T = TypeVar("T")


class _Failure(msgspec.Struct):
    code: str
    message: str
    temporary: bool = False


class _AcceptedRun(msgspec.Struct):
    id: str
    targets: int
    undecided: int = 0
    replayed: bool = False


class _RunLine(msgspec.Struct):
    """Any line of the stream that is no target's; `{}` keeps the connection alive."""

    offset: int | None = None
    progress: RunProgress | None = None
    end: RunProgress | None = None
    error: _Failure | None = None
    more: int | None = None


_decode_line = msgspec.json.Decoder(_RunLine).decode
_decode_target = msgspec.json.Decoder(EndedTarget).decode


class FollowedRun:
    """A run that was accepted. `end` is set when its results have been read to the end."""

    def __init__(self, transport: Transport, run: str, start: int = 0, targets: int = 0, undecided: int = 0) -> None:
        self.id = run
        self.next = start
        """The offset of the next result."""
        self.targets = targets
        """How many there are; 0 for a run that was attached to."""
        self.undecided = undecided
        """Agents that were left out because the selector asks for labels that were lost."""
        self.replayed = False
        """Whether an earlier post has started it, with the same Idempotency-Key or approval."""
        self.end: RunProgress | None = None
        self._transport = transport

    async def follow(self, *, output: bool = True) -> AsyncGenerator[EndedTarget | RunProgress]:
        """How each target ended, and the progress a few times a second, until the run has ended. Raises Unavailable
        when no node answers for a while, and RecordLost."""
        failures = 0
        while self.end is None:
            before = self.next
            try:
                async with self._transport.stream(self._request(output), split_lines) as lines:
                    async for raw in lines:
                        if (shown := self._record(raw)) is not None:
                            yield shown
                        if self.end is not None:
                            return
                raise ConnectionLost(f"the stream of run {self.id} ended before the run did")
            except (ConnectionRefused, Unavailable) as e:
                failures = 0 if self.next > before else failures + 1
                if failures > RETRIES or not (isinstance(e, ConnectionRefused) or e.temporary):
                    raise
            await asyncio.sleep(RETRY.delay(failures, random.random()) / 1000)

    def _request(self, output: bool) -> Request:
        params: dict[str, str | int] = {"from": self.next, "follow": "true", "progress": "true"}
        if not output:
            params["output"] = "false"
        return Request("GET", f"/v1/runs/{self.id}/results", params, {"Accept": NDJSON})

    def _record(self, raw: bytes) -> EndedTarget | RunProgress | None:
        try:
            line = _decode_line(raw)
            target = None if line.offset is None else _decode_target(raw)
        except msgspec.MsgspecError as e:
            raise FairleadError(
                f"invalid line in the stream: {e} (are client and gateway of different versions?)"
            ) from e
        if target is None and line.error is not None:
            kind = error_class(line.error.code, Unavailable if line.error.temporary else FairleadError)
            raise kind(line.error.message, code=line.error.code)
        if line.end is not None:
            self.end = line.end
        if target is not None and target.offset >= self.next:
            self.next = target.offset + 1
            return target
        return line.progress


class _RunPage(msgspec.Struct):
    runs: list[ListedRun]
    cursor: str | None = None


class RunRequests:
    """The requests about runs as methods."""

    def __init__(self, transport: Transport, signer: Signer | None = None) -> None:
        self._transport = transport
        self._signer = signer

    async def begin(
        self,
        method: str,
        payload: object = None,
        *,
        agents: Collection[str] | None = None,
        selector: str = "",
        pace: Mapping[str, object] | None = None,
        key: str | None = None,
    ) -> FollowedRun:
        """Run a method on many agents: on those of a list, or on all that match a selector (`*` for all). `pace` has
        the other members of the request, such as `concurrency`: docs/api.md describes them. `key` is the
        Idempotency-Key, of which every run has one of its own unless you pass one. A signed run has an id in its
        place, and a list of agents: the signature is for these. Raises InvalidRequest for any other."""
        order = _order(method, payload, agents, selector, pace or {})
        if self._signer is None:
            accepted = await self._post(order, key or secrets.token_hex(16), _AcceptedRun)
        else:
            accepted = await self._post(await self._signed(self._signer, order, key), "", _AcceptedRun)
        return self._followed(accepted)

    async def _signed(self, signer: Signer, order: Mapping[str, object], key: str | None) -> dict[str, object]:
        agents = order.get("agents")
        if not isinstance(agents, list):
            raise InvalidRequest(
                "a run is signed for the agents that its caller names: expected agents, and no selector (`preview` "
                "says which agents a selector matches)",
                field="agents",
            )
        if key is not None:
            raise InvalidRequest("a signed run has no Idempotency-Key: its id takes that place", field="key")
        payload = msgspec.json.encode(order["payload"])
        run, signature = await sign_run(
            signer, str(order["method"]), payload, str(order.get("lane", "bulk")), str(order.get("retry", "never")),
            float(str(order.get("run_deadline", 3600.0))), agents,
        )  # fmt: skip
        return {**order, "payload": msgspec.Raw(payload), "id": run, "signature": signature}

    async def preview(
        self, method: str, payload: object = None, *, agents: Collection[str] | None = None, selector: str = ""
    ) -> RunPreview:
        """The agents that `begin` would have as targets."""
        order = _order(method, payload, agents, selector, {"dry_run": True})
        return await self._post(order, secrets.token_hex(16), RunPreview)

    def attach(self, run: str, start: int = 0) -> FollowedRun:
        """A run that was posted before, with its results from offset `start` on."""
        return FollowedRun(self._transport, check_run_id(run), start)

    async def retry(self, run: str, *, states: Collection[str] | None = None, key: str | None = None) -> FollowedRun:
        """Run the method of a run again on those of its targets that ended in one of `states`: by default all that
        failed."""
        order = {} if states is None else {"states": list(states)}
        path = f"/v1/runs/{check_run_id(run)}/retry"
        accepted = await self._post(order, key or secrets.token_hex(16), _AcceptedRun, path)
        return self._followed(accepted)

    def _followed(self, accepted: _AcceptedRun) -> FollowedRun:
        run = FollowedRun(self._transport, accepted.id, 0, accepted.targets, accepted.undecided)
        run.replayed = accepted.replayed
        return run

    async def list(self, *, state: str | None = None) -> AsyncGenerator[ListedRun]:
        """The runs that the caller may see, the newest first."""
        params: dict[str, str | int] = {} if state is None else {"state": state}
        while True:
            page = await self._transport.ask(Request("GET", "/v1/runs", params), _RunPage)
            for one in page.runs:
                yield one
            if page.cursor is None:
                return
            params["cursor"] = page.cursor

    async def get(self, run: str) -> RunStatus:
        """The state of a run."""
        return await self._transport.ask(Request("GET", f"/v1/runs/{check_run_id(run)}"), RunStatus)

    async def ask(self, run: str, wish: Literal["pause", "resume", "cancel"]) -> RunStatus:
        """Ask for a run to be paused, resumed or cancelled; returns its state now, which may follow a moment later."""
        path = f"/v1/runs/{check_run_id(run)}"
        approved = self._transport.approved if wish == "resume" else None
        request = Request("DELETE", path) if wish == "cancel" else Request("POST", f"{path}/{wish}", approved)
        return await self._transport.ask(request, RunStatus)

    async def _post(self, order: Mapping[str, object], key: str, kind: type[T], path: str = "/v1/runs") -> T:
        """Post a run, again if its answer was lost: the key makes it the same run."""
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        request = Request("POST", path, self._transport.approved, headers, msgspec.json.encode(order))
        failures = 0
        while True:
            try:
                answer = await self._transport.ask(request, kind)
                if failures and isinstance(answer, _AcceptedRun):
                    answer.replayed = False  # the post that had no answer may have begun it
                return answer
            except ConnectionLost:
                failures += 1
                if failures > RETRIES:
                    raise
            await asyncio.sleep(RETRY.delay(failures, random.random()) / 1000)


def _order(
    method: str, payload: object, agents: Collection[str] | None, selector: str, pace: Mapping[str, object]
) -> dict[str, object]:
    order: dict[str, object] = {"method": method, "payload": {} if payload is None else payload, **pace}
    if agents is not None:
        order["agents"] = [check_agent_id(agent) for agent in agents]
    if selector:
        order["selector"] = selector
    return order
