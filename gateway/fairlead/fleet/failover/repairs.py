"""Says again, after a failover, what a node knows of the commands that it had a part in.

`Recovery` calls it on the node that knows. Each call may be repeated, and changes a record only where it says less than
the node knows. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.fleet import command_replies, lua, schema
from fairlead.fleet.command_record import OUTCOME_UNKNOWN, AppendResult, StoredEnd, command_keys
from fairlead.fleet.failover.recent_steps import AcceptedStep, EndedStep, EndStep, KeyStep, pack_end, unpack_end
from fairlead.shards import command_shard
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Arg, Reply, integer, items, octets, text
from fairlead.store.store import Store

LOST: Final = StoredEnd(
    code="record_lost",
    message="Redis lost this command when its primary failed: whether it ran is not known, and it does not run again",
)

LATER_MS: Final = 60_000
"""When the command sweeper looks at a record that was opened again: long after its end was stored."""
ASIDE_MS: Final = 600_000
"""How long the end of a command without a record waits for the node that accepted it, which may be frozen."""
ASIDE_BYTES: Final = 1 << 20
"""The size that is expected of what was set aside: it may be much more, so that no batch asks for two of them."""

_encode = msgspec.msgpack.Encoder().encode
_END: Final = ("e", 5)
"""The first of the arguments of the step of an append that ends a command, and their number."""


class Recalled(msgspec.Struct, frozen=True):
    """The answer to `recall`. `why` is ok, later (it was sent again since), gone, over or ended (its outcome is
    unknown). `gen` is that of the record if it is ok, `state` the final one if it is over."""

    why: str
    gen: int = 0
    state: str = ""
    followers: tuple[str, ...] = ()


class Repairs:
    def __init__(self, store: Store, output_limit: int) -> None:
        self._store = store
        self._output_limit = output_limit

    def recall(self, command: str, agent: str, gen: int, memory: str, attempt: int = 0) -> Answer[Recalled]:
        """Say that the command was sent to the agent with this memory: see recall_command.lua. `attempt` is 0 if it is
        not known."""
        args = (agent, gen, memory, attempt, _encode(OUTCOME_UNKNOWN))
        keys = command_keys(command, agent)
        return Answer(self._store.run(lua.RECALL_COMMAND, keys, args, priority=Priority.RESULTS), _recalled)

    def bind_key(self, step: KeyStep) -> Answer[None]:
        """Bind an Idempotency-Key again, unless it is bound."""
        reply = self._store.write(
            "SET", step.key, step.value, "NX", "PX", schema.REMEMBERED_MS, priority=Priority.RESULTS
        )  # fmt: skip
        return Answer(reply, lambda _: None)

    def end_lost(self, step: AcceptedStep) -> Answer[tuple[bool, bool]]:
        """Have a command whose record is gone end as `record_lost`. The answer is whether it was gone, and whether
        another node has set aside how it ended."""
        keys = schema.cmd_key(step.command), schema.outcome_key(step.command), schema.aside_key(step.command)
        limit = "" if step.results_limit is None else step.results_limit
        args = (step.agent, *step.terms, step.about, _encode(LOST), limit)
        reply = self._store.run(lua.END_LOST, keys, args, priority=Priority.RESULTS)
        return Answer(reply, lambda answer: (integer(items(answer)[0]) == 1, integer(items(answer)[1]) > 0))

    def reopen(self, step: EndStep) -> Answer[str]:
        """Open the record of a command again that has ended as `record_lost`, to store how it ended, of which `step` is
        a part: see reopen_lost.lua."""
        command, memory = step.command, "" if isinstance(step, EndedStep) else step.memory
        keys = schema.cmd_key(command), schema.outcome_key(command), schema.deadlines_key(command_shard(command))
        args = (step.agent, command, _encode(LOST), LATER_MS, memory)
        return Answer(self._store.run(lua.REOPEN_LOST, keys, args, priority=Priority.RESULTS), text)

    def set_aside(self, step: EndStep, *, first: bool) -> Answer[bool]:
        """Leave one step of a command that has no record, the `first` or a further one, to the node that accepted the
        command. The answer is False if there is a record now."""
        keys = schema.cmd_key(step.command), schema.outcome_key(step.command), schema.aside_key(step.command)
        args = ("1" if first else "", ASIDE_MS, pack_end(step))
        reply = self._store.run(lua.SET_ASIDE, keys, args, priority=Priority.RESULTS)
        return Answer(reply, lambda answer: integer(answer) == 1)

    def read_aside(self, command: str) -> Answer[list[EndStep]]:
        """The steps of a command that another node has set aside, in their order."""
        key = schema.aside_key(command)
        reply = self._store.submit("LRANGE", key, 0, -1, priority=Priority.RESULTS, expected=ASIDE_BYTES)
        return Answer(reply, lambda answer: [unpack_end(octets(step)) for step in items(answer)])

    def forget_aside(self, command: str) -> Answer[None]:
        return Answer(self._store.submit("UNLINK", schema.aside_key(command)), lambda _: None)

    def append(self, command: str, agent: str, gen: int, steps: Sequence[Arg]) -> Answer[AppendResult]:
        """Store again what the agent sent. What is stored already is left as it is."""
        args = (agent, gen, self._output_limit, *steps)
        reply = self._store.run(lua.APPEND_RESULTS, command_keys(command, agent), args, priority=Priority.RESULTS)
        return Answer(reply, command_replies.parse_append)

    def end(self, step: EndedStep, *, truncated: bool = False) -> Answer[tuple[str, str]]:
        """End a command again as a node had ended it. The answer is ok if it was open, gone, or over with its state.
        `truncated` says that its results are lost."""
        return self._finish(
            step.command, step.agent, step.state.value, _encode(step.ending), step.ending.code, "1" if truncated else ""
        )

    def end_without_results(self, command: str, agent: str, steps: Sequence[Arg]) -> Answer[bool] | None:
        """End a command as its agent had ended it, although some of its results are lost, which marks it as truncated.
        None if the steps do not end it."""
        if not ends(steps):
            return None
        _, _, state, blob, code = steps[-_END[1] :]
        return self._finish(command, agent, state, blob, code, "1").map(lambda answer: answer[0] == "ok")

    def _finish(
        self, command: str, agent: str, state: Arg, blob: Arg, code: Arg, truncated: str
    ) -> Answer[tuple[str, str]]:
        args = (agent, state, blob, "", code, truncated)
        reply = self._store.run(lua.FINISH_COMMAND, command_keys(command, agent), args, priority=Priority.RESULTS)
        return Answer(reply, _finished)

    def ask_cancel(self, command: str, agent: str) -> Answer[bool]:
        """Note again that the end of a command was asked for, and never end it: its agent has it. The answer is whether
        it is open."""
        reply = self._store.run(lua.CANCEL_COMMAND, command_keys(command, agent), (agent, ""))
        return Answer(reply, lambda answer: text(items(answer)[0]) == "asked")


def ends(steps: Sequence[Arg]) -> bool:
    """Whether these steps of an append end the command."""
    kind, count = _END
    return len(steps) >= count and steps[-count] == kind


def _finished(reply: Reply) -> tuple[str, str]:
    why, *more = items(reply)
    return text(why), text(more[0]) if text(why) == "over" else ""


def _recalled(reply: Reply) -> Recalled:
    answer = items(reply)
    why = text(answer[0])
    if why == "ok":
        return Recalled(why, gen=integer(answer[1]))
    if why == "over":
        return Recalled(why, state=octets(answer[1]).decode(), followers=command_replies.follower_names(answer[2]))
    return Recalled(why, followers=command_replies.follower_names(answer[1]) if why == "ended" else ())
