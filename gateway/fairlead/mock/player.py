"""Plays conversations to one agent, and tells of each how it went.

Made by the command. With a `Puppet` each conversation has a new process of the agent: an agent whose links are all
short comes back ever later (section 10 of docs/protocol.md). An agent that may remember something is welcomed once with
nothing open before a conversation, so that none begins with what another has left.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from fairlead.mock.judge import Fault
from fairlead.mock.listener import Listener, Misconduct
from fairlead.mock.puppet import Puppet
from fairlead.mock.scene import NotPlayable, Scene
from fairlead.mock.script import Conversation, Needs, with_fresh_ids
from fairlead.mock.tested_agent import TestedAgent


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one conversation: `fault` when the agent did wrong, `skipped` in words when it was not played."""

    conversation: Conversation
    fault: Fault | None = None
    skipped: str = ""


class Player:
    def __init__(self, listener: Listener, puppet: Puppet | None, patience: float) -> None:
        """`patience`: seconds for anything that the agent must do."""
        self._agent = TestedAgent(listener, puppet, patience)

    async def play(self, conversation: Conversation) -> Outcome:
        """Play one."""
        if not self._agent.ours and conversation.needs is not Needs.NOTHING:
            return Outcome(conversation, skipped=f"it needs {conversation.needs.value}: tell how to start the agent")
        ids = [secrets.token_hex(6) for _ in range(4)]
        scene = Scene(self._agent, with_fresh_ids(conversation, ids))
        try:
            await self._agent.clear()
            await scene.play()
        except NotPlayable as e:
            return Outcome(conversation, skipped=str(e))
        except Misconduct as e:
            return Outcome(conversation, replace(e.fault, step=e.fault.step or scene.at))
        finally:
            await scene.end()
        return Outcome(conversation)
