"""The replies to the calls of `Commands`, as values of `command_record`.

`Commands` alone calls these functions, and knows which call each reply answers; the scripts document the form of their
replies. Nothing here sends anything to Redis. A reply in another form is a bug in Fairlead and raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import msgspec

from fairlead.errors import FairleadError
from fairlead.fleet import lua
from fairlead.fleet.command_record import (
    Acceptance,
    AppendResult,
    CommandMetadata,
    CommandOutcome,
    CommandRecord,
    Delivery,
    OutOfRange,
    OwnedCommand,
    Result,
    ResultPage,
    Settled,
    StoredEnd,
    TakenOver,
    Target,
)
from fairlead.fleet.directory_replies import values
from fairlead.fleet.schema import AgentRow, TargetState
from fairlead.store.reply import Reply, integer, items, octets, table, text
from fairlead.telemetry.command_timing import CommandOrigin

_OK = TargetState.OK.value
_decode_about = msgspec.msgpack.Decoder(CommandMetadata).decode
_decode_ending = msgspec.msgpack.Decoder(StoredEnd).decode


def parse_accept(agent: str, reply: Reply) -> Acceptance:
    """The row of a command that was offered has what a doorbell, its trace and the presence of the agent need."""
    answer = items(reply)
    word = text(answer[0])
    if word == "offered":
        return _parse_offered(agent, *cast("list[bytes]", answer[1:]))
    if word == "late":
        raise lua.late("command")
    if word == "full":
        return Acceptance(word, opened=integer(answer[1]))
    return Acceptance(word, AgentRow.parse(agent, values(answer[1:])) if len(answer) > 1 else None)


def _parse_offered(
    agent: str, lease: bytes, gen: bytes, up: bytes | None, seen: bytes | None, sid: bytes | None = None
) -> Acceptance:
    row = AgentRow(
        agent, lease.decode(), int(gen), "", 0, sid.decode() if sid else "", int(up or 0), int(seen or 0), 0, False
    )
    return Acceptance("ok", row, 0, True)


def parse_take_over(reply: Reply) -> TakenOver | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind == "queued":
        return TakenOver(True)
    if kind not in ("sent", "running"):
        return _settled(answer)
    return TakenOver(False, kind == "running", integer(answer[1]), octets(answer[4]) != b"", answer[5] == 1)


def parse_fence(reply: Reply) -> Delivery | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind not in ("sent", "running"):
        return _settled(answer)
    about = _decode_about(octets(answer[7]))
    return Delivery(
        kind == "running", integer(answer[1]), integer(answer[2]), integer(answer[3]), octets(answer[4]) != b"",
        answer[5] == 1, text(answer[6]), octets(answer[8]), about.lane, _origin(about),
        about.signature, about.content,
    )  # fmt: skip


def parse_append(reply: Reply) -> AppendResult:
    answer = items(reply)
    if len(answer) == 1:
        return AppendResult(text(answer[0]), "", (), 0)
    if len(answer) == 2:
        return parse_answer(integer(answer[1]), answer[0])
    return AppendResult(
        text(answer[0]), text(answer[2]), follower_names(answer[3]), integer(answer[4]), integer(answer[1]),
        integer(answer[5]), integer(answer[6]),
    )  # fmt: skip


def parse_answer(count: int, reply: Reply) -> AppendResult:
    """What was stored of a whole answer with `count` results. The reply is the followers."""
    return AppendResult("ok", _OK, follower_names(reply), 0, count, count, count)


def parse_content(reply: Reply) -> str:
    """The name of the content of a command, from its metadata; "" if it has none, or there is no such command."""
    return "" if reply is None else _decode_about(octets(reply)).content


def parse_input(reply: Reply) -> tuple[str, int]:
    answer = items(reply)
    number = answer[1] if len(answer) > 1 else 0
    return text(answer[0]), number if isinstance(number, int) else 0


def parse_page(command: str, reply: Reply) -> ResultPage | OutOfRange | None:
    answer = items(reply)
    word = text(answer[0])
    if word == "trimmed":
        return OutOfRange(True, integer(answer[1]))
    if word == "beyond":
        record = table(answer[2])
        return OutOfRange(False, integer(answer[1]), ended=_record(command, record) if record else None)
    if word == "dropped":
        return OutOfRange(False, integer(answer[1]), integer(answer[2]))
    if word != "ok":
        return None
    results = []
    for entry in items(answer[2]):
        entry_id, flat = items(entry)
        fields = items(flat)
        results.append(
            Result(
                int(octets(entry_id).partition(b"-")[0]) - 1,
                text(fields[1]),
                integer(fields[3]),
                text(fields[5]),
                octets(fields[7]),
            )
        )
    record = table(answer[3])
    return ResultPage(integer(answer[1]), results, _record(command, record) if record else None, integer(answer[4]))


def parse_record(command: str, reply: Reply) -> CommandRecord | None:
    """The whole record, from all fields of its hash, or None if there is no such record."""
    row = table(reply)
    return _record(command, row) if row else None


def parse_time_out(command: str, reply: Reply) -> CommandRecord | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind == "open":
        return _record(command, table(answer[1:]))
    if kind == "ended":
        origin = _origin(_decode_about(octets(answer[2])))
        return Settled(kind, follower_names(answer[1]), TargetState.TIMEOUT.value, origin)
    return Settled(kind, follower_names(answer[2]), text(answer[1])) if kind == "over" else Settled(kind)


def parse_time_outs(
    targets: Sequence[tuple[str, str, int]], answers: Sequence[Reply | FairleadError]
) -> Sequence[CommandRecord | Settled | FairleadError]:
    return [
        answer if isinstance(answer, FairleadError) else parse_time_out(command, answer)
        for (command, _, _), answer in zip(targets, answers, strict=True)
    ]


def parse_outcome(reply: Reply) -> CommandOutcome | None:
    if reply is None:
        return None
    state, _, at = text(reply).partition(" ")
    return CommandOutcome(TargetState(state), int(at))


def parse_held_bytes(reply: Reply) -> int:
    """The bytes of the payloads of results in the store, from the record's field `sum`."""
    return 0 if reply is None else int(octets(reply).split(b"|")[2])


