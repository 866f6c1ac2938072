"""How the results of a command are printed: as the program wrote them, or as one JSON object per line.

Used by `exec`, `call`, `results`, `shell` and `cp`. Results go to stdout and stderr; Fairlead's own messages about the
command go to stderr, in one line each, because they may quote an agent.
"""

from __future__ import annotations

import base64
import sys
from typing import Protocol

import msgspec

from fairlead.cli import exit_codes
from fairlead.cli.output.formats import as_json
from fairlead.cli.terminal import stdio
from fairlead.client import Chunk, End
from fairlead.text import plain


class Printer(Protocol):
    """Prints the results of a command that is followed."""

    async def write(self, chunk: Chunk) -> None:
        """Print one chunk."""

    async def end(self, end: End, command: str) -> int:
        """Print how the command ended; returns the exit code."""


class ProgramOutput:
    """Prints what the program wrote, stdout to stdout and stderr to stderr, byte for byte. A row, which is one JSON
    value, gets a line of its own."""

    async def write(self, chunk: Chunk) -> None:
        line_end = b"\n" if chunk.kind == "row" and not chunk.data.endswith(b"\n") else b""
        await stdio.write(2 if chunk.kind in ("stderr", "log") else 1, chunk.data + line_end)

    async def end(self, end: End, command: str) -> int:
        return report_end(end, command)


class MethodOutput(ProgramOutput):
    """Prints the output of a method byte for byte, and then its result as JSON, if it has one."""

    async def end(self, end: End, command: str) -> int:
        if end.payload is not None:
            await stdio.write(1, f"{as_json(end.payload)}\n".encode())
        elif end.payload_base64 is not None:
            await stdio.write(1, base64.b64decode(end.payload_base64))
        return report_end(end, command)


class JsonLines:
    """Prints one JSON object per line, with the members of the API's own stream: the chunks, then the end."""

    async def write(self, chunk: Chunk) -> None:
        line: dict[str, object] = {"offset": chunk.offset, "agent": chunk.agent, "n": chunk.n, "kind": chunk.kind}
        try:
            line["text"] = chunk.data.decode()
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(chunk.data).decode()
        await self._print(line)

    async def end(self, end: End, command: str) -> int:
        await self._print({"id": command, "end": msgspec.to_builtins(end)})
        return exit_code(end)

    async def _print(self, line: object) -> None:
        await stdio.write(1, f"{as_json(line, None)}\n".encode())


def report_end(end: End, command: str) -> int:
    """Tell the user what the output alone does not show; returns the exit code."""
    if end.truncated:
        notify("the output is incomplete: it was longer than the gateway's output_limit")
    if end.dropped:
        notify("the gateway has dropped the output, or a large result, after the end, to make room for others")
    message = (end.error.message or end.error.code) if end.error is not None else ""
    if end.state in ("timeout", "expired"):
        default = "the deadline passed" if end.state == "timeout" else "the command could not be delivered in time"
        notify(f"{end.agent}: {message or default}; --deadline or --queue allows more time ({results_hint(command)})")
    elif end.state == "offline":
        default = message or "the agent is offline"
        notify(f"{end.agent}: {default}; `fairlead agents ls` shows since when, --queue SECONDS waits for it")
    elif end.state == "cancelled":
        notify(f"{end.agent}: {message or 'cancelled'}")
    elif message:
        notify(f"{end.agent}: {message}")
    elif number := end.exit().signal:
        notify(f"{end.agent}: the program was ended by signal {number}")
    return exit_code(end)


def exit_code(end: End) -> int:
    """The exit code of `fairlead` for a command that ended like this: that of the program, if it has one."""
    if end.state in ("timeout", "expired"):
        return exit_codes.DEADLINE
    if end.state == "offline":
        return exit_codes.UNAVAILABLE
    if end.state == "cancelled":
        return exit_codes.INTERRUPTED
    remote = end.exit()
    if remote.signal:
        return 128 + remote.signal
    if remote.exit_code is not None:
        # A shell sees only eight bits of an exit code, and a code that is not 0 must not become 0.
        return remote.exit_code & 0xFF or (exit_codes.FAILED if remote.exit_code else exit_codes.OK)
    return exit_codes.OK if end.state == "ok" else exit_codes.FAILED


def results_hint(command: str) -> str:
    """How to see the results of `command` later, in words."""
    return f"`fairlead results {command}` shows its results" if command else "the gateway has not given it an id yet"


RECORDED = "the gateway records what this terminal shows"
REPLAYED = "was started with this approval before; it is not started again, and these are its results"


def notify(text: str) -> None:
    """Print a message to the user on stderr, in one line."""
    print(f"fairlead: {plain(text)}", file=sys.stderr, flush=True)
