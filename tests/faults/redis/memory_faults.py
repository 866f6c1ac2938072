"""Faults of a Redis whose memory is full: of events, of output, of agents that never come back, of their labels. Each
fills it in turn and makes room again; commands go on meanwhile, and only new ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from websockets import Subprotocol
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Event

from faults.agent_methods import TOKEN
from faults.redis.played_fleet import answering
from faults.redis.redis_fault import LOCAL, RedisFault, Scene
from faults.redis.server_faults import NOTHING, OneServer, opened
from support.gateway.scripted_agent import ScriptedAgent
from support.waiting import until

MIB = 1 << 20
MEMORY = 16 * MIB
FULL_SHARE = 0.9
AT_ONCE = 16
GHOSTS = 4_000
"""At most. Each takes some 9 KiB with its facts, and as much with its labels."""
LABELLED = 3_000
"""At most; half of them take the memory."""
FACTS = {f"fact-{n}": "f" * 200 for n in range(18)}
"""Some 4 KiB, the most that the facts of one agent may have."""
LABELS = {f"label-{n}": "l" * 63 for n in range(64)}
FLOODS = 4
EVENT = b'"' + b"e" * 30_000 + b'"'
PATIENCE = 240.0


@asynccontextmanager
async def limited(folder: Path) -> AsyncIterator[OneServer]:
    async with opened(OneServer(folder, ("--maxmemory", str(MEMORY)))) as made:
        yield made


async def events(scene: Scene) -> None:
    """Some agents emit as much as they may. Events have a twentieth of the memory, so nothing is refused: the oldest
    make room."""
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(_link(scene, f"flood-{n}")) for n in range(FLOODS)]
        floods = [asyncio.create_task(_emit(link)) for link in links]
        try:
            await until(lambda: _dropped(scene), PATIENCE)
            await asyncio.sleep(scene.lengths.trouble)
            assert await _share(scene) < FULL_SHARE
            await until(lambda: _accepts_everywhere(scene))
        finally:
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
    await answering(scene.fleet)


async def outputs(scene: Scene) -> None:
    """Open commands write more than there is room for. They go on writing; ended ones make room."""
    commands = []
    for number, agent in enumerate(scene.fleet.names[:4]):
        payload = {"key": f"much {number}", "count": 10_000, "width": 60_000, "pause": 0.05}
        body = {"agent": agent, "method": "work", "deadline": 600, "payload": payload}
        answer = await scene.fleet.http.post(_commands(scene), json=body, timeout=25)
        assert answer.status_code == 202, answer.text
        commands.append(answer.json()["id"])
    await _full_for_a_while(scene)
    for command in commands:
        held = await scene.fleet.http.get(f"{_commands(scene)}/{command}")
        assert held.json()["state"] == "running", held.text
        await until(partial(_is_cancelled, scene, command))
    await _has_room_again(scene)


async def ghosts(scene: Scene) -> None:
    """Agents that connect once, with as many facts as there may be, and never again."""
    names = await _make_ghosts(scene, FACTS, lambda: _refuses_everywhere(scene))
    await _full_for_a_while(scene)
    await _delete(scene, names)
    await _has_room_again(scene)


async def labels(scene: Scene) -> None:
    """Agents get as many labels as there may be. They are so few that there is room without their labels."""
    names = await _make_ghosts(scene, {}, _never, LABELLED)
    await _each(names, lambda name: _label(scene, name, LABELS), lambda: _is_full(scene))
    await _full_for_a_while(scene)
    await _each(names, lambda name: _label(scene, name, dict.fromkeys(LABELS)))
    await _has_room_again(scene)
    await _delete(scene, names)


async def _never() -> bool:
    return False


async def _make_ghosts(
    scene: Scene, facts: dict[str, str], enough: Callable[[], Awaitable[bool]], most: int = GHOSTS
) -> list[str]:
    names = [f"ghost-{n}" for n in range(most)]
    made: list[str] = []

    async def make(name: str) -> None:
        async with _link(scene, name, facts):
            made.append(name)

    await _each(names, make, enough)
    return made


async def _each(
    names: list[str], step: Callable[[str], Awaitable[None]], enough: Callable[[], Awaitable[bool]] = _never
) -> None:
    """Do one step for each of the names, some at once, until that is enough."""
    for start in range(0, len(names), 4 * AT_ONCE):
        if await enough():
            return
        left = iter(names[start : start + 4 * AT_ONCE])

        async def work(left: Any = left) -> None:
            for name in left:
                await step(name)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


@asynccontextmanager
async def _link(scene: Scene, name: str, facts: dict[str, str] | None = None) -> AsyncIterator[ScriptedAgent]:
    """A link that is welcome; it is opened again while its node refuses it, or closes it, because it is busy."""
    async with asyncio.timeout(PATIENCE):
        while (agent := await _welcome(scene, name, facts or {})) is None:
            await asyncio.sleep(scene.fleet.rng.uniform(0.2, 1.0))
    try:
        yield agent
    finally:
        await agent.socket.close()


async def _welcome(scene: Scene, name: str, facts: dict[str, str]) -> ScriptedAgent | None:
    try:
        socket = await connect(
            f"ws://127.0.0.1:{scene.fleet.a_node().link}/v1/link", subprotocols=[Subprotocol(SUBPROTOCOL_MSGPACK)],
            additional_headers={"Authorization": f"Bearer {TOKEN}"}, compression=None, ping_interval=None, proxy=None,
        )  # fmt: skip
        agent = ScriptedAgent(socket, SUBPROTOCOL_MSGPACK, name)
        await agent.greet(facts=facts)
    except (OSError, TimeoutError, WebSocketException):
        return None
    return agent


async def _emit(link: ScriptedAgent) -> None:
    """Emit large events, each once the one before is stored."""
    number = 0
    while True:
        await link.send(Event(id=f"{link.agent}-{number}", type="flood", qos=1, payload=EVENT))
        await link.receive()
        number += 1


async def _label(scene: Scene, name: str, changes: dict[str, Any]) -> None:
    url = f"http://127.0.0.1:{scene.fleet.a_node().api}/v1/agents/{name}"

    async def labelled() -> bool:
        answer = await scene.fleet.http.patch(url, json={"labels": changes}, timeout=25)
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200

    await until(labelled)


async def _delete(scene: Scene, names: list[str]) -> None:
    async def delete(name: str) -> None:
        url = f"http://127.0.0.1:{scene.fleet.a_node().api}/v1/agents/{name}"

        async def gone() -> bool:
            answer = await scene.fleet.http.delete(url, timeout=25)
            assert answer.status_code in (200, 404, 409, 503), answer.text  # 409: its link is not released yet
            return answer.status_code in (200, 404)

        await until(gone)

    await _each(names, delete)


async def _is_cancelled(scene: Scene, command: str) -> bool:
    answer = await scene.fleet.http.delete(f"{_commands(scene)}/{command}", timeout=25)
    return answer.status_code == 202


async def _full_for_a_while(scene: Scene) -> None:
    """Wait until each node refuses new commands as `store_full`, and a while longer. All links stay, and no node says
    that Redis is away."""
    await until(lambda: _refuses_everywhere(scene), PATIENCE)
    links = sum([await scene.fleet.metric(node, "fairlead_links") for node in scene.fleet.nodes])
    await asyncio.sleep(scene.lengths.trouble)
    await until(lambda: _refuses_everywhere(scene))
    for node in scene.fleet.nodes:
        ready = await scene.fleet.http.get(f"http://127.0.0.1:{node.admin}/readyz", timeout=25)
        assert (ready.status_code, "nearly full" in ready.text) == (200, True), ready.text
        assert await scene.fleet.metric(node, "fairlead_redis_up") == 1
    assert sum([await scene.fleet.metric(node, "fairlead_links") for node in scene.fleet.nodes]) == links


async def _has_room_again(scene: Scene) -> None:
    await until(lambda: _accepts_everywhere(scene), PATIENCE)
    await answering(scene.fleet)


async def _refuses_everywhere(scene: Scene) -> bool:
    return await _answers(scene) == {"store_full"}


async def _accepts_everywhere(scene: Scene) -> bool:
    return await _answers(scene) == {"accepted"}


async def _answers(scene: Scene) -> set[str]:
    """What the nodes answer to a new command: `accepted`, or the code of the problem."""
    body, found = {"agent": scene.fleet.names[-1], "method": "unknown"}, set()
    for at in range(len(scene.fleet.nodes)):
        try:
            answer = await scene.fleet.http.post(_commands(scene, at), json=body, timeout=25)
        except httpx2.RequestError:
            found.add("nothing")
            continue
        assert answer.status_code in (202, 503), answer.text
        found.add("accepted" if answer.status_code == 202 else str(answer.json()["code"]))
    return found


def _commands(scene: Scene, at: int = 0) -> str:
    return f"http://127.0.0.1:{scene.fleet.nodes[at].api}/v1/commands"


async def _is_full(scene: Scene) -> bool:
    """By the word of the server: nodes look once in some seconds, in which a thousand agents get labels."""
    return int((await scene.servers.server.info("memory"))["used_memory"]) > FULL_SHARE * MEMORY


async def _share(scene: Scene) -> float:
    return await scene.fleet.metric(scene.fleet.nodes[0], "fairlead_redis_memory_bytes") / MEMORY


async def _dropped(scene: Scene) -> bool:
    return any([await scene.fleet.metric(node, "fairlead_events_dropped_total") for node in scene.fleet.nodes])


def _fault(
    words: str, play: Callable[[Scene], Awaitable[None]], *, events: bool = False, agents: int = 18, rate: float = 8.0
) -> RedisFault:
    """A full Redis drops the oldest results of commands that have ended."""
    return RedisFault(
        words, limited, play, NOTHING, (LOCAL,), events=events, results=False, agents=agents, rate=rate
    )  # fmt: skip


MEMORY_FAULTS = (
    _fault("memory: a flood of events", events),
    _fault("memory: full of the output of open commands", outputs, events=True),
    _fault("memory: full of agents that never come back", ghosts, events=True),
    # Labels take minutes to set and to remove: more commands would fill the memory with their own records meanwhile.
    _fault("memory: full of labels", labels, events=True, agents=6, rate=2.0),
)
