"""Plays conversations to one agent, one after the other, and returns the result of each.

Made by the command. With an `AgentProcess` each conversation gets a new process: an agent whose links are all short
waits longer and longer before it reconnects (section 10 of docs/protocol.md). Before each conversation, an agent that
may remember something is welcomed once with nothing open, so that it drops what it kept from the previous one.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from fairlead.mock.agent_process import AgentProcess
from fairlead.mock.agent_under_test import AgentUnderTest
from fairlead.mock.comparison import Violation
from fairlead.mock.conversation_run import ConversationRun, NotPlayable
from fairlead.mock.link import AgentViolation
from fairlead.mock.script import Conversation, Needs, with_fresh_ids
from fairlead.mock.server import MockServer


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """The result of one conversation: `violation` is what ended it, and `skipped` says why it was not played."""

    conversation: Conversation
    violation: Violation | None = None
    skipped: str = ""


class ConformanceRunner:
    def __init__(self, server: MockServer, process: AgentProcess | None, timeout: float) -> None:
        """`timeout`: seconds for whatever the agent must do."""
        self._agent = AgentUnderTest(server, process, timeout)

    async def play(self, conversation: Conversation) -> ConversationResult:
        """Play one conversation."""
        if not self._agent.takes_orders and conversation.needs is not Needs.NOTHING:
            return ConversationResult(
                conversation, skipped=f"it needs {conversation.needs.value} (give the command that starts the agent)"
            )
        ids = [secrets.token_hex(6) for _ in range(4)]
        run = ConversationRun(self._agent, with_fresh_ids(conversation, ids))
        try:
            await self._agent.clear()
            await run.play()
        except NotPlayable as e:
            return ConversationResult(conversation, skipped=str(e))
        except AgentViolation as e:
            return ConversationResult(conversation, replace(e.violation, step=e.violation.step or run.at))
        finally:
            await run.end()
        return ConversationResult(conversation)
