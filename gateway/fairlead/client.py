"""A small client of the platform API, for the command line and for scripts that want no more than it.

Synchronous: one command is one conversation, and a thread per conversation is what its callers already have.
Of several addresses, each a node of one fleet, it uses one until that cannot be connected or loses a
connection, then the next. It never repeats a request that was sent, because only the caller knows what it has
already shown; what it must know for that (offsets, Idempotency-Key, chunk numbers that may be repeated) is in
the signatures. Errors come back as the gateway's own tree: a problem document of code `agent_offline` is raised
as AgentOffline.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import httpx2
import msgspec

from fairlead.errors import (
    AgentOffline,
    AgentUnknown,
    BusUnavailable,
    CommandUnknown,
    ConnectionRefused,
    FairleadError,
    IdempotencyConflict,
    InvalidRequest,
    NodeBusy,
    Unauthorized,
    Unavailable,
)
from fairlead.settings import is_loopback

NDJSON = "application/x-ndjson"
CONNECT_TIMEOUT = 5.0
IDLE_TIMEOUT = 60.0
"""Seconds of silence on a stream. Keep-alive lines come oftener, so only a dead connection is that quiet."""
LINE_LIMIT = 4 << 20
"""Bytes of one line: a message of 1 MiB in base64 and its envelope fit more than twice."""
PROBLEM_LIMIT = 64 << 10

T = TypeVar("T")
_BY_CODE: Mapping[str, type[FairleadError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Unauthorized,
        AgentUnknown,
        CommandUnknown,
        IdempotencyConflict,
        Unavailable,
        BusUnavailable,
        AgentOffline,
        NodeBusy,
    )
}


@dataclass(frozen=True, slots=True)
class Agent:
    """One row of the fleet. `why` says in words why it is not online, when it is not."""

    id: str
    state: str
    node: str | None = None
    since: float | str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    why: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastLink:
    """The newest link of an agent. `conn` counts the attempts of this start of it."""

    sid: str
    boot: str
    conn: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last command that failed on an agent."""

    at: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDetail(Agent):
    """An agent, its newest link, what is open for it and what went wrong last."""

    session: LastLink
    last_close: str | None = None
    last_reason: str | None = None
    trouble: Trouble | None = None
    open_commands: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Link:
    """How a link is doing, from the node that holds it. Seconds and bytes."""

    node: str
    age: float
    commands: int
    undelivered: int
    unstored: int
    congested: bool
    rtt: float | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    agents: list[Agent]
    cursor: str | int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The first line of a stream, and the answer to a command that is not streamed."""

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Octets of output, carried as text or as base64. `offset` counts the lines of the command."""

    offset: int
    agent: str
    n: int
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class More:
    """This stream is over, the command is not: ask again from `offset` on. By that the gateway knows what was read."""

    offset: int


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str = ""
    temporary: bool = False
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: one of the two, or neither when the method was not `exec`."""

    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The last line. `payload` is what JSON decodes to, of the method's own shape."""

    agent: str
    state: str
    payload: object = None
    error: Failure | None = None
    total: int = 0
    truncated: bool = False

    def exit(self) -> Exit:
        """The payload read as `exec` writes it; an empty Exit when it is something else."""
        try:
            return msgspec.convert(self.payload, Exit)
        except msgspec.MsgspecError:
            return Exit()


Line = Started | Chunk | End | More


class _Line(msgspec.Struct):
    """Any line of a stream; what is set tells which one it is. `{}` keeps the connection alive."""

    id: str | None = None
    state: str = ""
    offset: int | None = None
    agent: str = ""
    n: int = 0
    kind: str = ""
    text: str | None = None
    base64: str | None = None
    end: End | None = None
    error: Failure | None = None
    more: int | None = None


class _Problem(msgspec.Struct):
    """RFC 9457."""

    title: str = ""
    code: str = ""
    detail: str = ""
    temporary: bool = False


