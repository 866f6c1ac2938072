"""Plays conversations to one agent: says what the gateway says, expects what the agent says, and stops at a fault.

Made by the command. With a `Puppet` it makes the agent do what the script's agent does, with a new process for each
conversation: an agent whose links are all short comes back ever later (section 10 of docs/protocol.md). Without one it
plays what needs no more than a link. An agent that may remember something is welcomed once with nothing open before a
conversation, so that none begins with what another has left.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections import Counter
from dataclasses import dataclass, replace

from fairlead.mock.judge import Fault, differences, show
from fairlead.mock.listener import Gone, Link, Listener, Misconduct
from fairlead.mock.puppet import Puppet
from fairlead.mock.script import (
    ACK,
    BYE,
    CHUNK,
    CREDIT,
    END,
    EVENT,
    HB,
    HELLO,
    LATER,
    WELCOME,
    Conversation,
    Needs,
    Raw,
    Step,
    vector_to_agents,
    with_fresh_ids,
)

SOON = {"first": 20, "base": 20, "cap": 100}
"""The retry policy of a welcome that names none, in ms: nobody wants to wait for reconnects here."""
RETURN = {"t": BYE, "code": 4000, "why": "the next conversation", "retry": 1000}
"""Ends a link on which nothing is tested. A second is a pause that every agent takes as it is named."""
LONGEST = 65.0
"""Seconds to wait for an agent that comes back by the policy, after many short links: its longest pause is 60 s."""
LOOK = 0.25
"""Seconds between two looks whether the agent's process has ended, while it is waited for."""
AWAY = 1.5
"""Seconds without an attempt after which an agent stays away: fifteen of SOON's longest pauses."""
EARLY = 0.02
"""Seconds by which a hello may be early: two clocks measure."""
CLEAR = {"t": WELCOME, "sid": "clear", "gen": 1, "now": 0, "hb": 25_000, "retry": SOON}
"""Nothing is open: the agent drops what it has."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one conversation: `fault` when the agent did wrong, `skipped` in words when it was not played."""

    conversation: Conversation
    fault: Fault | None = None
    skipped: str = ""


class _Left(Exception):
    """This conversation is not for this agent; the words say why."""


