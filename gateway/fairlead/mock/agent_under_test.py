"""The agent that is tested: its process, if the mock gateway started it, its connections, and what its hellos said.

Used by `runner` before each conversation and by `conversation_run` during it. It plays no part of a conversation: it
only makes sure that there is a link on which nothing is open.
"""

from __future__ import annotations

import contextlib
import time

from fairlead.mock.agent_process import AgentProcess
from fairlead.mock.comparison import Violation, show
from fairlead.mock.link import AgentViolation, LinkClosed, MockLink
from fairlead.mock.script import BYE, HELLO, WELCOME, Raw
from fairlead.mock.server import MockServer

SOON = {"first": 20, "base": 20, "cap": 100}
"""The retry policy of a welcome that names none, in ms: reconnects should be quick here."""
RETURN = {"t": BYE, "code": 4000, "why": "the next conversation", "retry": 1000}
"""Ends a link between two conversations. Every agent accepts a pause of a second unchanged."""
LONGEST_PAUSE = 65.0
"""Seconds to wait for an agent that reconnects by the policy after many short links: its longest pause is 60 s."""
POLL = 0.25
"""Seconds between two checks whether the agent's process has ended, while waiting for it to connect."""
CLEAR = {"t": WELCOME, "sid": "clear", "gen": 1, "now": 0, "hb": 25_000, "retry": SOON}
"""A welcome that names nothing open, so that the agent drops what it has."""


class AgentUnderTest:
    def __init__(self, server: MockServer, process: AgentProcess | None, timeout: float) -> None:
        """`timeout`: seconds for whatever the agent must do."""
        self.server = server
        self.timeout = timeout
        self.journal = ""
        """The id of its journal, or "" without one."""
        self._process = process
        self._boot = ""
        self._conn = 0
        self._fresh = False
        """Whether a new process of this agent starts without any memory of the last one."""

    @property
    def takes_orders(self) -> bool:
        """Whether its process was started here, so that it takes orders."""
        return self._process is not None

    @property
    def process(self) -> AgentProcess:
        assert self._process is not None, "no orders are given without a process"
        return self._process

    async def clear(self) -> None:
        """Make the agent drop whatever it has kept from the previous conversation."""
        if self._process is not None:
            await self.restart()
            if self._fresh:
                return
        link = await self.accept()
        try:
            await self.greet(link)
            await link.send_message(CLEAR)
            await link.wait_until_read(self.timeout)
            while (await link.receive(0.05)) is not None:  # events without a receipt
                pass
            if link.received:
                await link.send_message({"t": 11, "s": link.received})
                await link.wait_until_read(self.timeout)
        except LinkClosed as e:
            raise AgentViolation(
                Violation(f"the agent closed with {e.code} when nothing was open: {why(e)}", "8")
            ) from e
        await self.send_back(link)

    async def send_back(self, link: MockLink) -> None:
        """Close a link so that the agent reconnects soon."""
        with contextlib.suppress(LinkClosed):
            await link.send_message(RETURN)
        await link.socket.close(4000)

    async def accept(self, timeout: float | None = None) -> MockLink:
        """The agent's next connection. Raises AgentViolation when it does not connect in time."""
        usual = self.timeout if self._process is not None else max(self.timeout, LONGEST_PAUSE)
        deadline = time.monotonic() + (usual if timeout is None else timeout)
        while (left := deadline - time.monotonic()) > 0:
            link = await self.server.accept(min(left, POLL))
            if link is not None:
                return link
            if self._process is not None and not self._process.running:
                break  # it will not connect any more
        if self.server.violations:
            raise AgentViolation(self.server.violations.pop(0))
        what = "the agent did not connect"
        if self._process is not None and not self._process.running:
            what = f"the agent's process has ended with {self._process.exit_code}"
        raise AgentViolation(Violation(what, "10"))

    async def greet(self, link: MockLink) -> Raw:
        """The hello, which must be the first message, of the same boot and with a greater `conn`."""
        try:
            hello = await link.receive(self.timeout, quiet=False)
        except LinkClosed as e:
            raise AgentViolation(Violation(f"the agent closed with {e.code} before its hello", "4")) from e
        if hello is None:
            raise AgentViolation(Violation(f"no hello within {self.timeout:g} s of the upgrade", "4"))
        if hello["t"] != HELLO:
            raise AgentViolation(
                Violation("the first message of a connection MUST be hello", "4", received=show(hello))
            )
        boot, conn = hello["boot"], hello["conn"]
        if self._boot and boot != self._boot and self._process is not None:
            what = f"boot changed from {self._boot!r} to {boot!r}, although the process is the same"
            raise AgentViolation(Violation(what, "3", received=show(hello)))
        if boot == self._boot and conn <= self._conn:
            what = f"conn is {conn} after {self._conn}: it MUST grow with every attempt"
            raise AgentViolation(Violation(what, "10", received=show(hello)))
        self._boot, self._conn = boot, conn
        journal = str(hello.get("caps", {}).get("journal", ""))
        if self.journal and journal and journal != self.journal:
            raise AgentViolation(Violation("the id of the journal has changed", "8", received=show(hello)))
        self.journal = journal
        self._fresh = not journal
        return hello

    async def restart(self) -> None:
        """Kill the process and start it again."""
        await self.process.kill()
        self._boot, self._conn = "", 0
        self.server.forget()
        await self.process.start()


def why(gone: LinkClosed) -> str:
    """The reason that the agent gave for its close."""
    return repr(gone.bye["why"]) if gone.bye is not None and gone.bye.get("why") else "it gave no reason"