class _Base:
    """One address of the API, and its connections."""

    def __init__(self, api: str, token: str) -> None:
        try:
            url = httpx2.URL(api)
        except httpx2.InvalidURL as e:
            raise InvalidRequest(f"API address {api!r} is not a URL ({e})", field="api") from e
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidRequest(f"API address {api!r} must begin with http:// or https:// and a host", field="api")
        self.api = api
        self.http = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": "fairlead-cli"},
            timeout=httpx2.Timeout(IDLE_TIMEOUT, connect=CONNECT_TIMEOUT),
            # A proxy named in the environment is for the world outside: it cannot reach our loopback.
            trust_env=not is_loopback(url.host),
        )

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.ConnectError as e:
            raise ConnectionRefused(f"cannot reach the API at {self.api}: {e}") from e
        except httpx2.ConnectTimeout as e:
            raise ConnectionRefused(f"the API at {self.api} took no connection within {CONNECT_TIMEOUT:g} s") from e
        except httpx2.RequestError as e:
            raise ConnectionLost(f"the connection to the API at {self.api} was lost: {e or type(e).__name__}") from e


class Client:
    """The platform API at one address, or at several, separated by commas. Thread-safe, as the pools below it are."""

    def __init__(self, api: str, token: str) -> None:
        self._bases = [_Base(one, token) for one in addresses(api)]
        self._current = 0
        """The base that is tried first. Threads may race to move it on: then one base more is tried, no harm."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for base in self._bases:
            base.http.close()

    def agent(self, agent: str) -> Agent:
        return self._call("GET", f"/v1/agents/{agent}", Agent)

    def detail(self, agent: str) -> AgentDetail:
        return self._call("GET", f"/v1/agents/{agent}", AgentDetail)

    def link(self, agent: str) -> Link:
        """Raises AgentOffline when there is none, Unavailable when its node does not answer."""
        return self._call("GET", f"/v1/agents/{agent}/session", Link)

    def disconnect(self, agent: str) -> None:
        """Close its link; it connects again."""
        self._call("DELETE", f"/v1/agents/{agent}/session", None)

    def label(self, agent: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set labels, or remove those that are None; all of them afterwards."""
        body = msgspec.json.encode({"labels": dict(changes)})
        return self._call("PATCH", f"/v1/agents/{agent}", Labels, content=body).labels

    def agents(self, selector: str = "", state: str = "") -> Iterator[Agent]:
        """Every agent that is meant, page after page."""
        cursor: str | int | None = None
        while True:
            params: dict[str, str | int] = {"limit": 500}
            if selector:
                params["selector"] = selector
            if state:
                params["state"] = state
            if cursor is not None:
                params["cursor"] = cursor
            page = self._call("GET", "/v1/agents", Page, params=params)
            yield from page.agents
            # A cursor that does not move would be asked for ever.
            if page.cursor in (None, "", cursor):
                return
            cursor = page.cursor

    @contextmanager
    def command(self, request: Mapping[str, object], key: str) -> Iterator[Iterator[Line]]:
        """POST a command and stream its lines. `key` makes a repeated POST the same command."""
        headers = {"Accept": NDJSON, "Content-Type": "application/json", "Idempotency-Key": key}
        body = msgspec.json.encode(request)
        with self._stream("POST", "/v1/commands", headers=headers, content=body) as lines:
            yield lines

    @contextmanager
    def results(self, command: str, start: int = 0, follow: bool = True) -> Iterator[Iterator[Line]]:
        """The lines of a command from offset `start` on; with `follow` until its end."""
        params: dict[str, str | int] = {"from": start, "follow": "true" if follow else "false"}
        path = f"/v1/commands/{command}/results"
        with self._stream("GET", path, headers={"Accept": NDJSON}, params=params) as lines:
            yield lines

    def cancel(self, command: str) -> None:
        self._call("DELETE", f"/v1/commands/{command}", None)

    def input(self, command: str, n: int, data: bytes, end: bool = False) -> None:
        """Chunk number `n` of stdin; the same number may be sent again. `end` closes stdin."""
        params: dict[str, str | int] = {"n": n, **({"end": "true"} if end else {})}
        headers = {"Content-Type": "application/octet-stream"}
        self._call("POST", f"/v1/commands/{command}/input", None, params=params, headers=headers, content=data)

    def _call(
        self,
        method: str,
        path: str,
        kind: type[T] | None,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> T:
        base, answer = self._send(method, path, params, headers, content)
        with self._watched(base), closing(answer):
            body = answer.read()
        if not answer.is_success:
            raise self._error(base, answer.status_code, body)
        if kind is None:
            return None  # type: ignore[return-value]  # no type was asked for: T is None
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as e:
            raise FairleadError(f"{base.api} answered {method} {path} with something else than its API: {e}") from e

    @contextmanager
    def _stream(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        params: Mapping[str, str | int] | None = None,
        content: bytes | None = None,
    ) -> Iterator[Iterator[Line]]:
        base, answer = self._send(method, path, params, headers, content)
        with self._watched(base), closing(answer):
            if not answer.is_success:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > PROBLEM_LIMIT:
                        break
                raise self._error(base, answer.status_code, body)
            yield (line for raw in _split(answer.iter_bytes()) if (line := _read(raw)) is not None)

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        headers: Mapping[str, str] | None,
        content: bytes | None,
    ) -> tuple[_Base, httpx2.Response]:
        """The head of the answer of the first base that takes a connection; its body is still to be read."""
        refusals: list[ConnectionRefused] = []
        first = self._current
        for i in range(len(self._bases)):
            base = self._bases[(first + i) % len(self._bases)]
            request = base.http.build_request(method, path, params=params, headers=headers, content=content)
            try:
                with self._watched(base):
                    return base, base.http.send(request, stream=True)
            except ConnectionRefused as e:
                refusals.append(e)
        if len(refusals) == 1:
            raise refusals[0]
        raise ConnectionRefused("; ".join(e.message for e in refusals)) from refusals[-1]

    @contextmanager
    def _watched(self, base: _Base) -> Iterator[None]:
        """Translate httpx's errors, and leave a base that has failed: the next request goes to the one after it."""
        try:
            with base.translated():
                yield
        except (ConnectionRefused, ConnectionLost):
            if self._bases[self._current] is base:
                self._current = (self._current + 1) % len(self._bases)
            raise

    def _error(self, base: _Base, status: int, body: bytes) -> FairleadError:
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except msgspec.MsgspecError:
            problem = _Problem(detail=f"{base.api} answered HTTP {status}", temporary=status in (429, 502, 503, 504))
        kind = _BY_CODE.get(problem.code)
        if kind is None:
            refused = Unauthorized if status in (401, 403) else InvalidRequest
            kind = Unavailable if problem.temporary else refused if 400 <= status < 500 else FairleadError
        return kind(problem.detail or problem.title or f"HTTP {status}", status=status, code=problem.code)


