"""An agent with one root, and its methods `file.get` and `file.put` as a caller uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import FileOptions, Options
from fairlead.wire.messages import End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import MB, WINDOW, Call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The one root of the agent; what lies beside it is forbidden."""
    root = tmp_path / "base"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.fixture
async def link(gateway: Gateway, serve: Serve, folder: Path) -> Link:
    beneath = FileOptions(roots=(str(folder),), max_bytes=64 * MB)
    agent = builtin_agent(gateway.url, "edge-1", "token-1", options=Options(file_get=beneath, file_put=beneath))
    serve(agent)
    return await gateway.linked(window=WINDOW)


@pytest.fixture
def get(link: Link) -> Call:
    """(rows, octets, end)"""
    count = 0

    async def call(path: object, **more: object) -> tuple[list[Any], bytes, End]:
        nonlocal count
        count += 1
        id = f"get-{count}"
        await link.command(id, "file.get", {"path": str(path), **more})
        end = await link.end(id)
        return link.rows(id), link.output(id, "file"), end

    return call


@pytest.fixture
def put(link: Link, make_put: Callable[[Link], Call]) -> Call:
    return make_put(link)


@pytest.fixture
def make_put() -> Callable[[Link], Call]:
    return put_over


def put_over(link: Link) -> Call:
    """For tests that make their own link."""
    count = 0

    async def call(path: object, data: bytes, **more: object) -> End:
        nonlocal count
        count += 1
        id = f"put-{count}"
        stream = await link.command(id, "file.put", {"path": str(path), **more})
        for start in range(0, len(data), 32 << 10):
            await link.until(lambda: stream.input_credit >= 32 << 10 or bool(link.of(End, id)))
            if link.of(End, id):
                return link.of(End, id)[0]
            await link.feed(id, data[start : start + (32 << 10)])
        await link.feed_end(id)
        return await link.end(id)

    return call