class Player:
    def __init__(self, listener: Listener, puppet: Puppet | None, patience: float) -> None:
        """`patience`: seconds for anything that the agent must do."""
        self._listener = listener
        self._puppet = puppet
        self._patience = patience
        self._boot = ""
        self._conn = 0
        self._journal = ""
        self._fresh = False
        """A new process of this agent remembers nothing."""

    async def play(self, conversation: Conversation) -> Outcome:
        """Play one."""
        if self._puppet is None and conversation.needs is not Needs.NOTHING:
            return Outcome(conversation, skipped=f"it needs {conversation.needs.value}: tell how to start the agent")
        ids = [secrets.token_hex(6) for _ in range(4)]
        scene = _Scene(self, with_fresh_ids(conversation, ids))
        try:
            await self._clear()
            await scene.play()
        except _Left as e:
            return Outcome(conversation, skipped=str(e))
        except Misconduct as e:
            return Outcome(conversation, replace(e.fault, step=e.fault.step or scene.at))
        finally:
            await scene.end()
        return Outcome(conversation)

    async def _clear(self) -> None:
        """A link on which nothing is open, so that the agent has nothing of the conversation before."""
        if self._puppet is not None:
            await self.restart()
            if self._fresh:
                return
        link = await self.accept()
        try:
            await self.greet(link)
            await link.say(CLEAR)
            await link.read_up(self._patience)
            while (await link.hear(0.05)) is not None:  # events that had no receipt
                pass
            if link.received:
                await link.say({"t": 11, "s": link.received})
                await link.read_up(self._patience)
        except Gone as e:
            raise Misconduct(Fault(f"the agent closed with {e.code} when nothing was open: {_why(e)}", "8")) from e
        await self.send_back(link)

    async def send_back(self, link: Link) -> None:
        """Close a link so that the agent comes back soon."""
        with contextlib.suppress(Gone):
            await link.say(RETURN)
        await link.socket.close(4000)

    async def accept(self, timeout: float | None = None) -> Link:
        """The agent's next connection."""
        usual = self._patience if self._puppet is not None else max(self._patience, LONGEST)
        deadline = time.monotonic() + (usual if timeout is None else timeout)
        while (left := deadline - time.monotonic()) > 0:
            link = await self._listener.accept(min(left, LOOK))
            if link is not None:
                return link
            if self._puppet is not None and not self._puppet.running:
                break  # it connects no more
        if self._listener.faults:
            raise Misconduct(self._listener.faults.pop(0))
        what = "the agent does not connect"
        if self._puppet is not None and not self._puppet.running:
            what = f"the agent's process has ended with {self._puppet.exit_code}"
        raise Misconduct(Fault(what, "10"))

    async def greet(self, link: Link) -> Raw:
        """The hello, which must be the first message, of the same boot and with a greater `conn`."""
        try:
            hello = await link.hear(self._patience, quiet=False)
        except Gone as e:
            raise Misconduct(Fault(f"the agent closed with {e.code} before its hello", "4")) from e
        if hello is None:
            raise Misconduct(Fault(f"no hello within {self._patience:g} s of the upgrade", "4"))
        if hello["t"] != HELLO:
            raise Misconduct(Fault("the first message of a connection MUST be hello", "4", came=show(hello)))
        boot, conn = hello["boot"], hello["conn"]
        if self._boot and boot != self._boot and self._puppet is not None:
            what = f"the boot is {boot!r} now and was {self._boot!r}, although the process is the same"
            raise Misconduct(Fault(what, "3", came=show(hello)))
        if boot == self._boot and conn <= self._conn:
            what = f"conn is {conn} and was {self._conn}: it MUST grow with every attempt"
            raise Misconduct(Fault(what, "10", came=show(hello)))
        self._boot, self._conn = boot, conn
        journal = str(hello.get("caps", {}).get("journal", ""))
        if self._journal and journal and journal != self._journal:
            raise Misconduct(Fault("the id of the journal has changed", "8", came=show(hello)))
        self._journal = journal
        self._fresh = not journal
        return hello

    async def restart(self) -> None:
        """The process ends without a word and starts anew."""
        assert self._puppet is not None
        await self._puppet.kill()
        self._boot, self._conn = "", 0
        self._listener.forget()
        await self._puppet.start()

    @property
    def puppet(self) -> Puppet:
        assert self._puppet is not None, "no orders are given without a process"
        return self._puppet

    @property
    def patience(self) -> float:
        return self._patience

    @property
    def listener(self) -> Listener:
        return self._listener

    @property
    def journal(self) -> str:
        return self._journal


