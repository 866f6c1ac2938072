"""The network between the servers of a Redis, in a process of its own. Plays measure with theirs, which would be the
bottleneck of everything that servers and nodes send each other.

    python -m support.valkey.network_process

reads what to do as lines of JSON, `[what, target, …]`, and ends with its input. `NetworkProcess` starts it; what that
asks for is done a moment later, in the order in which it asked.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import TracebackType

from support.valkey.network import Network, NetworkLine
from support.waiting import until


class _DistantLine(NetworkLine):
    """The same calls as those of a line, which are passed on to the process."""

    def __init__(self, target: int, process: NetworkProcess) -> None:
        super().__init__(target)
        self._process = process

    async def start(self) -> None:
        self._process.tell("start", self._target, self.port)
        await until(self._is_open)

    async def _is_open(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    async def stop(self) -> None:
        pass  # with the process

    def hold(self, source: str) -> None:
        self._process.tell("hold", self._target, source)

    def release(self, source: str) -> None:
        self._process.tell("release", self._target, source)

    def release_all(self) -> None:
        self._process.tell("release_all", self._target)

    def cut(self) -> None:
        self._process.tell("cut", self._target)

    def delay_by(self, least: float, most: float) -> None:
        self._process.tell("delay_by", self._target, least, most)


class NetworkProcess(Network):
    """Used as a `Network` is."""

    def __init__(self) -> None:
        super().__init__()
        self._process: subprocess.Popen[str] | None = None

    def _new_line(self, port: int) -> NetworkLine:
        return _DistantLine(port, self)

    def tell(self, *words: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)

    async def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.valkey.network_process"], stdin=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        await super().start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


async def _serve() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), sys.stdin)
    lines: dict[int, NetworkLine] = {}
    while told := await reader.readline():
        what, target, *details = json.loads(told)
        if what == "start":
            lines[target] = NetworkLine(target)
            lines[target].port = details[0]
            await lines[target].start()
        else:
            getattr(lines[target], what)(*details)


if __name__ == "__main__":
    asyncio.run(_serve())
