"""Plays one conversation: sends what the gateway sends, expects what the agent must send, and stops at the first
violation.

Made by `runner` for each conversation. If the mock gateway started the agent's process, it orders the agent to do what
the script's agent does; otherwise it plays only conversations that need nothing but a link.
"""

from __future__ import annotations

import time

from fairlead.mock.agent_under_test import SOON, AgentUnderTest, why
from fairlead.mock.comparison import Violation, differences, show
from fairlead.mock.link import AgentViolation, LinkClosed, MockLink
from fairlead.mock.orders import ScriptOrders
from fairlead.mock.script import (
    ACK,
    BYE,
    CHUNK,
    CREDIT,
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

STAYS_AWAY = 1.5
"""Seconds without an attempt after which an agent counts as staying away, which is fifteen times the longest pause of
SOON."""
CLOCK_TOLERANCE = 0.02
"""Seconds by which a hello may be early, because two clocks are involved."""


class NotPlayable(Exception):
    """This conversation does not fit this agent; the message says why."""


class ConversationRun:
    """Raises AgentViolation, and NotPlayable when the conversation is not for this agent."""

    def __init__(self, agent: AgentUnderTest, conversation: Conversation) -> None:
        self._agent = agent
        self._conversation = conversation
        self._steps = conversation.steps
        self._link: MockLink | None = None
        """The newest one."""
        self._old: MockLink | None = None
        """The last one that was welcomed, while the newest one is not: an agent that moves still uses it."""
        self._welcomed = False
        """Whether the newest one is welcomed."""
        self._grantable = 0
        """How many bytes of input may be granted on the old link: those that it had before the newest hello."""
        self.at = 0
        """The number of the current step, from 1."""
        self._last_close_at = 0.0
        """When the agent could know of the newest step that is not a hello."""
        self._leaving = False
        self._early: set[int] = set()
        """Steps whose messages came early: between streams there is no order."""
        self._orders = ScriptOrders(agent, conversation.needs is not Needs.NOTHING)
        self._input: dict[str, int] = {}
        """The first input chunk that each command wants on this link."""

    async def play(self) -> None:
        for index, step in enumerate(self._steps):
            self.at = index + 1
            began = time.monotonic()
            try:
                await self._step(index, step)
            except LinkClosed as e:
                raise AgentViolation(self._violation(f"the agent closed with {e.code}: {why(e)}", step)) from e
            if step.agent is None or step.agent["t"] != HELLO:
                # An agent's pause begins when it learns of the end, which may be before the whole step is done here.
                by_agent = step.agent is not None or (step.close is not None and step.close.by == "agent")
                self._last_close_at = time.monotonic() if by_agent else began
        if any(step.leaves for step in self._steps) and not await self._agent.process.ended(self._agent.timeout):
            raise AgentViolation(Violation(f"the process did not end within {self._agent.timeout:g} s", "9"))

    async def end(self) -> None:
        """Close the links that are open."""
        if self._link is not None:
            await self._agent.send_back(self._link)
            self._link.abort()
        if self._old is not None:
            self._old.abort()

    async def _step(self, index: int, step: Step) -> None:
        agent = self._agent
        if step.agent is not None:
            await self._expect(index, step, step.agent)
        elif step.gateway is not None:
            await self._gateway(step, step.gateway, last=index == len(self._steps) - 1)
        elif step.close is not None:
            await self._close(step)
        elif step.lost:
            self._open.abort()
        elif step.restart:
            await agent.restart()
            self._orders.process_restarted()
        elif step.takes:
            if not await self._orders.take_input(step.takes):
                what = f"the agent did not carry out the order to read one chunk of input within {agent.timeout:g} s"
                raise AgentViolation(self._violation(what, step, "7"))
        elif step.writes:
            await self._orders.write(step.writes, step.kind, step.payload)
        elif step.ends:
            await self._orders.end(step.ends, step.payload, step.bytes)
        elif step.refuses is not None:
            agent.server.refuse_next(step.refuses)
        elif step.sends:
            await self._open.send(vector_to_agents(step.sends, agent.server.encoding))
        elif step.leaves:
            self._leaving = True
            await agent.process.order("leave")
        elif step.away:
            await self._away(step)

    @property
    def _open(self) -> MockLink:
        assert self._link is not None, "the script begins with a hello"
        return self._link

    def _link_of(self, step: Step) -> MockLink:
        if not step.old:
            return self._open
        assert self._old is not None, "the script has a link that is welcomed before the newest one"
        return self._old

    async def _gateway(self, step: Step, message: Raw, last: bool) -> None:
        link = self._link_of(step)
        kind = message["t"]
        if kind == HB:
            return  # the answer to a heartbeat, which the link sends by itself
        if kind == WELCOME and "retry" not in message:
            message = {**message, "retry": SOON}
        if kind == CHUNK and message["n"] < self._input.get(message["id"], 0):
            return  # the agent has kept this input, as its hello says
        self._welcomed = self._welcomed or kind == WELCOME
        try:
            await link.send_message(message)
        except LinkClosed:
            if not self._leaving:
                raise
            return  # it has closed already, which it may; what it said before is still read
        if not last:
            await link.wait_until_read(self._agent.timeout)

    async def _expect(self, index: int, step: Step, expected: Raw) -> None:
        kind = expected["t"]
        if index in self._early or kind >= LATER or kind == CREDIT:
            return
        if kind == HELLO:
            await self._hello(step, expected)
            return
        if kind == HB:
            await self._heartbeat(index, step)
            return
        await self._orders.lead_to(expected)
        while True:
            received = await self._link_of(step).receive(self._agent.timeout)
            if received is None:
                what = f"no message came within {self._agent.timeout:g} s"
                raise AgentViolation(self._violation(what, step, expected=show(expected)))
            differs = differences(expected, received)
            if not differs:
                return
            ahead = self._ahead(index, received)
            if ahead is None:
                raise AgentViolation(
                    self._violation(
                        "the message is not the expected one",
                        step,
                        expected=show(expected),
                        received=show(received),
                        differs=differs,
                    )
                )
            self._early.add(ahead)

    def _ahead(self, index: int, received: Raw) -> int | None:
        """The later step that `received` belongs to, if it is of another stream: between streams there is no order."""
        command = (self._steps[index].agent or {}).get("id")
        for later in range(index + 1, len(self._steps)):
            expected = self._steps[later].agent
            if expected is None:
                return None
            if later not in self._early and expected.get("id") != command and not differences(expected, received):
                return later
        return None

    async def _hello(self, step: Step, expected: Raw) -> None:
        agent = self._agent
        timeout = step.within / 1000 if step.within else None
        before = self._last_close_at or time.monotonic()
        try:
            link = await agent.accept(timeout)
        except AgentViolation as e:
            within = f" within {step.within} ms" if step.within else ""
            raise AgentViolation(self._violation(f"{e.violation.message}{within}", step, e.violation.section)) from e
        waited = time.monotonic() - before
        if waited + CLOCK_TOLERANCE < step.after / 1000:
            what = f"the agent reconnected after {waited * 1000:.0f} ms, expected at least {step.after} ms"
            raise AgentViolation(self._violation(what, step))
        hello = await agent.greet(link)
        await self._adopt(link)
        if self._conversation.durable and not agent.journal:
            raise NotPlayable("it is for agents with a journal, and this agent names none in hello.caps")
        if any(s.restart and not s.journal for s in self._steps) and agent.journal:
            raise NotPlayable("it is for agents without a journal, and this agent has one")
        kept = dict(hello.get("have", {}))
        for command, wanted in expected.get("have", {}).items():
            if kept.get(command, -1) >= wanted:
                self._input[command], kept[command] = kept[command], wanted
        if differs := differences(expected, {**hello, "have": kept}):
            raise AgentViolation(
                self._violation("the message is not the expected one", step, "8", show(expected), show(hello), differs)
            )

    async def _adopt(self, link: MockLink) -> None:
        """`link` becomes the newest link. The one before it stays open if the script continues to use it."""
        former, self._link = self._link, link
        if self._welcomed:
            former, self._old = self._old, former
        self._welcomed = False
        if former is not None:
            former.abort()
        if self._old is None:
            return
        if not any(step.old for step in self._steps[self.at :]):
            self._old.abort()
            self._old = None
        elif self._old.closed_by_agent:
            raise NotPlayable("it is for agents that move, and this one closes its link before it opens another")
        else:
            self._grantable = self._old.fed

    async def _heartbeat(self, index: int, step: Step) -> None:
        """A heartbeat of an idle agent; before welcome it is optional."""
        if not any(s.gateway is not None and s.gateway["t"] == WELCOME for s in self._steps[:index]):
            return
        welcome = next(s.gateway for s in reversed(self._steps[:index]) if s.gateway and s.gateway["t"] == WELCOME)
        if welcome["hb"] / 1000 > self._agent.timeout:
            return
        received = await self._open.receive(self._agent.timeout, quiet=False)
        if received is None or received["t"] != HB:
            what = f"an agent that has sent nothing for `hb` ({welcome['hb']} ms) MUST send hb"
            raise AgentViolation(self._violation(what, step, "4", received=show(received) if received else "nothing"))

    async def _close(self, step: Step) -> None:
        assert step.close is not None
        link = self._link_of(step)
        if step.close.by == "gateway":
            await link.socket.close(step.close.code)
            return
        try:
            while (received := await link.receive(self._agent.timeout, quiet=False)) is not None:
                if received["t"] not in (BYE, HB, CREDIT, ACK):
                    what = f"the agent continued, expected a close with {step.close.code}"
                    raise AgentViolation(self._violation(what, step, received=show(received)))
        except LinkClosed as e:
            if e.code != step.close.code:
                what = f"the agent closed with {e.code} ({why(e)}), expected {step.close.code}"
                raise AgentViolation(self._violation(what, step)) from e
            if step.old and link.granted > self._grantable:
                what = "input was granted on the old link after hello on the new one, which had asked for it"
                raise AgentViolation(self._violation(what, step, "9")) from e
            return
        what = f"the agent did not close within {self._agent.timeout:g} s, expected a close with {step.close.code}"
        raise AgentViolation(self._violation(what, step))

    async def _away(self, step: Step) -> None:
        link = await self._agent.server.accept(STAYS_AWAY)
        if link is not None:
            link.abort()
            what = "the agent reconnected: after a close code from 4500 on an agent MUST NOT reconnect by itself"
            raise AgentViolation(self._violation(what, step, "9"))
        await self._agent.process.kill()  # whether it has ended or waits for its operator

    def _violation(
        self,
        message: str,
        step: Step,
        section: str = "",
        expected: str = "",
        received: str = "",
        differs: tuple[str, ...] = (),
    ) -> Violation:
        return Violation(
            message, section or self._conversation.section, self.at, expected, received, differs, step.note
        )
