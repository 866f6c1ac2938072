"""A captured gateway against an agent that trusts one key: nothing runs but what that key has signed, and once.

Each attack is a command, or several, that the gateway sends; `ran` counts what its agent has run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from fairlead.agent import Agent, Command
from fairlead.agent.journal.journal import Journal
from fairlead.agent.verification.command_verifier import CLOCK_TOLERANCE_MS, CommandVerifier
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.errors import ConfigError
from fairlead.signing.input_signature import input_to_sign, pack_input
from fairlead.signing.keys import PrivateKey, generate
from fairlead.wire.messages import Ack, Chunk, Cmd, End

from support.agent.forged_commands import CommandForger
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import TIMEOUT, Link
from support.signing import AGENT, signed, signed_run, unix_ms

KEY, OTHER = generate(), generate()
TEN_MINUTES = 600_000


class PinnedAgent:
    """An agent that trusts KEY and counts what it runs, over restarts."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        self.ran: list[str] = []
        self.read: list[bytes] = []
        self.agent: Agent | None = None
        self._serving: asyncio.Task[None] | None = None

    async def linked(self, have: dict[str, int] | None = None) -> Link:
        agent = Agent(
            self.gateway.url, AGENT, "token-1", journal=self.folder / "journal", trusted_keys=TrustedKeys([KEY.public])
        )
        self.agent = agent

        @agent.command("work")
        async def work(command: Command) -> None:
            self.ran.append(command.id)

        @agent.command("hang")
        async def hang(command: Command) -> None:
            self.ran.append(command.id)
            await asyncio.Event().wait()

        @agent.command("read")
        async def read(command: Command) -> str:
            self.ran.append(command.id)
            async for data in command.stdin:
                self.read.append(data)
            return "all of it"

        @agent.command("read-in-a-thread")
        def read_in_a_thread(command: Command) -> None:
            for data in command.stdin:
                self.read.append(data)

        self._serving = asyncio.create_task(agent.serve())
        return await self.gateway.linked(have=have or {})

    async def stop(self) -> None:
        if self.agent is not None and self._serving is not None:
            self.agent.stop()
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.timeout(TIMEOUT):
                    await self._serving


@pytest.fixture
async def pinned(gateway: Gateway, tmp_path: Path) -> AsyncIterator[PinnedAgent]:
    pinned = PinnedAgent(gateway, tmp_path)
    yield pinned
    await pinned.stop()


async def send(link: Link, cmd: Cmd) -> None:
    if link.state.stream(cmd.id) is None:
        link.state.opened(cmd.id)
    await link.send(cmd)


async def ack(link: Link, cmd: Cmd) -> Ack:
    """Send a command; what the agent answers to it."""
    before = len(link.of(Ack, cmd.id))
    await send(link, cmd)
    await link.until(lambda: len(link.of(Ack, cmd.id)) > before)
    return link.of(Ack, cmd.id)[before]


async def refusal(link: Link, cmd: Cmd) -> str:
    answer = await ack(link, cmd)
    assert answer.state == "refused", answer
    assert answer.error is not None
    assert ":" in answer.error.message or answer.error.temporary, "what was wrong: what was expected"
    return answer.error.code


async def test_each_attack_is_refused_with_its_code_and_runs_nothing(pinned: PinnedAgent) -> None:
    link, attacks = await pinned.linked(), CommandForger(KEY, OTHER).forgeries()
    told = {name: await refusal(link, make()) for name, (make, _) in attacks.items()}
    assert told == {name: code for name, (_, code) in attacks.items()}
    assert pinned.ran == []
    good = signed(KEY, "work")
    assert (await ack(link, good)).state == "accepted"
    assert (await link.end(good.id)).state == "ok"
    assert pinned.ran == [good.id]
    assert pinned.agent is not None
    assert pinned.agent._verifier is not None
    assert pinned.agent._verifier.rejections.total() == len(attacks)


RUN = [AGENT, "agent-2", "agent-3", "agent-4", "agent-5"]


def of_run(agent: str = AGENT, key: PrivateKey = KEY, **terms: object) -> Callable[[], Cmd]:
    """The command of a signed run for `agent`, changed by the gateway."""
    return lambda: msgspec.structs.replace(signed_run(key, "work", RUN)[agent], **terms)


def with_sig(change: Callable[[bytes], bytes]) -> Callable[[], Cmd]:
    return lambda: msgspec.structs.replace(cmd := signed_run(KEY, "work", RUN)[AGENT], sig=change(cmd.sig))


