"""A handler in a process of its own: started for one command, killed with it.

Used by the runner for CPU-bound work. A pool could not be killed at a deadline, and a fork of a process with
threads may deadlock, so each command takes a child of a fork server (or a fresh interpreter where there is none).
Items come through a pipe; when the parent does not take them the pipe fills and the child waits.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fairlead.agent.command import CommandError

NICE = 5
"""Below the agent, whose heartbeats must not wait for its own work."""

_context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


class Child:
    """One run of `function(**arguments)`. `run` blocks: call it in a thread; `kill` may come from another."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any], streams: bool) -> None:
        self._ours, self._theirs = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_work, args=(self._theirs, function, arguments, streams), daemon=True)
        self._killed = False

    def run(self, send: Callable[[object], None]) -> object:
        """Start it, hand each item to `send`, and return the result. Raises CommandError as the handler did."""
        try:
            self._start()
            while True:
                try:
                    kind, value = self._ours.recv()
                except EOFError:
                    self._process.join(5)
                    raise CommandError(
                        "handler_failed", f"the handler's process ended with {self._process.exitcode}"
                    ) from None
                if kind == "item":
                    send(value)
                elif kind == "result":
                    return value
                else:
                    code, message, temporary, details = value
                    raise CommandError(code, message, temporary, **details)
        finally:
            self.kill()
            self._ours.close()
            if self._process.pid is not None:
                self._process.join(5)

    def _start(self) -> None:
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise CommandError(
                "handler_failed",
                f"the handler cannot be sent to a process: {e}; define it at the top level of a module",
            ) from e
        finally:
            self._theirs.close()
        if self._killed:
            self._process.kill()

    def kill(self) -> None:
        """End the process now; harmless when it has ended or was never started."""
        self._killed = True
        if self._process.pid is not None and self._process.is_alive():
            self._process.kill()


def _work(pipe: Connection, function: Callable[..., Any], arguments: dict[str, Any], streams: bool) -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to hear
    os.nice(NICE)
    try:
        result = None
        if streams:
            for item in function(**arguments):
                pipe.send(("item", item))
        else:
            result = function(**arguments)
        pipe.send(("result", result))
    except CommandError as e:
        pipe.send(("error", (e.error_code, e.message, e.is_temporary, e.details)))
    except BrokenPipeError:
        pass  # the agent is gone
    except Exception as e:
        pipe.send(("error", ("handler_failed", f"{type(e).__name__}: {e}"[:500], False, {})))
