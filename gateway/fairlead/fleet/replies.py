"""What the replies of the commands' scripts and rows mean, as values of `command`.

Called by `Commands` alone, which says how each reply was asked for; the scripts say in what form it comes. Nothing here
asks Redis. A reply of another form is a defect of ours, and raises as one.
"""

from __future__ import annotations

import msgspec

from fairlead.fleet import lua
from fairlead.fleet.command import (
    About,
    Beyond,
    Command,
    Delivery,
    Ending,
    Outcome,
    Page,
    Result,
    Settled,
    Stored,
    Taken,
    Target,
)
from fairlead.fleet.schema import State
from fairlead.store.reply import Reply, integer, items, octets, table, text
from fairlead.telemetry.timing import Origin

_decode_about = msgspec.msgpack.Decoder(About).decode
_decode_ending = msgspec.msgpack.Decoder(Ending).decode


def created(reply: Reply) -> bool:
    word = text(items(reply)[0])
    if word == "late":
        raise lua.late("command")
    return word == "ok"


def taken(reply: Reply) -> Taken | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind == "queued":
        return Taken(True)
    if kind not in ("sent", "running"):
        return _settled(answer)
    return Taken(False, kind == "running", integer(answer[1]), octets(answer[4]) != b"", answer[5] == 1)


def fenced(reply: Reply) -> Delivery | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind not in ("sent", "running"):
        return _settled(answer)
    about = _decode_about(octets(answer[7]))
    return Delivery(
        kind == "running", integer(answer[1]), integer(answer[2]), integer(answer[3]), octets(answer[4]) != b"",
        answer[5] == 1, text(answer[6]), octets(answer[8]), about.lane, _origin(about),
    )  # fmt: skip


def stored(reply: Reply) -> Stored:
    answer = items(reply)
    return Stored(text(answer[0]), text(answer[2]), names(answer[3]), integer(answer[4]))


def added(reply: Reply) -> tuple[str, int]:
    answer = items(reply)
    number = answer[1] if len(answer) > 1 else 0
    return text(answer[0]), number if isinstance(number, int) else 0


def page(command: str, reply: Reply) -> Page | Beyond | None:
    answer = items(reply)
    word = text(answer[0])
    if word in ("beyond", "trimmed"):
        return Beyond(word == "trimmed", integer(answer[1]))
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
    return Page(integer(answer[1]), results, _record(command, record) if record else None, integer(answer[4]))


def found(command: str, reply: Reply) -> Command | None:
    """The whole record, of all fields of its row."""
    row = table(reply)
    return _record(command, row) if row else None


def timed_out(command: str, reply: Reply) -> Command | Settled:
    answer = items(reply)
    kind = text(answer[0])
    if kind == "open":
        return _record(command, table(answer[1:]))
    if kind == "ended":
        origin = _origin(_decode_about(octets(answer[2])))
        return Settled(kind, names(answer[1]), State.TIMEOUT.value, origin)
    return Settled(kind, names(answer[2]), text(answer[1])) if kind == "over" else Settled(kind)


def outcome(reply: Reply) -> Outcome | None:
    if reply is None:
        return None
    state, _, at = text(reply).partition(" ")
    return Outcome(State(state), int(at))


def held(reply: Reply) -> int:
    """Bytes of results, of the row's sums."""
    return 0 if reply is None else int(octets(reply).split(b"|")[2])


def agent(reply: Reply) -> str | None:
    return None if reply is None else _decode_about(octets(reply)).agent


def origin(reply: Reply) -> Origin | None:
    return None if reply is None else _origin(_decode_about(octets(reply)))


def names(reply: Reply) -> tuple[str, ...]:
    """Of followers."""
    return tuple(octets(reply).decode().split())


def _record(command: str, row: dict[bytes, bytes]) -> Command:
    targets = []
    for field, packed in row.items():
        if not field.startswith(b"t:"):
            continue
        agent = field[2:]
        state, gen, next_chunk, attempt, _memory = packed.split(b"|", 4)
        blob = row.get(b"e:" + agent)
        targets.append(
            Target(
                agent.decode(), State(state.decode()), int(gen), int(next_chunk), int(attempt),
                None if blob is None else _decode_ending(blob),
            )
        )  # fmt: skip
    about = _decode_about(row[b"about"])
    _, seq, _, truncated = row[b"sum"].split(b"|")
    return Command(
        command, about.agent, _origin(about), about.lane, int(row[b"terms"].partition(b"|")[0]),
        about.hold_until, int(row.get(b"cancel", b"0")), b"in" in row, int(seq), truncated == b"1", targets,
    )  # fmt: skip


def _origin(about: About) -> Origin:
    return Origin(about.method, about.traceparent, about.began, about.created)


def _settled(answer: list[Reply]) -> Settled:
    kind = text(answer[0])
    return Settled(kind, names(answer[2]), text(answer[1])) if kind == "ended" else Settled(kind)
