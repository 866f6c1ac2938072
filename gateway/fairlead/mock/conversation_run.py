"""One conversation under way: says what the gateway says, expects what the agent says, and stops at a fault.

Made by the player for each conversation. With a process of the agent at hand it gives the orders that lead to what the
script's agent does; without one it plays what needs no more than a link.
"""

from __future__ import annotations

import base64
import time
from collections import Counter

from fairlead.mock.agent_under_test import SOON, AgentUnderTest, why
from fairlead.mock.comparison import Violation, differences, show
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
)
from fairlead.mock.server import AgentViolation, LinkClosed, MockLink

AWAY = 1.5
"""Seconds without an attempt after which an agent stays away: fifteen of SOON's longest pauses."""
EARLY = 0.02
"""Seconds by which a hello may be early: two clocks measure."""


class NotPlayable(Exception):
    """This conversation is not for this agent; the words say why."""


class ConversationRun:
    """Raises Misconduct, and NotPlayable when the conversation is not for this agent."""

    def __init__(self, agent: AgentUnderTest, conversation: Conversation) -> None:
        self._agent = agent
        self._conversation = conversation
        self._steps = conversation.steps
        self._link: MockLink | None = None
        self.at = 0
        """The step, from 1 on."""
        self._moment = 0.0
        """When the agent could know of the newest step that is no hello."""
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
            began = time.monotonic()
            try:
                await self._step(index, step)
            except LinkClosed as e:
                raise AgentViolation(self._fault(f"the agent closed with {e.code}: {why(e)}", step)) from e
            if step.agent is None or step.agent["t"] != HELLO:
                # An agent's pause begins when it hears of the end, which may be before all of the step is done here.
                by_agent = step.agent is not None or (step.close is not None and step.close.by == "agent")
                self._moment = time.monotonic() if by_agent else began
        if any(step.leaves for step in self._steps) and not await self._agent.process.ended(self._agent.patience):
            raise AgentViolation(Violation(f"the process did not end within {self._agent.patience:g} s", "9"))

    async def end(self) -> None:
        """Close what is open."""
        if self._link is not None:
            await self._agent.send_back(self._link)
            self._link.abort()

    async def _step(self, index: int, step: Step) -> None:
        agent = self._agent
        if step.agent is not None:
            await self._hear(index, step, step.agent)
        elif step.gateway is not None:
            await self._gateway(step.gateway, last=index == len(self._steps) - 1)
        elif step.close is not None:
            await self._close(step)
        elif step.lost:
            self._open.abort()
        elif step.restart:
            await agent.restart()
            self._written.clear()
        elif step.takes:
            number = await agent.process.take(step.takes)
            if not await agent.process.done(number, agent.patience):
                what = f"the order to read one chunk of input was not carried out within {agent.patience:g} s"
                raise AgentViolation(self._fault(what, step, "7"))
        elif step.writes:
            self._written[step.writes] += 1
            await agent.process.write({"id": step.writes, "kind": step.kind, "payload": step.payload})
            # The write waits for credit, so it is not done; but orders are read in turn.
            await agent.process.done(await agent.process.order("ready"), agent.patience)
        elif step.ends:
            self._ended.add(step.ends)
            await agent.process.end({"id": step.ends, "payload": step.payload or _result(step.bytes)})
            await agent.process.done(await agent.process.order("ready"), agent.patience)
        elif step.refuses is not None:
            agent.listener.refuse_next(step.refuses)
        elif step.sends:
            await self._open.send(vector_to_agents(step.sends, agent.listener.encoding))
        elif step.leaves:
            self._leaving = True
            await agent.process.order("leave")
        elif step.away:
            await self._away(step)

    @property
    def _open(self) -> MockLink:
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
        except LinkClosed:
            if not self._leaving:
                raise
            return  # it had closed already, which it may; what it said before is still to be heard
        if not last:
            await self._open.read_up(self._agent.patience)

    async def _hear(self, index: int, step: Step, expected: Raw) -> None:
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
            heard = await self._open.hear(self._agent.patience)
            if heard is None:
                what = f"nothing came within {self._agent.patience:g} s"
                raise AgentViolation(self._fault(what, step, expected=show(expected)))
            differs = differences(expected, heard)
            if not differs:
                return
            ahead = self._ahead(index, heard)
            if ahead is None:
                raise AgentViolation(
                    self._fault(
                        "it said something else", step, expected=show(expected), came=show(heard), differs=differs
                    )
                )
            self._early.add(ahead)

    async def _order(self, expected: Raw) -> None:
        """Make the agent do what leads to this message, unless it is one that it sends again."""
        process, kind, stream = self._agent.process if self._commands else None, expected["t"], expected.get("id", "")
        if process is None:
            return
        if kind == CHUNK and expected["n"] == self._written[stream]:
            self._written[stream] += 1
            await process.write(expected)
        elif kind == END and expected.get("state", "ok") == "ok" and stream not in self._ended:
            self._ended.add(stream)
            await process.end(expected)
        elif kind == EVENT and stream not in self._emitted:
            self._emitted.add(stream)
            await process.emit(expected)

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
        agent = self._agent
        timeout = step.within / 1000 if step.within else None
        former, before = self._link, self._moment or time.monotonic()
        try:
            link = await agent.accept(timeout)
        except AgentViolation as e:
            within = f" within {step.within} ms" if step.within else ""
            raise AgentViolation(self._fault(f"{e.fault.what}{within}", step, e.fault.section)) from e
        waited = time.monotonic() - before
        if waited + EARLY < step.after / 1000:
            what = f"it came back after {waited * 1000:.0f} ms, expected {step.after} at least"
            raise AgentViolation(self._fault(what, step))
        self._link = link
        hello = await agent.greet(link)
        if former is not None:
            former.abort()
        if self._conversation.durable and not agent.journal:
            raise NotPlayable("the agent names no journal in hello.caps, so it is not durable")
        if any(s.restart and not s.journal for s in self._steps) and agent.journal:
            raise NotPlayable("the agent has a journal, which outlives its process")
        kept = dict(hello.get("have", {}))
        for command, wanted in expected.get("have", {}).items():
            if kept.get(command, -1) >= wanted:
                self._input[command], kept[command] = kept[command], wanted
        if differs := differences(expected, {**hello, "have": kept}):
            raise AgentViolation(self._fault("it said something else", step, "8", show(expected), show(hello), differs))

    async def _beat(self, index: int, step: Step) -> None:
        """Of an idle agent; before welcome it is merely possible."""
        if not any(s.gateway is not None and s.gateway["t"] == WELCOME for s in self._steps[:index]):
            return
        welcome = next(s.gateway for s in reversed(self._steps[:index]) if s.gateway and s.gateway["t"] == WELCOME)
        if welcome["hb"] / 1000 > self._agent.patience:
            return
        heard = await self._open.hear(self._agent.patience, quiet=False)
        if heard is None or heard["t"] != HB:
            what = f"an agent that has sent nothing for `hb` ({welcome['hb']} ms) MUST send hb"
            raise AgentViolation(self._fault(what, step, "4", came=show(heard) if heard else "nothing"))

    async def _close(self, step: Step) -> None:
        assert step.close is not None
        if step.close.by == "gateway":
            await self._open.socket.close(step.close.code)
            return
        try:
            while (heard := await self._open.hear(self._agent.patience, quiet=False)) is not None:
                if heard["t"] not in (BYE, HB, CREDIT, ACK):
                    what = f"it went on, expected a close with {step.close.code}"
                    raise AgentViolation(self._fault(what, step, came=show(heard)))
        except LinkClosed as e:
            if e.code != step.close.code:
                what = f"it closed with {e.code} ({why(e)}), expected {step.close.code}"
                raise AgentViolation(self._fault(what, step)) from e
            return
        what = f"it did not close within {self._agent.patience:g} s, expected a close with {step.close.code}"
        raise AgentViolation(self._fault(what, step))

    async def _away(self, step: Step) -> None:
        link = await self._agent.listener.accept(AWAY)
        if link is not None:
            link.abort()
            what = "it connects again: after a code from 4500 on an agent MUST NOT come back by itself"
            raise AgentViolation(self._fault(what, step, "9"))
        await self._agent.process.kill()  # whether it has ended or waits for its operator

    def _fault(
        self,
        what: str,
        step: Step,
        section: str = "",
        expected: str = "",
        came: str = "",
        differs: tuple[str, ...] = (),
    ) -> Violation:
        return Violation(what, section or self._conversation.section, self.at, expected, came, differs, step.note)


def _result(size: int) -> str:
    """A result of so many bytes, in base64."""
    return base64.b64encode(b'"' + b"x" * (size - 2) + b'"').decode()
