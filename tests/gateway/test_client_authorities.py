"""Authorities and revocation lists of clients that change while links are open, at two real nodes: the links that would
not be opened any more are closed within five seconds on each, and no others."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.audit.records import CLIENT_AUTHORITIES_CHANGED, AuditLine
from fairlead.audit.verification import read_lines
from fairlead.identity.proof import link_statement, prove
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode

from support.carrier.authority import Authority
from support.fixtures import RedisOf
from support.gateway.certified_fleet import CertifiedFleet
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.metrics import metric
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import ScriptedAgent
from support.waiting import until

WITHIN = 5.0
"""Seconds in which the links are closed on every node."""


class Trusted:
    """Two nodes, two authorities, the files that the nodes read, and what is in them."""

    def __init__(self, fleet: CertifiedFleet, other: Authority, folder: Path) -> None:
        self.fleet, self.other, self.folder = fleet, other, folder
        self.links: dict[str, ScriptedAgent] = {}
        self.issued: dict[str, Any] = {}

    @property
    def ours(self) -> Authority:
        return self.fleet.authority

    def write(self, *authorities: Authority, revoked: tuple[str, ...] = ()) -> None:
        write_files(self.folder, authorities, [self.issued[name] for name in revoked])

    async def link(self, name: str, authority: Authority, node: int) -> None:
        certificate = authority.issue(name)
        self.issued[name] = certificate[0]
        self.links[name] = await self.fleet.link(name, authority.write(name, certificate), node=node)

    async def closed_in_time(self, *names: str) -> None:
        begun = time.monotonic()
        async with asyncio.timeout(WITHIN):
            codes = await asyncio.gather(*(self.links.pop(name).close_code() for name in names))
        assert set(codes) == {CloseCode.EXPIRED}, time.monotonic() - begun
        for link in self.links.values():
            await still_linked(link)

    def audited(self) -> list[AuditLine]:
        lines = [line for n in (1, 2) for line in read_lines(self.folder / f"audit-{n}")]
        return [line for line in lines if line.action == CLIENT_AUTHORITIES_CHANGED]


def write_files(folder: Path, authorities: tuple[Authority, ...], revoked: list[Any]) -> None:
    """The authorities, and the list of each. A file is replaced at once, as a deployment does."""
    texts = {
        "trusted.pem": b"".join(one.file.read_bytes() for one in authorities),
        "revoked.pem": b"".join(
            one.revoke(*(each for each in revoked if each.issuer == one.name)).read_bytes() for one in authorities
        ),
    }
    for name, text in texts.items():
        (folder / "new").write_bytes(text)
        (folder / "new").replace(folder / name)


@pytest.fixture
async def trusted(tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> AsyncIterator[Trusted]:
    ours, other = (Authority(tmp_path, name, key_ids=True) for name in ("ours", "other"))
    write_files(tmp_path, (ours, other), [])
    certificate, key = ours.server()
    flags = (
        "--link-tls-cert", str(certificate), "--link-tls-key", str(key), "--heartbeat", "600",
        "--link-tls-client-ca", str(tmp_path / "trusted.pem"), "--link-tls-client-crl", str(tmp_path / "revoked.pem"),
        "--link-tls-client-auth", "optional", "--issuer-key", str(make_issuer_key(tmp_path)),
    )  # fmt: skip
    nodes = [
        make_gateway(own_valkey.url, *flags, "--audit-log", str(tmp_path / f"audit-{n}"), name=f"node-{n}")
        for n in (1, 2)
    ]
    made = Trusted(CertifiedFleet(ours, *nodes), other, tmp_path)
    for n, (name, authority) in enumerate((("web-1", ours), ("web-2", ours), ("db-1", other), ("db-2", other))):
        await made.link(name, authority, node=n % 2)
    yield made
    await made.fleet.aclose()


async def test_links_of_revoked_certificates_are_closed_on_both_nodes(trusted: Trusted) -> None:
    trusted.write(trusted.ours, trusted.other, revoked=("web-1", "db-2"))
    await trusted.closed_in_time("web-1", "db-2")
    await until(lambda: sum(line.count or 0 for line in trusted.audited()) == 2)
    assert {line.detail for line in trusted.audited()} == {"2 authorities, 0 removed; 2 revoked certificates"}

    async def told() -> bool:
        shown = (await trusted.fleet.api.get("/v1/agents/web-1")).json()
        return "4006" in (shown["last_close"] or "") and "was revoked by its authority" in (shown["last_reason"] or "")

    await until(told)
    counts = [await metric(node, "fairlead_untrusted_links_total") for node in trusted.fleet.nodes]
    assert counts == [1, 1]
    # With another certificate the agent is back.
    await trusted.link("web-1", trusted.ours, node=1)
    await still_linked(trusted.links["web-1"])


async def test_links_of_an_authority_that_is_removed_are_closed_on_both_nodes(trusted: Trusted) -> None:
    trusted.write(trusted.ours)
    await trusted.closed_in_time("db-1", "db-2")
    await until(lambda: sum(line.count or 0 for line in trusted.audited()) == 2)
    # Added again, it closes nothing, and its agents may come back.
    trusted.write(trusted.ours, trusted.other)
    await until(lambda: len(trusted.audited()) >= 4)
    await trusted.link("db-1", trusted.other, node=0)
    for link in trusted.links.values():
        await still_linked(link)


async def test_files_that_cannot_be_used_close_nothing(trusted: Trusted) -> None:
    (trusted.folder / "trusted.pem").write_text("")
    node = trusted.fleet.nodes[0]
    await until(lambda: "stays in use" in node.log())
    (trusted.folder / "trusted.pem").write_bytes(trusted.ours.file.read_bytes() + trusted.other.file.read_bytes())
    trusted.write(trusted.ours, trusted.other, revoked=("db-1",))
    await trusted.closed_in_time("db-1")
    assert not [line for line in trusted.audited() if "0 authorities" in line.detail]


async def test_a_link_ends_with_its_certificate_also_if_a_credential_has_named_the_agent(
    trusted: Trusted, redis_of: RedisOf, own_valkey: EmbeddedValkey
) -> None:
    fleet = trusted.fleet
    site = IdentitySite(fleet.nodes[0], await redis_of(own_valkey))
    url = fleet.nodes[0].link.replace("ws://127.0.0.1", "https://localhost")
    site.http = type(site.http)(base_url=url, verify=fleet.context(None))
    key = new_key()
    credential = await site.credential("both", key)
    certificate = trusted.ours.issue("both")
    trusted.issued["both"] = certificate[0]
    link = await fleet.dial("both", trusted.ours.write("both", certificate), credential)
    assert link.socket.response is not None
    nonce = link.socket.response.headers["fairlead-nonce"]
    await link.greet(boot=secrets.token_hex(8), proof=prove(key, link_statement(nonce, "both", credential)))
    trusted.links["both"] = link
    trusted.write(trusted.ours, trusted.other, revoked=("both",))
    await trusted.closed_in_time("both")
    await site.aclose()
