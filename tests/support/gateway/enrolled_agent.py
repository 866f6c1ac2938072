"""The shipped agent with an identity, as a process, and the command line of its administrator."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.waiting import until

CLI = (sys.executable, "-m", "fairlead")


class EnrolledAgent:
    """A `fairlead agent run` with an identity in `folder`."""

    def __init__(self, gateway: GatewayProcess, folder: Path, id: str, token: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._gateway, self.folder, self.id = gateway, folder, id
        self._log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.start(token, environment)

    def start(self, token: str = "", environment: dict[str, str] | None = None) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        environment = {**ours, **(environment or {})}
        if token:
            environment["FAIRLEAD_AGENT_ENROLMENT_TOKEN"] = token
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *CLI, "agent", "run", "--config", os.devnull, "--url", self._gateway.link, "--id", self.id,
                    "--identity", str(self.folder),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self.wait()

    @property
    def stored(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "credential.json").read_text()))


async def cli(gateway: GatewayProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, *rest = arguments
    words = [command, rest[0], "--api", gateway.api, *rest[1:]]
    return await asyncio.to_thread(
        subprocess.run, [*CLI, *words], capture_output=True, text=True, timeout=60, check=False
    )


async def new_token(gateway: GatewayProcess, pattern: str, *options: str) -> str:
    made = await cli(gateway, "enrolment-tokens", "create", *options, pattern)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


async def state(api: GatewayApi, agent: str) -> str:
    answer = await api.http.get(f"/v1/agents/{agent}")
    return str(answer.json()["state"]) if answer.status_code == 200 else "unknown"


async def until_state(api: GatewayApi, agent: str, wanted: str) -> None:
    async def reached() -> bool:
        return await state(api, agent) == wanted

    await until(reached)
