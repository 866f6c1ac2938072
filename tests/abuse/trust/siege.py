"""An agent that trusts a key and is attacked: what the platform signs for it, what it has run, and what it takes.

It is the shipped one, in a process of its own; what it has run is in a file.
"""

from __future__ import annotations

import base64
import json
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from fairlead.signing.keys import PrivateKey, generate

from abuse.attempts import Site
from abuse.trust.honest import Honest
from support.gateway.pinned_agent import PinnedAgent
from support.signing import signed
from support.waiting import until

AGENT = "pinned"


@asynccontextmanager
async def pinned_agent(site: Site, link: str, key: PrivateKey) -> AsyncIterator[PinnedAgent]:
    agent = PinnedAgent(Path(site.folder), link, AGENT, key)
    try:
        yield agent
    finally:
        agent.stop()


class Usage:
    """Of a process since its construction."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._memory, self._cpu = self._now()

    def _now(self) -> tuple[int, float]:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        memory = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return memory, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tell(self, tried: Counter[str]) -> None:
        """Count what it took."""
        memory, cpu = self._now()
        attempts = sum(n for what, n in tried.items() if ": " in what and not what.startswith("then "))
        tried["KiB by which the agent grew"] = (memory - self._memory) >> 10
        tried["µs CPU of the agent an attempt"] = round((cpu - self._cpu) * 1e6 / max(attempts, 1))


def count_runs(agent: PinnedAgent, right: int, tried: Counter[str]) -> None:
    """Whatever has run but what was signed is a success of the attacker."""
    wrong = [mark for mark in agent.marks if mark != "signed"]
    if wrong:
        tried["at the agent: has run"] = len(wrong)
    if agent.marks.count("signed") != right:
        tried["at the agent: has run again"] = agent.marks.count("signed")


class Siege:
    """An agent that trusts a key at the victim's node, and the platform that signs."""

    def __init__(self, honest: Honest, agent: PinnedAgent, key: PrivateKey) -> None:
        self.honest, self.agent, self.key = honest, agent, key
        self.right = 0

    def body(self, mark: str = "signed", *, key: PrivateKey | None = None, agent: str = AGENT, **more: Any) -> dict[
        str, Any
    ]:  # fmt: skip
        """A signed command for the agent, as the API takes it."""
        payload = self.agent.payload(mark)
        cmd = signed(key or self.key, "exec", payload, agent=agent, **more)
        return {
            "agent": AGENT, "method": "exec", "id": cmd.id, "payload": msgspec.Raw(payload), "deadline": 60,
            "signature": base64.b64encode(cmd.sig).decode(),
        }  # fmt: skip

    async def sign_and_run(self) -> str:
        self.right += 1
        return await outcome(self.honest.http, self.body())


async def outcome(api: Any, body: dict[str, Any]) -> str:
    """How a posted command ends: "ok", the code of its error, or the status with which it is not accepted."""
    answer = await api.post(
        "/v1/commands", content=msgspec.json.encode(body), headers={"accept": "application/x-ndjson"}
    )
    if answer.status_code != 200:
        return str(answer.status_code)
    end = json.loads(answer.text.splitlines()[-1]).get("end", {})
    return str((end.get("error") or {}).get("code") or end.get("state", "no end"))


@asynccontextmanager
async def besieged(honest: Honest) -> AsyncIterator[Siege]:
    key = generate()
    async with pinned_agent(honest.site, honest.link, key) as agent:
        await until(lambda: honest.watch(AGENT))
        yield Siege(honest, agent, key)