class _Scene:
    """One conversation under way."""

    def __init__(self, player: Player, conversation: Conversation) -> None:
        self._player = player
        self._conversation = conversation
        self._steps = conversation.steps
        self._link: Link | None = None
        self.at = 0
        """The step, from 1 on."""
        self._moment = 0.0
        self._leaving = False
        self._early: set[int] = set()
        """Steps that came before their turn, which is free between streams."""
        self._written: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._emitted: set[str] = set()
        self._input: dict[str, int] = {}
        """The first input chunk that each command wants on this link."""

    async def play(self) -> None:
        for index, step in enumerate(self._steps):
            self.at = index + 1
            try:
                await self._step(index, step)
            except Gone as e:
                raise Misconduct(self._fault(f"the agent closed with {e.code}: {_why(e)}", step)) from e
            if step.agent is None or step.agent["t"] != HELLO:
                self._moment = time.monotonic()
        if any(step.leaves for step in self._steps) and not await self._player.puppet.ended(self._player.patience):
            raise Misconduct(Fault(f"the process did not end within {self._player.patience:g} s", "9"))

    async def end(self) -> None:
        """Close what is open."""
        if self._link is not None:
            await self._player.send_back(self._link)
            self._link.abort()

    async def _step(self, index: int, step: Step) -> None:
        player = self._player
        if step.agent is not None:
            await self._agent(index, step, step.agent)
        elif step.gateway is not None:
            await self._gateway(step.gateway, last=index == len(self._steps) - 1)
        elif step.close is not None:
            await self._close(step)
        elif step.lost:
            self._open.abort()
        elif step.restart:
            await player.restart()
            self._written.clear()
        elif step.takes:
            number = await player.puppet.take(step.takes)
            if not await player.puppet.done(number, player.patience):
                what = f"the order to read one chunk of input was not carried out within {player.patience:g} s"
                raise Misconduct(self._fault(what, step, "7"))
        elif step.writes:
            self._written[step.writes] += 1
            await player.puppet.write({"id": step.writes, "kind": step.kind, "payload": step.payload})
            # The write waits for credit, so it is not done; but orders are read in turn.
            await player.puppet.done(await player.puppet.order("ready"), player.patience)
        elif step.ends:
            self._ended.add(step.ends)
            await player.puppet.end({"id": step.ends, "payload": step.payload or _result(step.bytes)})
            await player.puppet.done(await player.puppet.order("ready"), player.patience)
        elif step.refuses is not None:
            player.listener.refuse_next(step.refuses)
        elif step.sends:
            await self._open.send(vector_to_agents(step.sends, player.listener.encoding))
        elif step.leaves:
            self._leaving = True
            await player.puppet.order("leave")
        elif step.away:
            await self._away(step)

    @property
    def _open(self) -> Link:
        assert self._link is not None, "the script begins with a hello"
        return self._link

    async def _gateway(self, message: Raw, last: bool) -> None:
        kind = message["t"]
        if kind == HB:
            return  # an answer, which the link gives by itself
        if kind == WELCOME and "retry" not in message:
            message = {**message, "retry": SOON}
        if kind == CHUNK and message["n"] < self._input.get(message["id"], 0):
            return  # an agent that keeps unread input has said so in its hello
        try:
            await self._open.say(message)
        except Gone:
            if not self._leaving:
                raise
            return  # it had closed already, which it may; what it said before is still to be heard
        if not last:
            await self._open.read_up(self._player.patience)

    async def _agent(self, index: int, step: Step, expected: Raw) -> None:
        kind = expected["t"]
        if index in self._early or kind >= LATER or kind == CREDIT:
            return
        if kind == HELLO:
            await self._hello(step, expected)
            return
        if kind == HB:
            await self._beat(index, step)
            return
        await self._order(expected)
        while True:
            heard = await self._open.hear(self._player.patience)
            if heard is None:
                what = f"nothing came within {self._player.patience:g} s"
                raise Misconduct(self._fault(what, step, expected=show(expected)))
            differs = differences(expected, heard)
            if not differs:
                return
            ahead = self._ahead(index, heard)
            if ahead is None:
                raise Misconduct(
                    self._fault(
                        "it said something else", step, expected=show(expected), came=show(heard), differs=differs
                    )
                )
            self._early.add(ahead)

    async def _order(self, expected: Raw) -> None:
        """Make the agent do what leads to this message, unless it is one that it sends again."""
        puppet, kind, stream = self._player.puppet if self._commands else None, expected["t"], expected.get("id", "")
        if puppet is None:
            return
        if kind == CHUNK and expected["n"] == self._written[stream]:
            self._written[stream] += 1
            await puppet.write(expected)
        elif kind == END and expected.get("state", "ok") == "ok" and stream not in self._ended:
            self._ended.add(stream)
            await puppet.end(expected)
        elif kind == EVENT and stream not in self._emitted:
            self._emitted.add(stream)
            await puppet.emit(expected)

    @property
    def _commands(self) -> bool:
        return self._conversation.needs is not Needs.NOTHING

    def _ahead(self, index: int, heard: Raw) -> int | None:
        """The later step of this run that `heard` is, if it is of another stream: between streams there is no order."""
        mine = (self._steps[index].agent or {}).get("id")
        for later in range(index + 1, len(self._steps)):
            expected = self._steps[later].agent
            if expected is None:
                return None
            if later not in self._early and expected.get("id") != mine and not differences(expected, heard):
                return later
        return None

    async def _hello(self, step: Step, expected: Raw) -> None:
        player = self._player
        timeout = step.within / 1000 if step.within else None
        former, before = self._link, self._moment or time.monotonic()
        try:
            link = await player.accept(timeout)
        except Misconduct as e:
            within = f" within {step.within} ms" if step.within else ""
            raise Misconduct(self._fault(f"{e.fault.what}{within}", step, e.fault.section)) from e
        waited = time.monotonic() - before
        if waited + EARLY < step.after / 1000:
            what = f"it came back after {waited * 1000:.0f} ms, expected {step.after} at least"
            raise Misconduct(self._fault(what, step))
        self._link = link
        hello = await player.greet(link)
        if former is not None:
            former.abort()
        if self._conversation.durable and not player.journal:
            raise _Left("the agent names no journal in hello.caps, so it is not durable")
        if any(s.restart and not s.journal for s in self._steps) and player.journal:
            raise _Left("the agent has a journal, which outlives its process")
        kept = dict(hello.get("have", {}))
        for command, wanted in expected.get("have", {}).items():
            if kept.get(command, -1) >= wanted:
                self._input[command], kept[command] = kept[command], wanted
        if differs := differences(expected, {**hello, "have": kept}):
            raise Misconduct(
                self._fault("it said something else", step, "8", show(expected), show(hello), differs)
            )  # fmt: skip

    async def _beat(self, index: int, step: Step) -> None:
        """Of an idle agent; before welcome it is merely possible."""
        if not any(s.gateway is not None and s.gateway["t"] == WELCOME for s in self._steps[:index]):
            return
        welcome = next(s.gateway for s in reversed(self._steps[:index]) if s.gateway and s.gateway["t"] == WELCOME)
        if welcome["hb"] / 1000 > self._player.patience:
            return
        heard = await self._open.hear(self._player.patience, quiet=False)
        if heard is None or heard["t"] != HB:
            what = f"an agent that has sent nothing for `hb` ({welcome['hb']} ms) MUST send hb"
            raise Misconduct(self._fault(what, step, "4", came=show(heard) if heard else "nothing"))

    async def _close(self, step: Step) -> None:
        assert step.close is not None
        if step.close.by == "gateway":
            await self._open.socket.close(step.close.code)
            return
        try:
            while (heard := await self._open.hear(self._player.patience, quiet=False)) is not None:
                if heard["t"] not in (BYE, HB, CREDIT, ACK):
                    what = f"it went on, expected a close with {step.close.code}"
                    raise Misconduct(self._fault(what, step, came=show(heard)))
        except Gone as e:
            if e.code != step.close.code:
                what = f"it closed with {e.code} ({_why(e)}), expected {step.close.code}"
                raise Misconduct(self._fault(what, step)) from e
            return
        what = f"it did not close within {self._player.patience:g} s, expected a close with {step.close.code}"
        raise Misconduct(self._fault(what, step))

    async def _away(self, step: Step) -> None:
        link = await self._player.listener.accept(AWAY)
        if link is not None:
            link.abort()
            what = "it connects again: after a code from 4500 on an agent MUST NOT come back by itself"
            raise Misconduct(self._fault(what, step, "9"))
        await self._player.puppet.kill()  # whether it has ended or waits for its operator

    def _fault(
        self,
        what: str,
        step: Step,
        section: str = "",
        expected: str = "",
        came: str = "",
        differs: tuple[str, ...] = (),
    ) -> Fault:
        return Fault(what, section or self._conversation.section, self.at, expected, came, differs, step.note)


def _result(size: int) -> str:
    """A result of so many bytes, in base64."""
    return base64.b64encode(b'"' + b"x" * (size - 2) + b'"').decode()


def _why(gone: Gone) -> str:
    return repr(gone.bye["why"]) if gone.bye is not None and gone.bye.get("why") else "it gave no reason"
