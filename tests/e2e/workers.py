"""Agents of the real SDK, all in one process outside the cluster: those that the story's callers send commands to, and
others that only hold their links.

The story starts them behind the host name of the Ingress. Each execution is written to a file before its result is
sent, so that a second run of a command cannot go unnoticed:

    python -m e2e.workers URL PREFIX COUNT BOOK
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from fairlead.agent import Agent, Command

from support.ledger import line

TRACER = trace.get_tracer("workers")


WORKER = "worker"
"""What the ids of those that get commands begin with."""


def name(number: int) -> str:
    return f"{WORKER}-{number}"


async def serve(url: str, prefix: str, count: int, executions: str) -> None:
    runs = os.open(executions, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            agent = Agent(url, id=f"{prefix}-{number}", token=os.environ["FAIRLEAD_AGENT_TOKEN"])
            _teach(agent, runs)
            group.create_task(agent.serve())


def _teach(agent: Agent, runs: int) -> None:
    @agent.command("work")
    async def work(command: Command, key: str, count: int, pause: float) -> AsyncIterator[str]:
        os.write(runs, f"{key}\n".encode())
        for n in range(count):
            yield line(key, n, 0)
            await asyncio.sleep(pause)

    @agent.command("greet")
    async def greet(name: str) -> AsyncIterator[str]:
        with TRACER.start_as_current_span("look up"):
            await asyncio.sleep(0.01)
        yield f"hello {name}\n"


def trace_all_that_is_asked_for() -> None:
    """To the address in OTEL_EXPORTER_OTLP_ENDPOINT, as any program that uses OpenTelemetry."""
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=500))
    trace.set_tracer_provider(provider)


if __name__ == "__main__":
    trace_all_that_is_asked_for()
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