RUN_ATTACKS: dict[str, tuple[Callable[[], Cmd], str]] = {
    "the command of another target": (of_run("agent-2"), "signature_invalid"),
    "of a run that the agent is not in": (lambda: signed_run(KEY, "work", RUN[1:])["agent-2"], "signature_invalid"),
    "another key": (of_run(key=OTHER), "signature_key_unknown"),
    "under an id of its own": (of_run(id="0b9cb19e-0a0b-4b6c-8f4e-000000000000"), "signature_invalid"),
    "another method of the run": (of_run(method="hang"), "signature_invalid"),
    "another payload of the run": (of_run(payload=b'{"argv":["rm"]}'), "signature_invalid"),
    "run again if its outcome is unknown": (of_run(retry="safe"), "signature_invalid"),
    "in another lane": (of_run(lane="interactive"), "signature_invalid"),
    "the signature of a run without a path": (with_sig(lambda sig: sig[:98]), "signature_invalid"),
    "a path that stops early": (with_sig(lambda sig: sig[:-33]), "signature_invalid"),
    "a path that goes on": (with_sig(lambda sig: sig + bytes(33)), "signature_invalid"),
    "a step on the other side": (
        with_sig(lambda sig: sig[:98] + bytes((1 - sig[98],)) + sig[99:]),
        "signature_invalid",
    ),
    "a step on neither side": (with_sig(lambda sig: sig[:98] + b"\2" + sig[99:]), "signature_invalid"),
    "half a step": (with_sig(lambda sig: sig[:-1]), "signature_invalid"),
    "a path without an end": (with_sig(lambda sig: sig + bytes(33) * 21), "signature_invalid"),
    "said to be of a single command": (with_sig(lambda sig: b"\1" + sig[1:98]), "signature_invalid"),
    "a single command said to be of a run": (
        lambda: (cmd := signed(KEY, "work")) and msgspec.structs.replace(cmd, sig=b"\2" + cmd.sig[1:]),
        "signature_invalid",
    ),
    "valid for longer": (
        with_sig(lambda sig: sig[:26] + (unix_ms() + TEN_MINUTES).to_bytes(8, "big") + sig[34:]),
        "signature_invalid",
    ),
    "with input": (with_sig(lambda sig: sig[:1] + b"\1" + sig[2:]), "signature_invalid"),
}


async def test_the_signature_of_a_run_serves_for_what_its_caller_put_into_it_and_for_nothing_else(
    pinned: PinnedAgent,
) -> None:
    link = await pinned.linked()
    told = {name: await refusal(link, make()) for name, (make, _) in RUN_ATTACKS.items()}
    assert told == {name: code for name, (_, code) in RUN_ATTACKS.items()}
    assert pinned.ran == []
    for agents in ([AGENT], RUN[:2], RUN[:3], RUN):
        good = signed_run(KEY, "work", agents)[AGENT]
        assert (await ack(link, good)).state == "accepted"
        assert (await link.end(good.id)).state == "ok"
    assert len(pinned.ran) == 4
    await pinned.stop()
    again = await pinned.linked()
    assert (await ack(again, good)).state == "duplicate"
    assert len(pinned.ran) == 4


async def test_a_repetition_is_a_duplicate_and_a_replay_after_a_restart_is_refused(pinned: PinnedAgent) -> None:
    link = await pinned.linked()
    commands = [signed(KEY, "work", valid=300_000) for _ in range(20)]
    for cmd in commands:
        assert (await ack(link, cmd)).state == "accepted"
        await link.end(cmd.id)
    for cmd in commands:
        assert (await ack(link, msgspec.structs.replace(cmd, attempt=2))).state == "duplicate"
    await pinned.stop()
    again = await pinned.linked()
    assert {(await ack(again, cmd)).state for cmd in commands} == {"duplicate"}
    assert pinned.ran == [cmd.id for cmd in commands]


async def test_a_command_is_remembered_longer_than_the_ids_of_others(pinned: PinnedAgent) -> None:
    """The outbox remembers 1,024 ids; a gateway could send as many to have an older one forgotten."""
    link = await pinned.linked()
    first = signed(KEY, "work", valid=300_000)
    await ack(link, first)
    for _ in range(1_100):
        cmd = signed(KEY, "work")
        await send(link, cmd)
        await link.end(cmd.id)
    assert await refusal(link, first) == "signature_replayed"
    await pinned.stop()
    again = await pinned.linked()
    assert await refusal(again, first) == "signature_replayed"
    assert pinned.ran.count(first.id) == 1


async def test_a_lost_journal_takes_no_command_that_was_signed_before_it(pinned: PinnedAgent) -> None:
    link = await pinned.linked()
    cmd = signed(KEY, "work", valid=300_000)
    await ack(link, cmd)
    await link.end(cmd.id)
    await pinned.stop()
    for file in (pinned.folder / "journal").iterdir():
        file.unlink()
    again = await pinned.linked()
    assert await refusal(again, cmd) == "signature_replayed"
    assert len(pinned.ran) == 1


