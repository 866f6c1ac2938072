"""Calls handlers on the event loop, in a thread or in a process, and turns what they return or raise into the end of
the command.

Made by `CommandRunner`, which accepts and stops commands. A slot is reserved before a command is acknowledged, so that
the platform learns at once if too many are waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler, RunsIn
from fairlead.agent.commands.output import item, result
from fairlead.agent.commands.processes.process_runner import ProcessRunner
from fairlead.agent.commands.running import HandlerOutcome
from fairlead.agent.commands.threads import ThreadRunner
from fairlead.agent.commands.tracing import handler_span
from fairlead.agent.errors import CommandError, JournalFailed
from fairlead.agent.link.sender import Sender, too_large
from fairlead.wire.messages import Error

logger = logging.getLogger("fairlead.agent")


class HandlerExecutor:
    def __init__(self, sender: Sender, handlers: Mapping[str, Handler]) -> None:
        self._sender = sender
        self._processes = ProcessRunner(handlers)
        self._runners: dict[RunsIn, ThreadRunner | ProcessRunner] = {
            "thread": ThreadRunner(),
            "process": self._processes,
        }

    def reserve(self, handler: Handler) -> None:
        """Reserve a slot for one run. Raises CommandError `busy`."""
        if handler.runs_in != "loop" and not self._runners[handler.runs_in].slots.reserve():
            raise CommandError(
                "busy", f"too many commands wait for a {handler.runs_in}: try again later", temporary=True
            )

    def cancel_reservation(self, handler: Handler) -> None:
        """Give back a slot that was reserved for a command that will not run."""
        if handler.runs_in != "loop":
            self._runners[handler.runs_in].slots.cancel_reservation()

    async def execute(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> HandlerOutcome:
        """Run a handler to its end. Never raises, whatever the handler does."""
        try:
            with handler_span(command, self._sender.session):
                payload = await self._call(handler, command, arguments)
            if len(payload) > self._sender.payload_limit:
                raise CommandError("result_too_large", too_large(len(payload), self._sender.payload_limit).message)
        except asyncio.CancelledError:
            return HandlerOutcome("error", error=Error(code="handler_failed", message="the handler cancelled itself"))
        except CommandError as e:
            return HandlerOutcome("error", error=e.to_wire())
        except JournalFailed as e:
            return HandlerOutcome("error", error=journal_error(e))
        except (Exception, SystemExit) as e:
            logger.exception("the handler of %s failed", command.method)
            return HandlerOutcome("error", error=CommandError("handler_failed", f"{type(e).__name__}: {e}").to_wire())
        return HandlerOutcome("ok", payload)

    async def _call(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """The payload of the end."""
        if handler.runs_in != "loop":
            return await self._runners[handler.runs_in].run(handler, command, arguments)
        given = (command,) if handler.takes_command else ()
        if not handler.streams:
            return result(await handler.function(*given, **arguments))
        async with aclosing(handler.function(*given, **arguments)) as values:
            async for value in values:
                await command.write(*item(value))
        return b""

    async def close(self) -> None:
        """Wait for the last child processes, and end the fork server."""
        await self._processes.close()


def journal_error(failure: JournalFailed) -> Error:
    return Error(code=failure.code, message=failure.message, temporary=True)
