"""The built-in methods of agents, with their schemas. `tests/agent` holds that the agent takes exactly these arguments.

A method that is not here may exist on an agent all the same: the SDK lets everybody add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.errors import InvalidRequest
from fairlead.methods.method import UNCHECKED, Arguments, Method, ResultMembers

Path = Annotated[str, Meta(pattern="^/", description="an absolute path")]
UNIT_PATTERN: Final = r"^[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,254}\Z"
Unit = Annotated[str, Meta(pattern=UNIT_PATTERN, description="the name of a unit, such as nginx.service")]
Offset = Annotated[int, Meta(ge=0)]
Lines = Annotated[int, Meta(ge=0, le=10_000, description="how many of the last lines")]
Pid = Annotated[int, Meta(ge=1, le=1 << 22)]
Signal = Literal["CONT", "HUP", "INT", "KILL", "QUIT", "STOP", "TERM", "USR1", "USR2"]


class ExecArguments(Arguments):
    argv: Annotated[list[str], Meta(min_length=1, description="the program and its arguments; there is no shell")]
    env: dict[str, str] = {}  # noqa: RUF012  # a Struct copies it
    cwd: str | None = None
    stdin: bool = False


class ProgramExit(ResultMembers):
    exit_code: int | UnsetType = UNSET
    signal: Annotated[int | UnsetType, Meta(description="the signal that ended it, in place of the exit code")] = UNSET


class FileGetArguments(Arguments):
    path: Path
    offset: Offset = 0


class SentFile(ResultMembers):
    size: int
    sha256: str


class FilePutArguments(Arguments):
    path: Path
    size: Offset | None = None
    mode: Annotated[str, Meta(pattern="^0?[0-7]{3}\\Z", description="permissions in octal")] = "0644"
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")] | None = None
    overwrite: bool = True
    parents: bool = False
    content: Annotated[
        bool, Meta(description="take the content that the command names, with this sha256, and no input")
    ] = False


class StoredFile(ResultMembers):
    path: str
    size: int
    sha256: str


class LogTailArguments(Arguments):
    path: Annotated[Path | None, Meta(description="a file; give it or `unit`")] = None
    unit: Annotated[Unit | None, Meta(description="a unit whose journal is read; give it or `path`")] = None
    lines: Lines = 10
    follow: Annotated[bool, Meta(description="go on until the deadline or a cancel, through rotations")] = False


class TailedLog(ResultMembers):
    bytes: Annotated[int, Meta(description="how many were sent")]
    rotations: Annotated[int, Meta(description="how often the file was replaced or shortened")]


class ProcessRow(ResultMembers):
    pid: int
    ppid: int
    user: str
    state: str
    cpu_s: float
    rss_bytes: int
    started: float
    argv: list[str]


class ProcSignalArguments(Arguments):
    pid: Pid
    signal: Signal = "TERM"
    started: Annotated[
        float | None,
        Meta(description="`started` of proc.list: nothing is sent to another process that has the id by now"),
    ] = None


class SignalledProcess(ResultMembers):
    pid: int
    signal: str
    argv: list[str]


class ScriptArguments(Arguments):
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z", description="the SHA-256 of a content")]
    size: Annotated[int, Meta(ge=0, le=1 << 20, description="how many bytes it has")]
    interpreter: Annotated[list[str], Meta(min_length=1)] | None = None
    arguments: list[str] = []  # noqa: RUF012  # a Struct copies it
    env: dict[str, str] = {}  # noqa: RUF012
    cwd: str | None = None
    user: str | None = None


class UnitArguments(Arguments):
    unit: Unit


class UnitStatus(ResultMembers):
    unit: str
    description: str
    load: str
    active: Annotated[str, Meta(description="active, inactive, failed, activating …")]
    sub: str
    enabled: str
    pid: int
    since: Annotated[str, Meta(description="when it became so, as systemd writes it; empty if never")]


class ShellArguments(Arguments):
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}  # noqa: RUF012  # a Struct copies it
    cols: int = 80
    rows: int = 24
    term: str = "xterm-256color"


class RefreshedFacts(ResultMembers):
    changed: Annotated[dict[str, str | None], Meta(description="new values of facts; null for one that is gone")]


class HostInfo(ResultMembers):
    os: str
    kernel: str
    arch: str
    hostname: str
    python: str
    cpus: int | None
    memory_bytes: int | None
    uptime_s: float | None
    load: list[float] | None


_ALL: Final = (
    Method("exec", "Run a program, with its output as it comes.", "runs", ExecArguments, ProgramExit,
           ("stdout", "stderr"), input=True),
    Method("facts.refresh", "Read the facts of the host again, and tell what has changed.", "reads",
           result=RefreshedFacts),
    Method("file.get", "Send a file.", "reads", FileGetArguments, SentFile, ("row", "file")),
    Method("file.put", "Write a file, whole or not at all.", "changes", FilePutArguments, StoredFile, input=True,
           needs_input=True, digest_argument="sha256"),
    Method("log.tail", "Send the last lines of a file or of a unit's journal, and follow them.", "reads",
           LogTailArguments, TailedLog, ("stdout",)),
    Method("proc.list", "List the processes, one row each.", "reads", output=("row",), row=ProcessRow),
    Method("proc.signal", "Send a signal to a process.", "changes", ProcSignalArguments, SignalledProcess),
    Method("script", "Run a script that is stored once for many agents.", "runs", ScriptArguments, ProgramExit,
           ("stdout", "stderr"), digest_argument="digest"),
    Method("service.restart", "Restart a unit of systemd.", "changes", UnitArguments, UnitStatus),
    Method("service.start", "Start a unit of systemd.", "changes", UnitArguments, UnitStatus),
    Method("service.status", "Get the state of a unit of systemd.", "reads", UnitArguments, UnitStatus),
    Method("service.stop", "Stop a unit of systemd.", "changes", UnitArguments, UnitStatus),
    Method("shell", "Open a terminal.", "runs", ShellArguments, ProgramExit, ("pty",), input=True),
    Method("sys.info", "Describe the host.", "reads", result=HostInfo),
)  # fmt: skip

LIBRARY: Final[Mapping[str, Method]] = {method.name: method for method in _ALL}
"""By name."""


def check_arguments(method: str, payload: object) -> None:
    """Raises InvalidRequest if the method is in the library and does not take this payload."""
    known = LIBRARY.get(method)
    if known is not None:
        known.check(payload)


def check_payload(method: str, payload: bytes) -> None:
    """The same for a payload in JSON, and lets arguments pass that are unknown here: the agent may be newer."""
    known = LIBRARY.get(method)
    if known is not None:
        known.check_json(payload)


def check_input(method: str, payload: bytes, *, content: bool, takes_input: bool) -> None:
    """Raises InvalidRequest if the method would wait in vain: for a content, where the command names none, or for an
    input, where none can be sent to it. The payload has been checked."""
    known = LIBRARY.get(method)
    if known is None or not known.needs_input:
        return
    awaited = known.awaits(msgspec.json.decode(payload))
    if awaited == "content" and not content:
        raise InvalidRequest(
            f"{method} gets what it writes from a content (`content` is true in the payload), and none is named: "
            "expected the digest of one",
            field="content", method=method,
        )  # fmt: skip
    if awaited == "input" and not takes_input:
        raise InvalidRequest(
            f"{method} needs an input, and a run has none: expected a content, which the payload asks for with "
            f"`content`: true ({UNCHECKED})",
            field="content", method=method,
        )  # fmt: skip


def check_content(method: str, payload: bytes, content: str) -> None:
    """Raises InvalidRequest if the method would take another content than the command names, such as a script that the
    agent has kept: whoever approves the command is shown the one that is named, and the audit log names it. What cannot
    be read is left to the agent, which refuses it."""
    known = LIBRARY.get(method)
    if known is None or not known.digest_argument:
        return
    try:
        taken = known.content_of(msgspec.json.decode(payload))
    except (msgspec.DecodeError, RecursionError):
        return
    if taken not in ("", content):
        raise InvalidRequest(
            f"{method} takes the content {taken[:64]} by its payload, and the command names {content or 'none'}: "
            f"expected the same digest in `content` and in payload.{known.digest_argument}",
            field="content", method=method,
        )  # fmt: skip
