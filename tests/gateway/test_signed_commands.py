"""Signed commands from the caller to the agent: a real node, a real Valkey, the shipped agent and command line."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.client import Client
from fairlead.shards import of_agent
from fairlead.signing.keys import generate, load_private_key
from fairlead.wire.messages import Ack, End

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent
from support.signing import signed
from support.waiting import until

ID = "0b9cb19e-0a0b-4b6c-8f4e-0123456789ab"


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "fairlead", *arguments]
    return subprocess.run(argv, input=stdin, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ops", "stranger"):
        made = run("keys", "generate", str(folder / name), "--comment", name)
        assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def pinned(gateway: GatewayProcess, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of an agent that trusts the key `ops`."""
    folder = tmp_path_factory.mktemp("agent")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "fairlead", "agent", "run", "--url", gateway.link, "--id", "pinned",
                "--journal", str(folder / "journal"), "--trusted-keys", str(keys / "ops.pub"),
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    yield "pinned"
    process.kill()
    process.wait()


async def cli(gateway: GatewayProcess, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    name, *rest = arguments
    return await asyncio.to_thread(run, name, "--api", gateway.api, *rest, stdin=stdin)


async def ready(api: GatewayApi, agent: str) -> None:
    async def online() -> bool:
        answer = await api.http.get(f"/v1/agents/{agent}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    await until(online)


async def test_the_command_line_signs_and_the_agent_verifies(
    gateway: GatewayProcess, api: GatewayApi, keys: Path, pinned: str, tmp_path: Path
) -> None:
    await ready(api, pinned)
    key = ("--sign-with", str(keys / "ops"))
    done = await cli(gateway, "exec", *key, "-n", pinned, "--", "echo", "é")
    assert (done.returncode, done.stdout) == (0, "é\n".encode()), done.stderr
    piped = await cli(gateway, "exec", *key, pinned, "--", "sh", stdin=b"echo from; echo stdin")
    assert (piped.returncode, piped.stdout) == (0, b"from\nstdin\n"), piped.stderr
    typed = await cli(gateway, "shell", *key, pinned, "--", "sh", stdin=b"echo in the $((40 + 2)) shell; exit 3\n")
    assert typed.returncode == 3, typed.stderr
    assert b"in the 42 shell" in typed.stdout
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 1_000)
    copied = await cli(gateway, "cp", *key, str(source), f"{pinned}:{target}")
    assert copied.returncode == 0, copied.stderr
    assert target.read_bytes() == source.read_bytes()


async def test_what_is_not_signed_is_refused_and_the_caller_is_told(
    gateway: GatewayProcess, api: GatewayApi, keys: Path, pinned: str
) -> None:
    await ready(api, pinned)
    without = await cli(gateway, "exec", "-n", pinned, "--", "true")
    assert without.returncode == 1
    assert b"sign the command with a key that the agent trusts" in without.stderr
    stranger = await cli(gateway, "exec", "--sign-with", str(keys / "stranger"), "-n", pinned, "--", "true")
    assert stranger.returncode == 1
    assert b"this agent does not trust the key" in stranger.stderr
    posted = await api.http.post(
        "/v1/commands", json={"agent": pinned, "method": "exec", "payload": {"argv": ["true"]}}
    )
    command = posted.json()["id"]

    async def ended() -> bool:
        answer = (await api.http.get(f"/v1/commands/{command}")).json()
        return bool(answer["state"] == "failed" and answer["targets"][0]["end"]["error"]["code"] == "signature_missing")

    await until(ended)


async def test_a_program_signs_in_place_of_a_file(
    gateway: GatewayProcess, api: GatewayApi, keys: Path, pinned: str, tmp_path: Path
) -> None:
    """As a PKCS #11 tool does: the octets on stdin, the signature on stdout."""
    await ready(api, pinned)
    program = tmp_path / "sign.py"
    program.write_text(
        "import base64, sys\n"
        "from cryptography.hazmat.primitives.serialization import load_pem_private_key\n"
        f"key = load_pem_private_key(open({str(keys / 'ops')!r}, 'rb').read(), None)\n"
        "print(base64.b64encode(key.sign(sys.stdin.buffer.read())).decode())\n"
    )
    signing = ("--sign-command", f"{sys.executable} {program}")
    done = await cli(gateway, "exec", *signing, "--sign-key", str(keys / "ops.pub"), "-n", pinned, "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    wrong = await cli(gateway, "exec", *signing, "--sign-key", str(keys / "stranger.pub"), "-n", pinned, "--", "true")
    assert wrong.returncode == 1
    assert b"that are not a signature by the key" in wrong.stderr
    alone = await cli(gateway, "exec", *signing, "-n", pinned, "--", "true")
    assert alone.returncode == 2
    assert b"expected the file of the program's public key" in alone.stderr


async def test_the_gateway_carries_the_signature_unread(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    octets = bytes(range(98))
    id = of_agent(ID, peer.agent)
    elsewhere = next(one for n in range(64) if (one := of_agent(ID, f"other-{n}")) != id)
    foreign = {"agent": peer.agent, "method": "work", "id": elsewhere, "signature": base64.b64encode(octets).decode()}
    refused = (await api.post(foreign)).json()
    assert (refused["code"], refused["field"]) == ("invalid_request", "id")
    assert id in refused["detail"]
    body = {"agent": peer.agent, "method": "work", "id": id, "signature": base64.b64encode(octets).decode()}
    raw = json.dumps(body)[:-1] + ', "payload" : {"n": 1.0,  "a":[ ]} }'
    posted = await api.http.post("/v1/commands", content=raw)
    assert (posted.status_code, posted.json()["id"]) == (202, id)
    cmd = await peer.command()
    assert (cmd.id, cmd.sig, cmd.payload) == (id, octets, b'{"n": 1.0,  "a":[ ]}')
    again = await api.http.post("/v1/commands", content=raw)
    assert (again.status_code, again.json()["id"], again.headers["idempotency-replayed"]) == (202, id, "true")
    other = await api.http.post("/v1/commands", json={**body, "signature": base64.b64encode(octets[::-1]).decode()})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    await peer.send(Ack(id=id), End(id=id, total=0))

    async def ended() -> bool:
        return bool((await api.http.get(f"/v1/commands/{id}")).json()["state"] == "ok")

    await until(ended)
    assert (await api.http.post("/v1/commands", content=raw)).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"id": ID}, "signature"),
        ({"signature": "AAAA"}, "id"),
        ({"id": ID, "signature": "A"}, "signature"),
        ({"id": ID, "signature": "A" * 344}, "signature"),
        ({"id": "0192f1b0-0000-7000-8000-000000000001", "signature": "AAAA"}, "id"),
        ({"id": ID.upper(), "signature": "AAAA"}, "id"),
    ],
)
async def test_half_a_signature_is_refused(api: GatewayApi, more: dict[str, str], field: str) -> None:
    """The ids that the gateway makes are of another version: nobody can choose one of them."""
    answer = await api.http.post("/v1/commands", json={"agent": "agent-1", "method": "work", **more})
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


