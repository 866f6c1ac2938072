"""Client certificates in the header of a proxy: in the forms of three proxies, believed from listed addresses only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from fairlead.app.access.forwarded_certificate import ENVOY, INGRESS_NGINX, TRAEFIK, forwarded_certificate
from fairlead.errors import Unauthorized
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode

from support.carrier.authority import Authority
from support.gateway.certified_fleet import TOKEN, CertifiedFleet
from support.gateway.forwarded_headers import envoy, nginx, traefik
from support.gateway.identity_site import still_linked
from support.gateway.process import MakeGateway

Headers = list[tuple[bytes, bytes]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def raw(headers: dict[str, Any]) -> Headers:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


def test_the_three_forms(authority: Authority) -> None:
    certificate = authority.issue("web-1")[0]
    der = certificate.public_bytes(Encoding.DER)
    hostile = 'O=a\\";Cert="x";b=",CN=web-1'
    assert forwarded_certificate(raw(nginx(certificate)), INGRESS_NGINX) == der
    for subject in ("CN=web-1", "O=a,b;c=d,CN=web-1", hostile):
        assert forwarded_certificate(raw(envoy(certificate, subject)), ENVOY) == der
    assert forwarded_certificate(raw(traefik(certificate, authority.certificate)), TRAEFIK) == der
    escaped = [(TRAEFIK.encode(), quote_plus(traefik(certificate)["x_forwarded_tls_client_cert"]).encode())]
    assert forwarded_certificate(escaped, TRAEFIK) == der
    for header in (INGRESS_NGINX, ENVOY, TRAEFIK):
        assert forwarded_certificate([], header) is None
        assert forwarded_certificate([(header.encode(), b"")], header) is None


def test_what_is_not_of_the_form_is_refused(authority: Authority) -> None:
    certificate, other = authority.issue("web-1")[0], authority.issue("web-2")[0]
    good, element = raw(nginx(certificate)), envoy(certificate)["x_forwarded_client_cert"]
    for header, headers in (
        (INGRESS_NGINX, good * 2),
        (INGRESS_NGINX, good[:1]),
        (INGRESS_NGINX, [*good, (b"ssl-client-verify", b"SUCCESS")]),
        (INGRESS_NGINX, raw(nginx(certificate, "NONE"))),
        (INGRESS_NGINX, raw(nginx(certificate, "FAILED:self-signed certificate"))),
        (INGRESS_NGINX, raw(nginx(certificate) | {"ssl_client_cert": "x"})),
        (ENVOY, raw(envoy(certificate)) + raw(envoy(other))),
        (ENVOY, [(ENVOY.encode(), f"{envoy(other)['x_forwarded_client_cert']},{element}".encode())]),
        (ENVOY, [(ENVOY.encode(), f"{element};{element}".encode())]),
        (ENVOY, [(ENVOY.encode(), b'Hash=ab;Subject="CN=web-1"')]),
        (ENVOY, [(ENVOY.encode(), element.encode() + b'"')]),
        (TRAEFIK, [(TRAEFIK.encode(), b"!")]),
    ):
        with pytest.raises(Unauthorized):
            forwarded_certificate(headers, header)


@pytest.fixture(params=["epoll", "asyncio"])
async def fleet(
    request: pytest.FixtureRequest, authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> AsyncIterator[CertifiedFleet]:
    """The first node trusts this machine as a proxy, the second trusts others."""
    flags = (
        "--heartbeat",
        "600",
        "--link-client-cert-header",
        "ssl-client-cert",
        "--link-transport",
        str(request.param),
    )
    made = CertifiedFleet(
        authority,
        make_gateway(own_valkey.url, *flags, "--trusted-proxies", "127.0.0.0/8"),
        make_gateway(own_valkey.url, *flags, "--trusted-proxies", "192.0.2.0/24", name="node-2"),
    )
    yield made
    await made.aclose()


async def test_a_forged_header_from_an_unlisted_address_opens_no_link(fleet: CertifiedFleet) -> None:
    """Ten attempts, with and without the shared token; from the proxy the same header is the agent's identity."""
    headers = nginx(fleet.authority.issue("web-1")[0])
    victim = await fleet.link("web-1", None, **headers)
    for _ in range(10):
        for token in ("", TOKEN):
            status, text = await fleet.refusal("web-1", None, token, node=1, **headers)
            assert (status, "not from a trusted proxy" in text) in ((401, True), (429, True))
    code, _ = await fleet.close_code("web-1", None, TOKEN, node=1)
    assert code == CloseCode.IDENTITY
    await still_linked(victim)


async def test_an_agent_behind_the_proxy_is_the_one_of_its_certificate(fleet: CertifiedFleet) -> None:
    mine, other = nginx(fleet.authority.issue("web-1")[0]), nginx(fleet.authority.issue("web-2")[0])
    victim = await fleet.link("web-1", None, **mine)
    for token in ("", TOKEN):
        code, reason = await fleet.close_code("web-1", None, token, **other)
        assert (code, "is that of agent web-2" in reason) == (CloseCode.IDENTITY, True)
    status, text = await fleet.refusal("web-1", None, **(mine | {"ssl_client_verify": "FAILED:expired"}))
    assert (status, "has not verified" in text) == (401, True)
    assert (await fleet.refusal("web-3", None, ssl_client_verify="NONE"))[0] == 401
    await still_linked(await fleet.link("web-3", None, TOKEN, ssl_client_verify="NONE"))
    await still_linked(victim)
