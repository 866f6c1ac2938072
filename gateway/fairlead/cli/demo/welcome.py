"""What a demo says when all of it runs: where its parts are, and what to try, in words that can be pasted.

Written by `stage`. The commands are called as this program was called: with its path, when it is not on the PATH of
another terminal.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fairlead.cli.api_options import DEFAULT_API


def invitation(
    api: str,
    links: str,
    parts: Sequence[str],
    agents: Sequence[str],
    last: str,
    failover: tuple[str | None, str] | None,
    data: Path,
) -> str:
    """`api` and `links` as --api and --url take them; `last` is the name of an agent; `failover` a node that may be
    killed, and an agent whose link it holds."""
    shown = "\n".join(f"  {part}" for part in parts)
    return f"""
Fairlead is ready.

  API     {api}
  links   {links}, spread over the nodes
{shown}
  agents  {", ".join(agents)}
  logs    {data}/*.log, process ids {data}/*.pid

Try, in another terminal:

  {call("agents ls", api)}
  {call("exec", api)} agent-1 -- uname -a
  echo hello | {call("exec", api)} {last} -- tr a-z A-Z
{_failover(api, *failover, data) if failover else ""}
Ctrl-C ends all of it.
"""


def _failover(api: str, node: str | None, agent: str, data: Path) -> str:
    return f"""
Kill a node with kill -9 while an agent on it counts: the link moves, and no number is lost or comes twice.

  (sleep 3; kill -9 $(cat {shlex.quote(str(data))}/{node}.pid)) &
  {call("exec", api)} {agent} -- sh -c 'for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done'
"""


def call(words: str, api: str) -> str:
    """The command to paste for `fairlead WORDS`, which finds the demo's API."""
    where = "" if api.split(",")[0] == DEFAULT_API else f" --api {api}"
    return f"{_command()} {words}{where}"


def _command() -> str:
    """How to call this program from another terminal in the same folder."""
    path = Path(sys.argv[0]).absolute()
    if path.name != "fairlead":
        return f"{shlex.quote(sys.executable)} -m fairlead"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