async def test_the_gateway_may_end_a_command_and_cannot_give_it_more_time_than_was_signed(
    pinned: PinnedAgent, tmp_path: Path
) -> None:
    link = await pinned.linked()
    cmd = signed(KEY, "hang")
    assert (await ack(link, cmd)).state == "accepted"
    await link.cancel(cmd.id)  # it could as well withhold the command
    assert (await link.end(cmd.id)).state == "cancelled"

    journal = Journal(tmp_path / "another", AGENT)
    now = unix_ms()
    verifier = CommandVerifier(AGENT, TrustedKeys([KEY.public]), lambda: now)
    late = signed(KEY, "hang", valid=10_000, issued=now)
    for given, left in ((86_400_000, 10_000 + CLOCK_TOLERANCE_MS), (4_000, 4_000)):
        verified = verifier.verify(msgspec.structs.replace(late, deadline=given), journal)
        assert (verified.cmd.deadline, verified.remember_until) == (left, now + 10_000 + CLOCK_TOLERANCE_MS)
    await journal.close()


async def input_chunks(command: str, *parts: bytes, key: PrivateKey = KEY, start: int = 0) -> list[bytes]:
    """Signed chunks, the last of which says so."""
    packed = []
    for n, data in enumerate(parts, start):
        last = n == start + len(parts) - 1
        octets = input_to_sign(key.public.id, AGENT, command, n, last, data)
        packed.append(pack_input(last, key.sign(octets), data))
    return packed


async def fed(link: Link, cmd: Cmd, chunks: list[bytes], end: bool = True) -> End:
    await ack(link, cmd)
    await link.feed(cmd.id, *chunks)
    if end:
        await link.feed_end(cmd.id)
    return await link.end(cmd.id)


async def test_signed_input_is_read_as_it_was_signed(pinned: PinnedAgent) -> None:
    link = await pinned.linked()
    cmd = signed(KEY, "read", input="signed")
    end = await fed(link, cmd, await input_chunks(cmd.id, b"one", b"two", b""))
    assert (end.state, end.payload, pinned.read) == ("ok", b'"all of it"', [b"one", b"two"])
    threaded = signed(KEY, "read-in-a-thread", input="signed")
    assert (await fed(link, threaded, await input_chunks(threaded.id, b"three"))).state == "ok"
    assert pinned.read == [b"one", b"two", b"three"]


@pytest.mark.parametrize("method", ["read", "read-in-a-thread"])
async def test_input_that_nobody_signed_ends_the_command_unread(pinned: PinnedAgent, method: str) -> None:
    link = await pinned.linked()
    other = signed(KEY, method, input="signed")

    async def attack(name: str, cmd: Cmd) -> tuple[list[bytes], bool]:
        one, two, _last = await input_chunks(cmd.id, b"one", b"two", b"")
        return {
            "not signed": ([b"rm -rf /\n"], True),
            "another key": ((await input_chunks(cmd.id, b"x", key=OTHER)), True),
            "of another command": ((await input_chunks(other.id, b"x")), True),
            "out of order": ([two], True),
            "twice": ([one, one], True),
            "changed": ([one[:-1] + b"!"], True),
            "said to be the last": ([b"\x01" + one[1:]], True),
            "behind the last": (
                [*(await input_chunks(cmd.id, b"")), *(await input_chunks(cmd.id, b"x", start=1))],
                True,
            ),
            "ended early": ([one, two], True),
            "ended at once": ([], True),
        }[name]

    names = {
        "not signed": "input_signature_missing", "another key": "input_signature_invalid",
        "of another command": "input_signature_invalid", "out of order": "input_signature_invalid",
        "twice": "input_signature_invalid", "changed": "input_signature_invalid",
        "said to be the last": "input_signature_invalid", "behind the last": "input_signature_invalid",
        "ended early": "input_signature_invalid", "ended at once": "input_signature_invalid",
    }  # fmt: skip
    told = {}
    for name in names:
        cmd = signed(KEY, method, input="signed")
        chunks, end = await attack(name, cmd)
        ended = await fed(link, cmd, chunks, end)
        assert ended.state == "error"
        assert ended.error is not None
        told[name] = ended.error.code
    assert told == names
    assert set(pinned.read) <= {b"one", b"two"}  # what was signed before the attack


async def test_a_command_that_was_signed_to_take_no_input_gets_none(pinned: PinnedAgent) -> None:
    link = await pinned.linked()
    cmd = signed(KEY, "read", input="none")
    end = await fed(link, cmd, await input_chunks(cmd.id, b"signed, but not allowed"))
    assert end.error is not None
    assert (end.error.code, pinned.read) == ("input_not_allowed", [])
    without = signed(KEY, "read", input="none")
    await ack(link, without)
    await link.feed_end(without.id)
    assert (await link.end(without.id)).state == "ok"


async def test_an_agent_without_trusted_keys_runs_what_it_is_sent(gateway: Gateway, link: Link, agent: Agent) -> None:
    @agent.command("work")
    async def work() -> None: ...

    for cmd in (signed(KEY, "work"), msgspec.structs.replace(signed(KEY, "work"), sig=b"anything")):
        assert (await ack(link, cmd)).state == "accepted"
        assert not link.of(Chunk, cmd.id)


def test_trusted_keys_need_a_journal(gateway: Gateway) -> None:
    with pytest.raises(ConfigError, match="trusted_keys need a journal"):
        Agent(gateway.url, AGENT, "token-1", trusted_keys=TrustedKeys([KEY.public]))
