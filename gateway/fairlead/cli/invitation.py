"""What a demo says when all of it runs: where its parts are, and what to try, in words that can be pasted.

Written by `stage`. The commands are called as this program was called: with its path, when it is not on the PATH of
another terminal.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fairlead.cli.connection import DEFAULT_API


def invitation(api: str, parts: Sequence[str], agents: Sequence[str], last: str, data: Path) -> str:
    """`api` as --api takes it; `last` is the name of an agent."""
    command = _command()
    where = "" if api.split(",")[0] == DEFAULT_API else f" --api {api}"
    shown = "\n".join(f"  {part}" for part in parts)
    return f"""
Fairlead is ready.

  API     {api}
{shown}
  agents  {", ".join(agents)}
  logs    {data}/*.log

Try, in another terminal:

  {command} agents ls{where}
  {command} exec{where} agent-1 -- uname -a
  echo hello | {command} exec{where} {last} -- tr a-z A-Z

Ctrl-C ends all of it.
"""


def _command() -> str:
    """How to call this program from another terminal in the same folder."""
    path = Path(sys.argv[0]).absolute()
    if path.name != "fairlead":
        return f"{shlex.quote(sys.executable)} -m fairlead"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
