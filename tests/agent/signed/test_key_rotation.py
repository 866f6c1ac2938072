"""An agent that pins a key takes others from signed statements only, and never goes back to older ones.

The gateway is a captured one: it sends what it likes, in the order that it likes. Every statement arrives in a signed
command, as the agent runs no other; here the caller's key signs that command, whoever has signed the statement.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fairlead.agent import Agent, Command
from fairlead.agent.verification.key_rotation import FILE
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.errors import ConfigError
from fairlead.signing.input_signature import input_to_sign, pack_input
from fairlead.signing.key_statement import METHOD, KeyStatement
from fairlead.signing.keys import PrivateKey, generate
from fairlead.wire.messages import Ack, Cmd, End

from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import TIMEOUT, Link
from support.signing import AGENT, signed, unix_ms

A, B, C = generate(), generate(), generate()


@asynccontextmanager
async def pinned(gateway: Gateway, folder: Path, *pins: PrivateKey) -> AsyncIterator[Link]:
    """The link of an agent that pins these keys, A if there are none; the agent ends afterwards."""
    keys = TrustedKeys([one.public for one in pins or (A,)])
    agent = Agent(gateway.url, AGENT, "token-1", journal=folder / "journal", trusted_keys=keys)

    @agent.command("work")
    async def work(command: Command) -> None: ...

    @agent.command("read")
    async def read(command: Command) -> list[str]:
        return [data.decode() async for data in command.stdin]

    serving = asyncio.create_task(agent.serve())
    try:
        yield await gateway.linked()
    finally:
        agent.stop()
        async with asyncio.timeout(TIMEOUT):
            await serving


def statement(signer: PrivateKey, sequence: int, *keys: PrivateKey, agents: str = "*") -> bytes:
    made = KeyStatement(agents, sequence, tuple(one.public for one in keys))
    signature = signer.sign(made.to_sign(signer.public.id))
    return msgspec.json.encode(made.payload(signer.public.id, signature))


async def run(link: Link, cmd: Cmd) -> End:
    """Send a command; its end, or its refusal as one."""
    link.state.opened(cmd.id)
    await link.send(cmd)
    await link.until(lambda: bool(link.of(Ack, cmd.id)))
    ack = link.of(Ack, cmd.id)[0]
    return End(id=cmd.id, total=0, state="error", error=ack.error) if ack.state == "refused" else await link.end(cmd.id)


async def given(link: Link, caller: PrivateKey, payload: bytes) -> str:
    """Give the agent a statement; "ok", or the code of the error."""
    end = await run(link, signed(caller, METHOD, payload))
    return end.state if end.error is None else end.error.code


async def accepted(link: Link) -> str:
    """Which keys the agent trusts: it runs what they have signed."""
    ends = {name: await run(link, signed(key, "work")) for name, key in (("A", A), ("B", B), ("C", C))}
    refusals = {end.error.code for end in ends.values() if end.error is not None}
    assert refusals <= {"signature_key_unknown"}
    return "".join(name for name, end in ends.items() if end.state == "ok")


async def test_a_key_is_added_and_the_first_one_retired_over_restarts(gateway: Gateway, tmp_path: Path) -> None:
    async with pinned(gateway, tmp_path) as link:
        assert await accepted(link) == "A"
        now = unix_ms()
        end = await run(link, signed(A, METHOD, statement(A, now + 1, A, B)))
        assert json.loads(end.payload) == {"sequence": now + 1, "keys": [A.public.id.hex(), B.public.id.hex()]}
        assert await accepted(link) == "AB"
        assert await given(link, A, statement(B, now + 2, B)) == "ok"
        assert await accepted(link) == "B"
    async with pinned(gateway, tmp_path) as link:
        assert await accepted(link) == "B"
        assert await given(link, B, statement(B, now + 3, B, C)) == "ok"
        assert await accepted(link) == "BC"
    assert (tmp_path / "journal" / FILE).stat().st_mode & 0o777 == 0o600


async def test_every_statement_that_nobody_trusted_has_made_for_this_agent_is_refused(
    gateway: Gateway, tmp_path: Path
) -> None:
    async with pinned(gateway, tmp_path) as link:
        now = unix_ms()
        good = json.loads(statement(A, now + 10, A, B))
        other = json.loads(statement(C, now + 10, C))

        def changed(**members: object) -> bytes:
            return msgspec.json.encode({**good, **members})

        attacks = {
            "signed by a stranger": (statement(C, now + 10, C), "signature_key_unknown"),
            "a stranger's, in the name of A": (
                msgspec.json.encode({**other, "key_id": good["key_id"]}), "signature_invalid",
            ),
            "another key": (changed(keys=other["keys"]), "signature_invalid"),
            "one key more": (changed(keys=[*good["keys"], *other["keys"]]), "signature_invalid"),
            "one key less": (changed(keys=good["keys"][:1]), "signature_invalid"),
            "another order": (changed(keys=good["keys"][::-1]), "signature_invalid"),
            "a later sequence": (changed(sequence=now + 11), "signature_invalid"),
            "other agents": (changed(agents="agent-*"), "signature_invalid"),
            "for another agent": (statement(A, now + 10, B, agents="agent-2"), "statement_invalid"),
            "for the beginning of another id": (statement(A, now + 10, B, agents="agent-2*"), "statement_invalid"),
            "for an id that this one begins": (statement(A, now + 10, B, agents="agent-10"), "statement_invalid"),
            "for nobody": (statement(A, now + 10, B, agents=""), "statement_invalid"),
            "no key": (changed(keys=[]), "statement_invalid"),
            "a key twice": (changed(keys=good["keys"][:1] * 2), "statement_invalid"),
            "two keys in one line": (changed(keys=["\n".join(good["keys"])]), "statement_invalid"),
            "no key at all": (changed(keys=["ssh-rsa AAAA"]), "statement_invalid"),
            "too many keys": (changed(keys=good["keys"] * 600), "statement_invalid"),
            "half a signature": (changed(signature=good["signature"][:40]), "signature_invalid"),
            "no base64": (changed(signature="!"), "signature_invalid"),
            "no key id": (changed(key_id=""), "signature_invalid"),
            "a negative sequence": (changed(sequence=-1), "statement_invalid"),
            "the largest sequence": (changed(sequence=2**64 - 1), "statement_invalid"),
            "ten minutes ahead": (statement(A, now + 600_000, A, B), "signature_not_yet_valid"),
            "before the agent began": (statement(A, now - 600_000, A, B), "statement_replayed"),
            "not JSON": (b"\xff", "invalid_arguments"),
        }  # fmt: skip
        told = {name: await given(link, A, payload) for name, (payload, _) in attacks.items()}
        assert told == {name: code for name, (_, code) in attacks.items()}
        unsigned = Cmd(id="0b9cb19e-0a0b-4b6c-8f4e-000000000001", method=METHOD, payload=statement(A, now + 10, B))
        refused = await run(link, unsigned)
        assert refused.error is not None
        assert refused.error.code == "signature_missing"
        assert await accepted(link) == "A"


async def test_an_older_statement_never_holds_again(gateway: Gateway, tmp_path: Path) -> None:
    """A captured gateway has all of them, and the caller's signature of new commands around them."""
    async with pinned(gateway, tmp_path) as link:
        now = unix_ms()
        first, second = statement(A, now + 1, A, B), statement(A, now + 2, A, C)
        assert [await given(link, A, one) for one in (first, second)] == ["ok", "ok"]
        assert [await given(link, A, one) for one in (first, statement(A, now + 2, A, B))] == ["statement_replayed"] * 2
        assert await given(link, A, second) == "ok"  # delivered twice: it is what holds
        assert await accepted(link) == "AC"
    async with pinned(gateway, tmp_path) as link:
        assert await given(link, A, first) == "statement_replayed"
        assert await accepted(link) == "AC"
    for file in (tmp_path / "journal").iterdir():
        file.unlink()
    async with pinned(gateway, tmp_path) as link:  # the pinned key again, but nothing that was signed before
        before = unix_ms() - 60_000
        assert await given(link, A, statement(A, before, A, B)) == "statement_replayed"
        assert await accepted(link) == "A"


