"""The one admin port of several workers: /livez, /readyz and /metrics for all of them.

`worker_process` serves it in a process of its own. For each request the workers' own admin ports (Unix sockets) are
asked, all at once and with a deadline: a worker that hangs is reported as missing and delays nobody. /livez is that of
the supervisor: it succeeds while the supervisor's loop runs, because the supervisor restarts everything else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fairlead.cli.workers.metrics_merge import merge_metrics
from fairlead.cli.workers.shared_status import SharedStatus
from fairlead.telemetry.metrics import CONTENT_TYPE, OPENMETRICS, wants_openmetrics

READY_TIMEOUT = 0.8
"""Seconds for the answer of a worker's probe: by default, a kubelet's own probe gives up after 1 s."""
METRICS_TIMEOUT = 3.0
"""Seconds for a worker's metrics, which is less than the timeout of a scrape (Prometheus: 10 s by default, often 5)."""
STUCK = 5.0
"""Seconds without a pass of the supervisor's loop, which makes one each second, after which the loop counts as
stuck."""
ANSWER_LIMIT = 8 << 20
"""Bytes of one answer: a node's metrics take some 10 KiB, because no label grows with the agents."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its number from 0, the name of its node, and the Unix socket of its admin port."""

    number: int
    node: str
    path: Path


def shared_admin_app(workers: Sequence[Worker], status: SharedStatus) -> Starlette:
    async def livez(request: Request) -> Response:
        if (since := status.since_pass) > STUCK:
            return PlainTextResponse(f"the supervisor's loop has been stuck for {since:.0f} s\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        answers = await asyncio.gather(*(get(worker.path, "/readyz", READY_TIMEOUT) for worker in workers))
        some = any(answer is not None and answer.status == 200 for answer in answers)
        lines = ["ok" if some else "no worker is ready"]
        for worker, answer in zip(workers, answers, strict=True):
            words = "does not answer" if answer is None else answer.body.decode(errors="replace").strip()
            lines.append(f"{worker.node} (pid {status.pid(worker.number) or 'none'}): {words}")
        return PlainTextResponse("\n".join(lines) + "\n", 200 if some else 503)

    async def metrics(request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        accept = OPENMETRICS if openmetrics else CONTENT_TYPE
        answers = await asyncio.gather(*(get(worker.path, "/metrics", METRICS_TIMEOUT, accept) for worker in workers))
        texts: dict[int, str] = {}
        for worker, answer in zip(workers, answers, strict=True):
            up = answer is not None and answer.status == 200
            texts[worker.number] = _own(up, status.restarts(worker.number), openmetrics)
            if answer is not None and up:
                texts[worker.number] += answer.body.decode()
        return Response(merge_metrics(texts) + ("# EOF\n" if openmetrics else ""), media_type=accept)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


def _own(up: bool, restarts: int, openmetrics: bool) -> str:
    """The metrics of a worker that only the supervisor knows, in the format of the worker's own metrics."""
    # OpenMetrics names the family of a counter without the suffix of its sample.
    family = "fairlead_worker_restarts" if openmetrics else "fairlead_worker_restarts_total"
    return (
        "# HELP fairlead_worker_up 1 if this worker answered the scrape\n"
        "# TYPE fairlead_worker_up gauge\n"
        f"fairlead_worker_up {int(up)}\n"
        f"# HELP {family} Restarts of this worker, which had ended unexpectedly\n"
        f"# TYPE {family} counter\n"
        f"fairlead_worker_restarts_total {restarts}\n"
    )


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    status: int
    body: bytes


async def get(path: Path, target: str, timeout: float, accept: str = "*/*") -> WorkerAnswer | None:
    """One GET over a Unix socket; None if no complete answer came in time. The server is ours, and its HTTP plain."""
    received = bytearray()
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                question = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
                writer.write(question.encode())
                while part := await reader.read(1 << 16):
                    received += part
                    if len(received) > ANSWER_LIMIT:
                        return None
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 ([0-9]{3}) ", head)
    length = re.search(rb"\r\ncontent-length: ([0-9]+)", head, re.IGNORECASE)
    # A worker that is killed while it answers leaves its answer incomplete, and half a metric family is worse than
    # none.
    if status is None or length is None or int(length[1]) != len(body):
        return None
    return WorkerAnswer(int(status[1]), body)