async def test_an_idempotency_key_beside_a_signature_is_refused(api: GatewayApi) -> None:
    body = {"agent": "agent-1", "method": "work", "id": ID, "signature": "AAAA"}
    answer = await api.http.post("/v1/commands", json=body, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")


async def test_the_client_signs_what_the_agent_gets(gateway: GatewayProcess, dial: DialAgent) -> None:
    key = generate()
    peer = await dial(gateway)
    await peer.greet()
    async with (
        Client(gateway.api, "development-platform-token", signer=key) as client,
        client.command(peer.agent, "work", {"é": [1, "x"]}, lane="bulk", retry="safe", queue=5) as command,
    ):
        cmd = await peer.command()
        await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0))
        await command.wait()
    issued, expires = (int.from_bytes(cmd.sig[i : i + 8], "big") for i in (18, 26))
    expected = signed(
        key, cmd.method, cmd.payload, agent=peer.agent, id=cmd.id, lane="bulk", retry="safe", issued=issued,
        valid=expires - issued,
    )  # fmt: skip
    assert (cmd.sig, expires - issued, command.id) == (expected.sig, 65_000, cmd.id)


def test_keys_are_made_once_and_shown(keys: Path, tmp_path: Path) -> None:
    again = run("keys", "generate", str(keys / "ops"))
    assert again.returncode == 2
    assert b"exists: choose another name" in again.stderr
    assert (keys / "ops").stat().st_mode & 0o777 == 0o600
    shown = {run("keys", "show", str(keys / name)).stdout.split()[0] for name in ("ops", "ops.pub")}
    assert shown == {load_private_key((keys / "ops").read_bytes(), "").public.id.hex().encode()}
