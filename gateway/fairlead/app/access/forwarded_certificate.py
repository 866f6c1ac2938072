"""The client certificate that a trusted proxy has verified and passes on in a header of the request.

`AgentCredentials` asks for it, and only where the connection was made by a trusted proxy: anybody else can write
anything into a header. Three proxies have three forms, each with the whole certificate:

    ssl-client-cert               ingress-nginx: PEM, percent-encoded; `ssl-client-verify` has to be SUCCESS
    x-forwarded-client-cert       Envoy: elements of pairs, of which `Cert` is PEM, percent-encoded, in quotes
    x-forwarded-tls-client-cert   Traefik: base64 of DER, the chain behind commas

What is not exactly of the form is refused, because somebody else may have written a part of it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from fairlead.errors import Unauthorized

INGRESS_NGINX: Final = "ssl-client-cert"
ENVOY: Final = "x-forwarded-client-cert"
TRAEFIK: Final = "x-forwarded-tls-client-cert"
VERIFIED: Final = b"ssl-client-verify"

_PAIR: Final = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^",;=]*)(?:;|\Z)')
_PEM: Final = re.compile(r"\s*-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*")

Headers = Iterable[tuple[bytes, bytes]]


def names_certificate(headers: Headers, header: str) -> bool:
    """Whether a request has the header, whoever has written it."""
    wanted = header.encode()
    return any(name == wanted for name, _ in headers)


def forwarded_certificate(headers: Headers, header: str) -> bytes | None:
    """The certificate in DER that the proxy names in `header`; None if its client has presented none. Raises
    Unauthorized for anything else."""
    found = [value for name, value in headers if name == header.encode()]
    if not found or found == [b""]:
        return None
    if len(found) > 1:
        raise _malformed(header, "it is there more than once")
    text = found[0].decode("latin-1")
    if header == INGRESS_NGINX:
        verified = [value for name, value in headers if name == VERIFIED]
        if verified != [b"SUCCESS"]:
            raise Unauthorized(
                "the proxy has not verified the client certificate: expected the header ssl-client-verify with SUCCESS "
                "(set auth-tls-verify-client to on)",
                reason="certificate",
            )
        return _of_pem(unquote(text), header)
    if header == ENVOY:
        return _of_pem(unquote(_envoy_pem(text)), header)
    return _decoded(unquote(text.partition(",")[0]), header)


def _envoy_pem(text: str) -> str:
    """The value of `Cert` in the one element. Several come from proxies that append to what a client may have sent."""
    certificates, at = [], 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise _malformed(ENVOY, "it is not one element (set forward_client_cert_details to SANITIZE_SET)")
        if pair[1].lower() == "cert":
            certificates.append(pair[2].strip('"'))
        at = pair.end()
    if len(certificates) != 1:
        raise _malformed(ENVOY, "it has not one `Cert` (set set_current_client_cert_details.cert)")
    return certificates[0]


def _of_pem(text: str, header: str) -> bytes:
    found = _PEM.fullmatch(text)
    if found is None:
        raise _malformed(header, "it is not one certificate in PEM")
    return _decoded("".join(found[1].split()), header)


def _decoded(text: str, header: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as e:
        raise _malformed(header, "it is not base64") from e


def _malformed(header: str, problem: str) -> Unauthorized:
    return Unauthorized(
        f"the header {header} of the proxy is not understood, because {problem}: expected the client certificate in "
        "the form of the proxy",
        reason="certificate",
    )