def parse_agent(reply: Reply) -> str | None:
    return None if reply is None else _decode_about(octets(reply)).agent


def parse_owner(reply: Reply) -> OwnedCommand | None:
    if reply is None:
        return None
    about = _decode_about(octets(reply))
    return OwnedCommand(about.subject, about.method, about.agent)


def parse_origin(reply: Reply) -> CommandOrigin | None:
    return None if reply is None else _origin(_decode_about(octets(reply)))


def follower_names(reply: Reply) -> tuple[str, ...]:
    """The lease names of the followers."""
    return _split(octets(reply))


@lru_cache(maxsize=256)
def _split(names: bytes) -> tuple[str, ...]:
    """Many commands have the same followers."""
    return tuple(names.decode().split())


def _record(command: str, row: dict[bytes, bytes]) -> CommandRecord:
    targets = []
    for field, packed in row.items():
        if not field.startswith(b"t:"):
            continue
        agent = field[2:]
        state, gen, next_chunk, attempt, _memory = packed.split(b"|", 4)
        blob = row.get(b"e:" + agent)
        targets.append(
            Target(
                agent.decode(), TargetState(state.decode()), int(gen), int(next_chunk), int(attempt),
                None if blob is None else _decode_ending(blob),
            )
        )  # fmt: skip
    about = _decode_about(row[b"about"])
    _, seq, _, truncated = row[b"sum"].split(b"|")
    return CommandRecord(
        command, about.agent, _origin(about), about.lane, int(row[b"terms"].partition(b"|")[0]),
        about.hold_until, int(row.get(b"cancel", b"0")), b"in" in row, int(seq), truncated == b"1", targets,
        about.subject, about.signature, int(row.get(b"dropped", b"0")),
    )  # fmt: skip


def _origin(about: CommandMetadata) -> CommandOrigin:
    return CommandOrigin(about.method, about.traceparent, about.began, about.created)


def _settled(answer: list[Reply]) -> Settled:
    kind = text(answer[0])
    return Settled(kind, follower_names(answer[2]), text(answer[1])) if kind == "ended" else Settled(kind)
