"""`script` runs exactly the octets that its digest names, asks for them only if it has not kept them, and keeps few."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.contents.kept_contents import KeptContents
from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.options import ExecOptions, Options, ScriptOptions
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.errors import ConfigError
from fairlead.signing.keys import generate
from fairlead.wire.messages import Ack, Credit, End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import error
from support.signing import signed

HELLO = b"echo hello $1 $NAME; exit 3\n"
LONG = b"# " + b"x" * 150_000 + b"\necho the end\n"


def named(content: bytes, **more: object) -> dict[str, object]:
    return {"digest": hashlib.sha256(content).hexdigest(), "size": len(content), **more}


def asked(link: Link, id: str) -> bool:
    return any(credit.bytes == 0 for credit in link.of(Credit, id))


async def run(link: Link, id: str, content: bytes, sent: bytes | None = None, **more: object) -> End:
    """Run a script; its content is sent when it is asked for."""
    await link.command(id, "script", named(content, **more))
    await link.until(lambda: asked(link, id) or bool(link.of(End, id)))
    if asked(link, id):
        data = content if sent is None else sent
        await link.feed(id, *(data[at : at + (64 << 10)] for at in range(0, len(data), 64 << 10)))
        await link.feed_end(id)
    return await link.end(id)


@pytest.fixture
async def host(gateway: Gateway, serve: Serve, tmp_path: Path) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1", journal=tmp_path / "journal"))
    return await gateway.linked()


async def test_a_script_runs_with_its_arguments_and_is_asked_for_once(host: Link) -> None:
    end = await run(host, "a", HELLO, arguments=["there"], env={"NAME": "you"})
    assert (end.state, json.loads(end.payload)) == ("ok", {"exit_code": 3})
    assert (host.output("a"), asked(host, "a")) == (b"hello there you\n", True)
    again = await run(host, "b", HELLO, arguments=["again"])
    assert (json.loads(again.payload), host.output("b"), asked(host, "b")) == (
        {"exit_code": 3},
        b"hello again\n",
        False,
    )
    long = await run(host, "c", LONG)
    assert (long.state, host.output("c")) == ("ok", b"the end\n")
    other = await run(host, "d", b"import sys; print(sys.argv[1:])", interpreter=["python3", "-I"], arguments=["x"])
    assert (json.loads(other.payload), host.output("d")) == ({"exit_code": 0}, b"['x']\n")


@pytest.mark.parametrize(
    "sent", [b"", HELLO[:-1], HELLO + b"rm -rf /\n", b"rm -rf /; exit\n" + HELLO[15:], bytes(len(HELLO))]
)
async def test_octets_with_another_digest_are_not_run(host: Link, sent: bytes, tmp_path: Path) -> None:
    end = await run(host, "a", HELLO, sent)
    assert error(end).code == "content_mismatch"
    assert host.output("a") == b""
    assert list((tmp_path / "journal").glob("contents/*")) == []
    assert json.loads((await run(host, "b", HELLO)).payload) == {"exit_code": 3}


async def test_what_is_kept_is_compared_before_it_runs(host: Link, tmp_path: Path) -> None:
    await run(host, "a", HELLO)
    (kept,) = (tmp_path / "journal" / "contents").iterdir()
    kept.chmod(0o644)
    kept.write_bytes(b"echo forged\n")
    end = await run(host, "b", HELLO)
    assert (json.loads(end.payload), host.output("b"), asked(host, "b")) == ({"exit_code": 3}, b"hello\n", True)
    kept.unlink()
    kept.symlink_to("/bin/sh")
    assert (await run(host, "c", HELLO)).state == "ok"
    assert asked(host, "c")


async def test_a_content_survives_a_restart_beside_a_journal(gateway: Gateway, serve: Serve, tmp_path: Path) -> None:
    agent = builtin_agent(gateway.url, "edge-1", "token-1", journal=tmp_path / "journal")
    serving = serve(agent)
    await run(await gateway.linked(), "a", HELLO)
    agent.stop()
    await serving
    serve(builtin_agent(gateway.url, "edge-1", "token-1", journal=tmp_path / "journal"))
    link = await gateway.linked()
    end = await run(link, "b", HELLO)
    assert (json.loads(end.payload), asked(link, "b")) == ({"exit_code": 3}, False)


async def test_the_rest_comes_over_the_next_link(gateway: Gateway, serve: Serve, tmp_path: Path) -> None:
    serve(builtin_agent(gateway.url, "edge-1", "token-1", journal=tmp_path / "journal"))
    first = await gateway.linked()
    await first.command("a", "script", named(LONG))
    await first.until(lambda: asked(first, "a"))
    await first.feed("a", LONG[: 64 << 10])
    await first.until(lambda: bool(first.of(Ack, "a")))
    await first.cut()
    link = await gateway.linked(have={"a": 0})
    await link.until(lambda: asked(link, "a"))
    stream = link.state.stream("a")
    assert stream is not None
    rest = LONG[stream.input_next * (64 << 10) :]
    await link.feed("a", *(rest[at : at + (64 << 10)] for at in range(0, len(rest), 64 << 10)))
    await link.feed_end("a")
    assert (await link.end("a")).state == "ok"
    assert link.output("a") == b"the end\n"


async def test_a_signed_script_needs_no_signed_input(gateway: Gateway, serve: Serve, tmp_path: Path) -> None:
    """Its digest is in the payload, which is signed: a gateway can send what it likes, and nothing else runs."""
    key = generate()
    keys = TrustedKeys([key.public])
    serve(builtin_agent(gateway.url, "agent-1", "token-1", journal=tmp_path / "journal", trusted_keys=keys))
    link = await gateway.linked()

    async def send(sent: bytes) -> End:
        cmd = signed(key, "script", json.dumps(named(HELLO)).encode())
        link.state.opened(cmd.id)
        await link.send(cmd)
        await link.until(lambda: asked(link, cmd.id))
        await link.feed(cmd.id, sent)
        await link.feed_end(cmd.id)
        return await link.end(cmd.id)

    assert error(await send(b"echo owned" + HELLO[10:])).code == "content_mismatch"
    end = await send(HELLO)
    assert json.loads(end.payload) == {"exit_code": 3}


async def test_a_script_runs_as_another_user_where_the_agent_may_do_that(host: Link) -> None:
    unknown = await run(host, "a", HELLO, user="nobody-of-this-name")
    assert error(unknown).code == "user_unknown"
    own = pwd.getpwuid(os.getuid()).pw_name
    other = "nobody" if os.getuid() == 0 else own
    end = await run(host, "b", b"id -un; echo $HOME $USER", user=other)
    if os.getuid() == 0:
        assert host.output("b").decode().split() == [other, pwd.getpwnam(other).pw_dir, other]
    else:
        assert end.state in ("ok", "error")  # whether a user may set its own groups depends on the host


async def test_a_script_is_off_where_only_listed_programs_run(gateway: Gateway, serve: Serve) -> None:
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=Options(exec=ExecOptions(allow=("/bin/true",)))))
    link = await gateway.linked()
    await link.command("a", "script", named(HELLO))
    ack = await link.expect(Ack, "a")
    assert ack.error is not None
    assert (ack.error.code, "exec.allow" in ack.error.message) == ("unknown_method", True)
    forced = Options(exec=ExecOptions(allow=("/bin/true",)), script=ScriptOptions(enabled=True))
    with pytest.raises(ConfigError, match=r"script\.enabled"):
        builtin_agent(gateway.url, "edge-1", "token-1", options=forced)


async def test_the_oldest_contents_give_way(tmp_path: Path) -> None:
    kept = KeptContents(DiskThreads(), tmp_path / "kept", most_bytes=1_000, most_files=5)
    contents = [b"%d " % n * 50 for n in range(5)]

    async def keep(content: bytes) -> None:
        file = await kept.keep(hashlib.sha256(content).hexdigest(), len(content), content, len(content))
        os.close(file)

    async def has(content: bytes) -> bool:
        if (file := await kept.open(hashlib.sha256(content).hexdigest())) is None:
            return False
        os.close(file)
        return True

    for age, content in enumerate(contents):
        await keep(content)
        path = tmp_path / "kept" / hashlib.sha256(content).hexdigest()
        os.utime(path, (1_000 + age, 1_000 + age))
    assert await has(contents[0])  # it is used, and so the last one to go
    await keep(b"x" * 700)
    assert [await has(content) for content in contents] == [True, False, False, True, True]
    sizes = [entry.stat().st_size for entry in os.scandir(tmp_path / "kept")]
    assert (sum(sizes) <= 1_000, len(sizes) <= 5) == (True, True)


async def test_many_commands_may_ask_for_one_content_at_once(host: Link) -> None:
    ids = [f"c{n}" for n in range(8)]
    ends = await asyncio.gather(*(run(host, id, HELLO, arguments=[id]) for id in ids))
    assert {json.loads(end.payload)["exit_code"] for end in ends} == {3}
    assert [host.output(id) for id in ids] == [f"hello {id}\n".encode() for id in ids]