def addresses(api: str) -> list[str]:
    """The addresses in a list separated by commas; one that is empty or none is told by its use."""
    return [one for part in api.split(",") if (one := part.strip())] or [api]


class ConnectionLost(Unavailable):
    """The request was sent; its effect is unknown. Repeat it with the same key, offset or number."""

    code = "connection_lost"


def _split(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Lines at b"\\n" only: str.splitlines would also cut at U+2028, which JSON strings may hold."""
    rest = bytearray()
    for part in parts:
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            yield from (bytes(line) for line in lines if line.strip())
        if len(rest) > LINE_LIMIT:
            raise FairleadError(f"a line of over {len(rest)} bytes exceeds the limit of {LINE_LIMIT}")
    # A last line without its end was cut off by a lost connection; the caller sees that no `end` came.


def _read(raw: bytes) -> Line | None:
    try:
        line = msgspec.json.decode(raw, type=_Line)
        if line.end is not None:
            return line.end
        if line.more is not None:
            return More(line.more)
        if line.offset is not None:
            data = base64.b64decode(line.base64, validate=True) if line.base64 is not None else None
            return Chunk(
                line.offset,
                line.agent,
                line.n,
                line.kind,
                (line.text or "").encode() if data is None else data,
            )
    except (msgspec.MsgspecError, ValueError) as e:
        raise FairleadError(f"a line of the stream is not understood: {e}; do client and gateway differ?") from e
    if line.error is not None:
        # The stream cannot go on: for a while, or for ever.
        kind = _BY_CODE.get(line.error.code, Unavailable if line.error.temporary else FairleadError)
        raise kind(line.error.message, code=line.error.code)
    return Started(line.id, line.state) if line.id is not None else None