async def test_the_owner_of_the_host_has_the_last_word(gateway: Gateway, tmp_path: Path) -> None:
    async with pinned(gateway, tmp_path) as link:
        now = unix_ms()
        first = statement(A, now + 1, A, B)
        assert await given(link, A, first) == "ok"
    async with pinned(gateway, tmp_path, A, C) as link:
        assert await accepted(link) == "AC"
        assert await given(link, A, first) == "statement_replayed"
        assert await given(link, A, statement(C, now + 2, B)) == "ok"
        assert await accepted(link) == "B"
    state = tmp_path / "journal" / FILE
    state.write_text(state.read_text()[:-20])
    with pytest.raises(ConfigError, match="cannot be used"):
        async with asyncio.timeout(TIMEOUT):
            await Agent(
                gateway.url, AGENT, "token-1", journal=tmp_path / "journal", trusted_keys=TrustedKeys([A.public])
            ).serve()


async def test_what_a_retired_key_has_opened_takes_no_more_input(gateway: Gateway, tmp_path: Path) -> None:
    async with pinned(gateway, tmp_path) as link:
        cmd = signed(A, "read", input="signed")
        link.state.opened(cmd.id)
        await link.send(cmd)
        await link.until(lambda: bool(link.of(Ack, cmd.id)))
        assert await given(link, A, statement(A, unix_ms() + 1, B)) == "ok"
        signature = A.sign(input_to_sign(A.public.id, AGENT, cmd.id, 0, True, b"rm"))
        await link.feed(cmd.id, pack_input(True, signature, b"rm"))
        end = await link.end(cmd.id)
        assert end.error is not None
        assert (end.state, end.error.code) == ("error", "signature_key_unknown")


async def test_a_statement_that_cannot_be_kept_changes_nothing(gateway: Gateway, tmp_path: Path) -> None:
    async with pinned(gateway, tmp_path) as link:
        (tmp_path / "journal" / FILE).with_suffix(".new").mkdir()
        end = await run(link, signed(A, METHOD, statement(A, unix_ms() + 1, B)))
        assert end.error is not None
        assert (end.error.code, end.error.temporary) == ("statement_not_kept", True)
        assert await accepted(link) == "A"
