"""Arguments by the types of the handler's own parameters: what does not fit is refused before it runs."""

from __future__ import annotations

from typing import Literal

import pytest

from fairlead.agent import Agent
from fairlead.wire.messages import Ack, End

from support.agent.scripted_link import Link


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b'{"name": 1}', "name"),
        (b'{"name": "x", "times": "3"}', "times"),
        (b'{"name": "x", "mode": "loud"}', "mode"),
        (b'{"name": "x", "tags": ["a", 1]}', "tags"),
        (b'{"name": "x", "color": "red"}', "color"),
        (b"{}", "name"),
        (b"", "name"),
        (b"[]", ""),
        (b"null", ""),
        (b'{"name": "x"', ""),
        (b'{"name": "\xff"}', ""),
        (b"[" * 100_000, ""),
    ],
    ids=[
        "type",
        "no-coercion",
        "literal",
        "element",
        "unknown",
        "missing",
        "empty",
        "list",
        "null",
        "cut",
        "utf8",
        "deep",
    ],
)
async def test_arguments_that_do_not_fit_are_refused(agent: Agent, link: Link, payload: bytes, named: str) -> None:
    ran: list[str] = []

    @agent.command("greet")
    async def greet(
        name: str,
        times: int = 1,
        mode: Literal["plain", "fancy"] = "plain",
        tags: list[str] | None = None,
    ) -> None:
        ran.append(name)

    await link.command("c1", "greet", payload=payload)
    ack = await link.expect(Ack, "c1")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "invalid_arguments"
    assert named in ack.error.message
    assert not ack.error.temporary
    # Nothing follows a refusal, and the agent is well.
    await link.command("c2", "greet", {"name": "x", "tags": ["a"]})
    assert (await link.end("c2")).state == "ok"
    assert not link.of(End, "c1")
    assert ran == ["x"]


async def test_an_unknown_method_is_refused(agent: Agent, link: Link) -> None:
    await link.command("c1", "no.such")
    ack = await link.expect(Ack, "c1")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "unknown_method"
    assert "no.such" in ack.error.message
    assert "expected one of" in ack.error.message


async def test_the_refusal_of_an_unknown_method_names_those_that_there_are(agent: Agent, link: Link) -> None:
    @agent.command("backup.start")
    async def start(volume: str, full: bool = False) -> None: ...

    await link.command("c1", "backup.strat")
    ack = await link.expect(Ack, "c1")
    assert ack.error is not None
    assert ack.error.message == (
        "this agent has no method 'backup.strat' (did you mean backup.start?): expected one of backup.start"
    )
    await link.command("c2", "backup.start", {"full": True})
    ack = await link.expect(Ack, "c2")
    assert ack.error is not None
    assert ack.error.message.endswith("(expected volume, [full])")


async def test_a_refused_command_may_be_tried_again(agent: Agent, link: Link) -> None:
    """It never ran, so it is no duplicate: a method may have come with an update."""
    await link.command("c1", "late")
    await link.expect(Ack, "c1")

    @agent.command("late")
    async def late() -> int:
        return 1

    await link.command("c1", "late", attempt=2)
    assert (await link.end("c1")).state == "ok"
    assert [ack.state for ack in link.of(Ack, "c1")] == ["refused", "accepted"]
