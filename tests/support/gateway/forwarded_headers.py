"""The headers in which three proxies pass a client certificate on, with `_` for `-` in their names."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding


def nginx(certificate: x509.Certificate, verified: str = "SUCCESS") -> dict[str, Any]:
    return {
        "ssl_client_cert": quote(certificate.public_bytes(Encoding.PEM).decode(), safe=""),
        "ssl_client_verify": verified,
        "ssl_client_subject_dn": "CN=somebody",
    }


def envoy(certificate: x509.Certificate, subject: str = "CN=web-1") -> dict[str, Any]:
    pem = quote(certificate.public_bytes(Encoding.PEM).decode(), safe="")
    escaped = subject.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "x_forwarded_client_cert": f'By=spiffe://x/gateway;Hash={"ab" * 32};Cert="{pem}";Subject="{escaped}";URI=;DNS=a'
    }


def traefik(certificate: x509.Certificate, *chain: x509.Certificate) -> dict[str, Any]:
    texts = [base64.b64encode(one.public_bytes(Encoding.DER)).decode() for one in (certificate, *chain)]
    return {"x_forwarded_tls_client_cert": ",".join(texts)}
