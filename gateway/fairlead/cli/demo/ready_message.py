"""What the demo prints when everything runs: where its parts are, and commands to try.

Used by `demo`. The commands can be pasted into another terminal in the same folder: they call this program by its path.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.cli.api_options import DEFAULT_API


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """What the message says. `api` and `links` are URLs as --api and --url take them."""

    api: str
    links: str
    parts: Sequence[str]
    """Nodes and Valkey, a line each."""
    agents: Sequence[str]
    """Agents with their processes and nodes."""
    last_agent: str
    failover: tuple[str | None, str] | None
    """A node to kill, and an agent whose link it holds; None if there is no such pair."""
    data: Path

    def text(self) -> str:
        parts = "\n".join(f"  {part}" for part in self.parts)
        return f"""
Fairlead is ready.

  API     {self.api}
  links   {self.links}, spread over the nodes
{parts}
  agents  {", ".join(self.agents)}
  logs    {self.data}/*.log, process ids {self.data}/*.pid

Try, in another terminal:

  {command_line("agents ls", self.api)}
  {command_line("exec", self.api)} agent-1 -- uname -a
  echo hello | {command_line("exec", self.api)} {self.last_agent} -- tr a-z A-Z
{self._failover(*self.failover) if self.failover else ""}
Ctrl-C ends the demo.
"""

    def _failover(self, node: str | None, agent: str) -> str:
        return f"""
Kill a node with kill -9 while an agent on it counts: the link moves, and no number is lost or printed twice.

  (sleep 3; kill -9 $(cat {shlex.quote(str(self.data))}/{node}.pid)) &
  {command_line("exec", self.api)} {agent} -- sh -c 'for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done'
"""


def command_line(words: str, api: str) -> str:
    """The command to paste for `fairlead WORDS`, with the demo's API."""
    where = "" if api.split(",")[0] == DEFAULT_API else f" --api {api}"
    return f"{_program()} {words}{where}"


def _program() -> str:
    """How to call this program from another terminal in the same folder."""
    path = Path(sys.argv[0]).absolute()
    if path.name != "fairlead":
        return f"{shlex.quote(sys.executable)} -m fairlead"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
