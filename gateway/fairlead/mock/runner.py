"""Plays conversations to one agent, and tells of each how it went.

Made by the command. With an `AgentProcess` each conversation has a new process: an agent whose links are all
short comes back ever later (section 10 of docs/protocol.md). An agent that may remember something is welcomed once with
nothing open before a conversation, so that none begins with what another has left.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from fairlead.mock.agent_process import AgentProcess
from fairlead.mock.agent_under_test import AgentUnderTest
from fairlead.mock.comparison import Violation
from fairlead.mock.conversation_run import ConversationRun, NotPlayable
from fairlead.mock.script import Conversation, Needs, with_fresh_ids
from fairlead.mock.server import AgentViolation, MockServer


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """Of one conversation: `fault` when the agent did wrong, `skipped` in words when it was not played."""

    conversation: Conversation
    fault: Violation | None = None
    skipped: str = ""


class ConformanceRunner:
    def __init__(self, listener: MockServer, process: AgentProcess | None, patience: float) -> None:
        """`patience`: seconds for anything that the agent must do."""
        self._agent = AgentUnderTest(listener, process, patience)

    async def play(self, conversation: Conversation) -> ConversationResult:
        """Play one."""
        if not self._agent.ours and conversation.needs is not Needs.NOTHING:
            return ConversationResult(
                conversation, skipped=f"it needs {conversation.needs.value}: tell how to start the agent"
            )
        ids = [secrets.token_hex(6) for _ in range(4)]
        run = ConversationRun(self._agent, with_fresh_ids(conversation, ids))
        try:
            await self._agent.clear()
            await run.play()
        except NotPlayable as e:
            return ConversationResult(conversation, skipped=str(e))
        except AgentViolation as e:
            return ConversationResult(conversation, replace(e.fault, step=e.fault.step or run.at))
        finally:
            await run.end()
        return ConversationResult(conversation)
