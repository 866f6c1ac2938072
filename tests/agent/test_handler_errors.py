"""Handlers that fail: the error is readable, fits into a message, and reveals nothing about the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.agent import Agent, CommandError

from support.agent.scripted_link import Link


async def test_a_command_error_is_the_error_of_the_end(agent: Agent, link: Link) -> None:
    @agent.command("fail")
    async def fail() -> None:
        raise CommandError("disk_full", "no room on /var", temporary=True, free=0, path="/var")

    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert (end.error.code, end.error.message, end.error.temporary) == ("disk_full", "no room on /var", True)
    assert end.error.details == {"free": 0, "path": "/var"}


@pytest.mark.parametrize("kind", ["coroutine", "thread", "async-generator", "generator"])
async def test_other_exceptions_are_reported_without_a_traceback(agent: Agent, link: Link, kind: str) -> None:
    async def coroutine() -> None:
        raise KeyError("secret place")

    def thread() -> None:
        raise KeyError("secret place")

    async def async_generator() -> AsyncIterator[str]:
        yield "first"
        raise KeyError("secret place")

    def generator() -> Iterator[str]:
        yield "first"
        raise KeyError("secret place")

    agent.command("fail")(
        {"coroutine": coroutine, "thread": thread, "async-generator": async_generator}.get(kind, generator)
    )
    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert end.error.code == "handler_failed"
    assert "KeyError" in end.error.message
    assert "Traceback" not in end.error.message
    assert __file__ not in end.error.message
    if "generator" in kind:
        assert end.total == 1
        assert link.output("c1") == b"first"


async def test_errors_too_large_for_a_message_are_shortened(agent: Agent, link: Link) -> None:
    @agent.command("long")
    async def long() -> None:
        raise CommandError("c" * 200, "m" * 5000, False, **{f"k{n}": n for n in range(40)})

    @agent.command("raise")
    async def other() -> None:
        raise RuntimeError("m" * 5000)

    @agent.command("details")
    async def details() -> None:
        raise CommandError("code", "message", False, **{"k" * 100: "v" * 100_000})

    for n, method in enumerate(("long", "raise", "details")):
        await link.command(f"c{n}", method)
        end = await link.end(f"c{n}")
        assert end.state == "error"
        assert end.error is not None
        assert 1 <= len(end.error.code) <= 64
        assert len(end.error.message) <= 1024
        assert len(end.error.details) <= 16
        assert all(1 <= len(key) <= 64 for key in end.error.details)


async def test_a_command_error_without_a_code_gets_one(agent: Agent, link: Link) -> None:
    @agent.command("fail")
    async def fail() -> None:
        raise CommandError("", "")

    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.error is not None
    assert end.error.code


async def test_results_that_are_not_json_are_errors(agent: Agent, link: Link) -> None:
    @agent.command("object")
    async def value() -> object:
        return object()

    @agent.command("row")
    async def row() -> AsyncIterator[object]:
        yield {"fine": True}
        yield {"odd": object()}

    @agent.command("thread-row")
    def thread_row() -> Iterator[object]:
        yield {"odd": object()}

    for id, method in enumerate(("object", "row", "thread-row")):
        await link.command(f"c{id}", method)
        end = await link.end(f"c{id}")
        assert (end.state, end.error.code if end.error else "") == ("error", "handler_failed"), method


async def test_a_result_too_large_for_a_message_is_an_error(agent: Agent, link: Link) -> None:
    """The link itself must survive it: a message above the limit would close every link it is repeated on."""

    @agent.command("large")
    async def large() -> str:
        return "x" * (2 << 20)

    @agent.command("row")
    async def row() -> AsyncIterator[object]:
        yield {"large": "x" * 100_000}
        yield "after"

    await link.command("c1", "large")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert end.error.code == "result_too_large"
    await link.command("c2", "row")
    end = await link.end("c2")
    # A row is one JSON value in one chunk: it is whole or it is an error, never cut in two.
    assert end.state == "error" or all(link.rows("c2"))
