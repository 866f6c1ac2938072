"""The one admin port of several workers: /livez, /readyz and /metrics over all of them.

Made by `cli.workers` for a process of its own. Each answer is asked anew from the workers' own admin ports (Unix
sockets), all at once and with a deadline: a worker that hangs is told as missing and keeps nobody waiting.
/livez is the supervisor's: true while its loop turns, which mends everything else by restarting it.
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

from fairlead.app.board import Board
from fairlead.app.exposition import merge
from fairlead.telemetry.metrics import CONTENT_TYPE, OPENMETRICS, wants_openmetrics

READY_TIMEOUT = 0.8
"""Seconds: a kubelet's probe gives up after 1 s unless told otherwise."""
METRICS_TIMEOUT = 3.0
"""Seconds for a worker to tell its metrics: less than a scrape waits for all of them (Prometheus 10 s, many set 5)."""
STUCK = 5.0
"""Seconds without a turn of the supervisor's loop, which turns each second."""
ANSWER_LIMIT = 8 << 20
"""Bytes of one answer: a node's metrics take some 10 KiB, since no label grows with agents."""


@dataclass(frozen=True, slots=True)
class Worker:
    number: int
    node: str
    path: Path
    """Its admin port."""


def merged_app(workers: Sequence[Worker], board: Board) -> Starlette:
    async def livez(request: Request) -> Response:
        if (since := board.since_turn) > STUCK:
            return PlainTextResponse(f"the supervisor has not turned for {since:.0f} s\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        answers = await asyncio.gather(*(get(worker.path, "/readyz", READY_TIMEOUT) for worker in workers))
        some = any(answer is not None and answer.status == 200 for answer in answers)
        lines = ["ok" if some else "no worker is ready"]
        for worker, answer in zip(workers, answers, strict=True):
            words = "does not answer" if answer is None else answer.body.decode(errors="replace").strip()
            lines.append(f"{worker.node} (pid {board.pid(worker.number) or 'none'}): {words}")
        return PlainTextResponse("\n".join(lines) + "\n", 200 if some else 503)

    async def metrics(request: Request) -> Response:
        richer = wants_openmetrics(request.headers.get("accept", ""))
        accept = OPENMETRICS if richer else CONTENT_TYPE
        answers = await asyncio.gather(*(get(worker.path, "/metrics", METRICS_TIMEOUT, accept) for worker in workers))
        texts: dict[int, str] = {}
        for worker, answer in zip(workers, answers, strict=True):
            up = answer is not None and answer.status == 200
            texts[worker.number] = _own(up, board.restarts(worker.number), richer)
            if answer is not None and up:
                texts[worker.number] += answer.body.decode()
        return Response(merge(texts) + ("# EOF\n" if richer else ""), media_type=accept)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


def _own(up: bool, restarts: int, richer: bool) -> str:
    """What the supervisor knows of a worker, in the form in which the worker tells the rest."""
    # OpenMetrics names the family of a counter without the suffix of its sample.
    family = "fairlead_worker_restarts" if richer else "fairlead_worker_restarts_total"
    return (
        "# HELP fairlead_worker_up 1 if this worker answered the scrape\n"
        "# TYPE fairlead_worker_up gauge\n"
        f"fairlead_worker_up {int(up)}\n"
        f"# HELP {family} Times this worker ended unasked and was started again\n"
        f"# TYPE {family} counter\n"
        f"fairlead_worker_restarts_total {restarts}\n"
    )


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


async def get(path: Path, target: str, timeout: float, accept: str = "*/*") -> Answer | None:
    """One GET over a Unix socket, None when no whole answer came in time. Its HTTP is our own server's, and plain."""
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
    # A worker that is killed in mid-answer ends it early, and half a family is worse than none.
    if status is None or length is None or int(length[1]) != len(body):
        return None
    return Answer(int(status[1]), body)
