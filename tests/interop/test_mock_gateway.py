"""`fairlead mock-gateway`, the first tool of an SDK author: correct agents pass, and faults of the others are named.

Each test is the command as a process with an agent as a process: the SDK's in both encodings, one in another language,
and agents that are broken on purpose.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.mock.script import load_conversations

HERE = Path(__file__).resolve().parent
NODE_AGENT, SDK_AGENT = HERE / "agent.mjs", HERE / "controlled_agent.py"
PLAYABLE = [conversation for conversation in load_conversations() if conversation.for_agents]


async def run(*arguments: str, timeout: float = 280) -> tuple[int, str]:
    """The exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "mock-gateway", "--port", "0", *arguments,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), timeout)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, printed.decode()


def judged(printed: str, word: str) -> list[str]:
    """The conversations of which the report says `word`."""
    return [c.name for c in PLAYABLE if re.search(rf"(?m)^{word} +{re.escape(c.name)}(: .*)?$", printed)]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_the_sdk_plays_all_conversations(tmp_path: Path, encoding: str) -> None:
    """On MessagePack with a journal, on JSON without: together all of them are played."""
    journal = [str(tmp_path)] if encoding == "msgpack" else []
    command = [sys.executable, str(SDK_AGENT), "{link}", encoding, *journal]
    code, printed = await run("--encoding", encoding, "--timeout", "20", "--", *command)
    assert code == 0, printed
    assert judged(printed, "skip") == ["a new start of the agent" if journal else "a new start of a durable agent"]
    assert len(judged(printed, "ok")) == len(PLAYABLE) - 1 >= 35


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_an_agent_in_another_language_plays_all_conversations(node_js: str) -> None:
    command = [node_js, str(NODE_AGENT), "{link}", "edge-17", "--orders"]
    code, printed = await run("--timeout", "20", "--", *command)
    assert code == 0, printed
    assert judged(printed, "skip") == ["a new start of a durable agent"]
    assert len(judged(printed, "ok")) == len(PLAYABLE) - 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "conversation", "says"),
    [
        (
            ("n: this.next++", "n: this.next++ + (this.next > 1)"),
            "a command",
            [
                "step 6 of 9: the message is not the expected one",
                "differs   n: expected 1, got 2",
                "section 5 Commands",
            ],
        ),
        (
            ("[...this.streams.values()]) {\n      if (m.have", "[]) {\n      if (m.have"),
            "the worked example",
            ["step 13 of 18: no message came within 5 s", 'expected  chunk {"t": 6', "section 8 Resuming"],
        ),
        (
            ("this.conn += 1", "this.conn = 1"),
            "a command",
            ["conn is 1 after 1: it MUST grow", "section 10 Reconnecting"],
        ),
        (("conn: this.conn,", ""), "a command", ["not a legal message", "conn", "section 3 Messages"]),
        (
            ("    s.cut();\n", "    \n"),
            "a cancel, and output without credit",
            ["step 10 of 12", "section 5 Commands"],
        ),
        (
            ("if (this.final) {", "if (false) {"),
            "replaced",
            ["step 5 of 5: the agent reconnected: after a close code from 4500 on", "section 9 Leaving"],
        ),
        (
            ("if (!link.welcomed) ensure([2, 3, 14].includes(m.t), `type ${m.t} before welcome`);", ""),
            "violation: cmd before welcome",
            ["did not close within 5 s, expected a close with 4500", "section 4 The conversation"],
        ),
        (
            ("s.deadline = setTimeout(late,", "s.deadline = setTimeout(() => {},"),
            "a deadline",
            ["step 6 of 7: no message came within 5 s", 'expected  end {"t": 7', "section 5 Commands"],
        ),
        (
            ("else if (answer.retryAfter !== undefined)", "else if (false)"),
            "refused for a while",
            ["step 5 of 10: the agent reconnected after", "expected at least 1000 ms", "section 1 Connecting"],
        ),
        (
            ("this.agent.next || !this.agent.link", "!this.agent.link"),
            "input over a move",
            ["step 11 of 16: input was granted on the old link after hello on the new one", "section 9 Leaving"],
        ),
        (
            ("if (!old?.kept) old?.leave();", ""),
            "a move",
            ["step 13 of 18: the agent did not close within 5 s, expected a close with 1000", "section 9 Leaving"],
        ),
    ],
    ids=[
        "a gap",
        "nothing again",
        "conn",
        "no conn",
        "waits for credit",
        "comes back",
        "before welcome",
        "no deadline",
        "no Retry-After",
        "grants on the old link",
        "keeps the old link",
    ],
)
async def test_a_broken_agent_gets_the_violation_named(
    node_js: str, tmp_path: Path, fault: tuple[str, str], conversation: str, says: list[str]
) -> None:
    for name in ("agent.mjs", "messages.mjs", "socket.mjs"):
        (tmp_path / name).write_text((HERE / name).read_text())
    program = tmp_path / "agent.mjs"
    source = program.read_text()
    assert fault[0] in source
    program.write_text(source.replace(*fault))
    command = [node_js, str(program), "{link}", "edge-17", "--orders"]
    code, printed = await run("--only", conversation, "--timeout", "5", "--", *command)
    assert code == 1, printed
    assert judged(printed, "FAIL") == [conversation]
    for words in says:
        assert words in printed
    assert "1 conversations: 0 ok, 1 failed, 0 skipped" in printed


async def test_a_program_that_is_not_an_agent_is_reported() -> None:
    code, printed = await run("--timeout", "1", "--only", "a command", "--", sys.executable, "-c", "print('hi')")
    assert code == 1
    assert "the agent's process has ended with 0" in printed
    assert "agent: hi" in printed
    code, printed = await run("--only", "a command", "--", "/no/such/agent")
    assert code == 2
    assert "cannot start the agent '/no/such/agent'" in printed


async def test_without_a_command_only_conversations_that_need_no_orders_are_played(node_js: str) -> None:
    """The agent is started by hand, as a developer does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "mock-gateway", "--port", "0", "--only", "*re*",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    agent: asyncio.subprocess.Process | None = None
    try:
        assert process.stdout is not None
        async with asyncio.timeout(40):
            link = re.search(r"(ws://[0-9.:]+)/v1/link", (await process.stdout.readline()).decode())
            assert link is not None
            agent = await asyncio.create_subprocess_exec(
                node_js, str(NODE_AGENT), link[1], "edge-17", stdout=subprocess.DEVNULL
            )
            printed = (await process.stdout.read()).decode()
            assert await process.wait() == 0, printed
    finally:
        for one in (process, agent):
            if one is not None and one.returncode is None:
                one.kill()
                await one.wait()
    assert judged(printed, "ok") == [
        "greeting and heartbeat", "refused", "refused twice", "bye.retry and a slot",
        "violation: cmd before welcome",
    ]  # fmt: skip
    assert "it needs orders on its stdin (give the command that starts the agent)" in printed


def test_the_list_names_each_conversation() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "mock-gateway", "--list"], capture_output=True, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    for conversation in PLAYABLE:
        assert f"{conversation.name}  (section {conversation.section})\n" in done.stdout
