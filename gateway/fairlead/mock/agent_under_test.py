"""The agent that is tested: its process, if it is ours, its connections, and what was learnt from its hellos.

Used by the player before each conversation and by the scene during it. It tells the agent nothing of a conversation:
it only sees to it that there is a link, and that nothing is left open on it.
"""

from __future__ import annotations

import contextlib
import time

from fairlead.mock.agent_process import AgentProcess
from fairlead.mock.comparison import Violation, show
from fairlead.mock.script import BYE, HELLO, WELCOME, Raw
from fairlead.mock.server import AgentViolation, LinkClosed, MockLink, MockServer

SOON = {"first": 20, "base": 20, "cap": 100}
"""The retry policy of a welcome that names none, in ms: nobody wants to wait for reconnects here."""
RETURN = {"t": BYE, "code": 4000, "why": "the next conversation", "retry": 1000}
"""Ends a link on which nothing is tested. A second is a pause that every agent takes as it is named."""
LONGEST = 65.0
"""Seconds to wait for an agent that comes back by the policy, after many short links: its longest pause is 60 s."""
LOOK = 0.25
"""Seconds between two looks whether the agent's process has ended, while it is waited for."""
CLEAR = {"t": WELCOME, "sid": "clear", "gen": 1, "now": 0, "hb": 25_000, "retry": SOON}
"""Nothing is open: the agent drops what it has."""


class AgentUnderTest:
    __test__ = False  # no test of pytest's

    def __init__(self, listener: MockServer, process: AgentProcess | None, patience: float) -> None:
        """`patience`: seconds for anything that the agent must do."""
        self.listener = listener
        self.patience = patience
        self.journal = ""
        """The id of its journal, "" when it has told none."""
        self._process = process
        self._boot = ""
        self._conn = 0
        self._fresh = False
        """A new process of this agent remembers nothing."""

    @property
    def ours(self) -> bool:
        """Whether it is a process that takes orders."""
        return self._process is not None

    @property
    def process(self) -> AgentProcess:
        assert self._process is not None, "no orders are given without a process"
        return self._process

    async def clear(self) -> None:
        """A link on which nothing is open, so that the agent has nothing of the conversation before."""
        if self._process is not None:
            await self.restart()
            if self._fresh:
                return
        link = await self.accept()
        try:
            await self.greet(link)
            await link.say(CLEAR)
            await link.read_up(self.patience)
            while (await link.hear(0.05)) is not None:  # events that had no receipt
                pass
            if link.received:
                await link.say({"t": 11, "s": link.received})
                await link.read_up(self.patience)
        except LinkClosed as e:
            raise AgentViolation(
                Violation(f"the agent closed with {e.code} when nothing was open: {why(e)}", "8")
            ) from e
        await self.send_back(link)

    async def send_back(self, link: MockLink) -> None:
        """Close a link so that the agent comes back soon."""
        with contextlib.suppress(LinkClosed):
            await link.say(RETURN)
        await link.socket.close(4000)

    async def accept(self, timeout: float | None = None) -> MockLink:
        """The agent's next connection."""
        usual = self.patience if self._process is not None else max(self.patience, LONGEST)
        deadline = time.monotonic() + (usual if timeout is None else timeout)
        while (left := deadline - time.monotonic()) > 0:
            link = await self.listener.accept(min(left, LOOK))
            if link is not None:
                return link
            if self._process is not None and not self._process.running:
                break  # it connects no more
        if self.listener.faults:
            raise AgentViolation(self.listener.faults.pop(0))
        what = "the agent does not connect"
        if self._process is not None and not self._process.running:
            what = f"the agent's process has ended with {self._process.exit_code}"
        raise AgentViolation(Violation(what, "10"))

    async def greet(self, link: MockLink) -> Raw:
        """The hello, which must be the first message, of the same boot and with a greater `conn`."""
        try:
            hello = await link.hear(self.patience, quiet=False)
        except LinkClosed as e:
            raise AgentViolation(Violation(f"the agent closed with {e.code} before its hello", "4")) from e
        if hello is None:
            raise AgentViolation(Violation(f"no hello within {self.patience:g} s of the upgrade", "4"))
        if hello["t"] != HELLO:
            raise AgentViolation(Violation("the first message of a connection MUST be hello", "4", came=show(hello)))
        boot, conn = hello["boot"], hello["conn"]
        if self._boot and boot != self._boot and self._process is not None:
            what = f"the boot is {boot!r} now and was {self._boot!r}, although the process is the same"
            raise AgentViolation(Violation(what, "3", came=show(hello)))
        if boot == self._boot and conn <= self._conn:
            what = f"conn is {conn} and was {self._conn}: it MUST grow with every attempt"
            raise AgentViolation(Violation(what, "10", came=show(hello)))
        self._boot, self._conn = boot, conn
        journal = str(hello.get("caps", {}).get("journal", ""))
        if self.journal and journal and journal != self.journal:
            raise AgentViolation(Violation("the id of the journal has changed", "8", came=show(hello)))
        self.journal = journal
        self._fresh = not journal
        return hello

    async def restart(self) -> None:
        """The process ends without a word and starts anew."""
        await self.process.kill()
        self._boot, self._conn = "", 0
        self.listener.forget()
        await self.process.start()


def why(gone: LinkClosed) -> str:
    """The reason of a close, in words."""
    return repr(gone.bye["why"]) if gone.bye is not None and gone.bye.get("why") else "it gave no reason"
