"""The agent in the README is a working agent, in at most 20 lines."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.waiting import until

README = Path(__file__).resolve().parents[2] / "README.md"


async def test_the_readmes_agent_works(gateway: GatewayProcess, api: GatewayApi, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert found is not None
    source = found[1]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    script = tmp_path / "my_agent.py"
    script.write_text(source.replace("ws://127.0.0.1:8080", gateway.link))
    agent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.DEVNULL, cwd=os.fspath(tmp_path))
    try:

        async def online() -> bool:
            answer = await api.http.get("/v1/agents/my-agent")
            return bool(answer.status_code == 200 and answer.json()["state"] == "online")

        await until(online)
        greeting = await api.start("my-agent", "greet", payload={"name": "you", "times": 2})
        assert await api.output(greeting) == "hello you\nhello you\n"
        end = await api.end(await api.start("my-agent", "primes", payload={"below": 20}))
        assert end["payload"] == [2, 3, 5, 7, 11, 13, 17, 19]
        wrong = await api.end(await api.start("my-agent", "greet", payload={"name": 7}))
        assert wrong["error"]["code"] == "invalid_arguments"
        assert "name" in wrong["error"]["message"]
    finally:
        agent.terminate()
        assert await asyncio.to_thread(agent.wait, 15) == 0
