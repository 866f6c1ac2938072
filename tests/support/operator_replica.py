"""One operator's process with the rights of the table, as the tests that kill or freeze one start it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.control_plane import ControlPlane
from support.operator_namespace import OperatorNamespace


class Replica:
    """One operator's process, and its health port."""

    def __init__(self, name: str, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-Im", "fairlead_operator"],
                env={**environment, "POD_NAME": name},
                stdout=out,
                stderr=out,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; the status is 0 while it does not answer."""
        found = re.search(r"health on (\S+)", self.log())
        return (0, "") if found is None else await asyncio.to_thread(ask, f"http://{found[1]}{path}")

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        found = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def leads(self) -> bool:
        return await self.metric("fairlead_operator_leader") == 1


def ask(url: str) -> tuple[int, str]:
    """Status and body; the status is 0 when nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError:
        return 0, ""


@pytest.fixture
async def start(
    namespace: OperatorNamespace, control_plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[Callable[..., Replica]]:
    """Starts an operator for the namespace of the test: its name, and settings besides the usual ones."""
    environment = {
        "PATH": os.environ["PATH"],
        "USER": "test",
        "KUBECONFIG": str(control_plane.operator),
        "POD_NAMESPACE": namespace.name,
        "FAIRLEAD_OPERATOR_NAMESPACES": namespace.name,
        "FAIRLEAD_OPERATOR_HTTP": "127.0.0.1:0",
    }
    running: list[Replica] = []

    def begin(name: str, **more: str) -> Replica:
        running.append(Replica(name, environment | more, tmp_path / f"{name}.log"))
        return running[-1]

    yield begin
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(10)
