"""Hosts of asyncssh: `ssh_hosts.py serve COUNT FILE` runs servers in one process and writes their ports and the
client's key; `ssh_hosts.py call FILE serial|concurrent|connected` runs one command on each and prints seconds and CPU
as JSON.

A command is answered by the server's own process factory: no program is started, as with the simulated agents.
`serial` and `concurrent` connect for each command, as one who has a list of hosts does; `connected` has all connections
beforehand, as a gateway has its links.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh  # type: ignore[import-not-found]  # in the peers' own environment only
import uvloop

OUTPUT = "x" * 64
"""What a command writes, as the simulated agents do."""


async def serve(count: int, file: Path) -> None:
    host_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    allowed = asyncssh.import_authorized_keys(client_key.export_public_key().decode())

    def run(process: Any) -> None:
        process.stdout.write(OUTPUT)
        process.exit(0)

    ports = []
    for _ in range(count):
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], authorized_client_keys=allowed, process_factory=run
        )
        ports.append(server.get_port())
    file.write_text(json.dumps({"ports": ports, "key": client_key.export_private_key().decode()}))
    await asyncio.Event().wait()


async def call(file: Path, way: str) -> dict[str, float]:
    known = json.loads(file.read_text())
    ports, key = known["ports"], asyncssh.import_private_key(known["key"])

    async def connect(port: int) -> Any:
        return await asyncssh.connect("127.0.0.1", port, username="bench", client_keys=[key], known_hosts=None)

    async def command(connection: Any) -> None:
        done = await connection.run("bench", check=True)
        if done.stdout != OUTPUT:
            raise SystemExit(f"a host answered {done.stdout!r}")

    async def one(port: int) -> None:
        async with await connect(port) as connection:
            await command(connection)

    connections = [await connect(port) for port in ports] if way == "connected" else []
    started, cpu = time.perf_counter(), time.process_time()
    if way == "serial":
        for port in ports:
            await one(port)
    elif way == "concurrent":
        await asyncio.gather(*(one(port) for port in ports))
    else:
        await asyncio.gather(*(command(connection) for connection in connections))
    found = {"seconds": time.perf_counter() - started, "caller_ms": (time.process_time() - cpu) * 1000}
    for connection in connections:
        connection.abort()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        uvloop.run(serve(int(sys.argv[2]), Path(sys.argv[3])))
    else:
        print(json.dumps(uvloop.run(call(Path(sys.argv[2]), sys.argv[3]))))
