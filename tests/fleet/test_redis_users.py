"""The table of users of Redis: whose each command and key is, in a Cluster too, and how it is printed."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fairlead.fleet import schema
from fairlead.fleet.acl.rights import missing_rules
from fairlead.fleet.acl.users import USERS
from fairlead.fleet.node_rows import NodeRows
from fairlead.store.endpoint import Endpoint
from fairlead.store.servers.opening import open_store

from support.gateway.enrolled_agent import CLI
from support.valkey.cluster import Cluster
from support.valkey.server import PASSWORD

ROOT = Path(__file__).parents[2]
ROOMS = ("gateway/fairlead", "operator/fairlead_operator")


def fairlead(*arguments: str | Path) -> str:
    """What a command prints, whatever its exit code."""
    done = subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


OPTIONAL = {"config": "`fairlead redis check` looks at a setting of a Cluster if its user may"}
"""Commands that no user needs."""


async def test_rights_in_a_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", replicas=False)
    try:
        await cluster.start()
        for server in cluster.servers:
            await server.call("ACL", "SETUSER", "fairlead-node", "on", ">node", *USERS["node"].rules())
        store = open_store(cluster.url.replace(f":{PASSWORD}@", "fairlead-node:node@"))
        store.start()
        assert await store.wait_available(20), store.last_error
        for n in range(100):
            await store.submit("HSET", schema.agent_key(f"web-{n}"), "gen", 1)
        assert len(store.submit_to_each("INFO")) == 3
        assert (await NodeRows(store).renew("web", "e", {"links": 1}, begin=True))[0]
        for server in cluster.servers:
            await server.call("ACL", "SETUSER", "fairlead-operator", "on", ">op", *USERS["operator"].rules())
        reader = open_store(cluster.url.replace(f":{PASSWORD}@", "fairlead-operator:op@"))
        reader.start()
        assert await reader.wait_available(20), reader.last_error
        assert (await NodeRows(reader).look_up("web"))[0] is not None
        assert len(await NodeRows(reader)._heartbeats(1)) == 1  # reading all removes what expired
        await reader.aclose()
        await store.aclose()
        for server in cluster.servers:
            assert [entry[5] for entry in await server.call("ACL", "LOG")] == []
            url = f"redis://fairlead-node:node@{server.address}"
            connection = await Endpoint(url).connect(10)
            assert await missing_rules(connection, USERS["node"]) == []
            await server.call("ACL", "SETUSER", "fairlead-node", "-hset")
            assert await missing_rules(connection, USERS["node"]) == ["+hset"]
            await connection.close()
    finally:
        cluster.stop()


def test_every_key_has_somebody_who_writes_it() -> None:
    kinds = {pattern.partition(":{")[0] for user in USERS.values() for pattern in user.keys}
    assert kinds == set(schema.KEY_TYPES)
    assert set(schema.KEY_TYPES) >= schema.SINGLE_KEYS


def commands_of_the_source() -> Iterator[tuple[str, Path]]:
    """Each command of Redis that a module or a script names, in lower case, and where. What only a check of the servers
    asks is left out: it says by itself what it may not know."""
    for path in (ROOT / "gateway" / "fairlead").rglob("*.lua"):
        for name in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", path.read_text()):
            yield name.lower(), path
    for path in [p for room in ROOMS for p in (ROOT / room).rglob("*.py") if "redis/server_checks" not in str(p)]:
        for name in re.findall(r"\.(?:submit|submit_to_each|write|call)\(\s*\"([A-Z]+)\"", path.read_text()):
            yield name.lower(), path


def test_every_command_of_the_source_is_somebodys() -> None:
    known = {name.partition("|")[0] for user in USERS.values() for name in user.commands}
    known |= OPTIONAL.keys()
    unknown = {name: path.name for name, path in commands_of_the_source() if name not in known}
    assert unknown == {}, "add the commands to gateway/fairlead/fleet/acl/users.py, for whoever runs them"


def test_every_key_of_the_source_has_its_pattern() -> None:
    text = "".join(path.read_text() for path in (ROOT / "gateway" / "fairlead").rglob("*.py"))
    tagged = set(re.findall(r'"(fl[0-9]:[a-z_]+):\{|key_beside_events\("(fl[0-9]:[a-z_]+)"', text))
    tagged = {first or second for first, second in tagged}
    single = set(schema.KEY_TYPES) - tagged
    assert single == schema.SINGLE_KEYS, "a key without a hash tag belongs in SINGLE_KEYS of the schema"


def test_passwords_are_printed_as_digests_and_never_guessed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    lines = fairlead("redis", "acl", "--prefix", "fl-", "--node-password-file", tmp_path / "secret").splitlines()
    assert [line.split()[1] for line in lines] == ["fl-node", "fl-operator", "fl-store"]
    assert "s3cret" not in "".join(lines)
    assert lines[0].split()[3] == f"#{hashlib.sha256(b's3cret').hexdigest()}"
    assert not re.search(r"nopass|[#>]", "".join(lines[1:]))
