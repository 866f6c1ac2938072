"""The agent that `fairlead agent run` runs: an Agent with the built-in methods `exec` and `sys.info`."""

from __future__ import annotations

import os
import ssl as tls
from collections.abc import Mapping
from typing import Literal

from fairlead.agent import host
from fairlead.agent.agent import Agent
from fairlead.agent.builtin.execute import Exec


def builtin_agent(
    url: str,
    id: str,
    token: str,
    *,
    facts: Mapping[str, str] | None = None,
    encoding: Literal["msgpack", "json"] = "msgpack",
    ssl: tls.SSLContext | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Agent:
    """An agent with the built-in methods; the options are Agent's. More methods may be added to it."""
    agent = Agent(url, id, token, facts=facts, encoding=encoding, ssl=ssl, journal=journal)
    agent.command("exec")(Exec().execute)
    agent.command("sys.info")(system_info)
    return agent


async def system_info() -> dict[str, object]:
    """What kind of machine this is."""
    return host.info()
