"""What was wrong with an attempt to connect, in words that say what to do. Used by `client`. It does no I/O."""

from __future__ import annotations

import ssl as tls
from typing import Final

from fairlead.wire.websocket import handshake

CLIENT_CERTIFICATE_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for one",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it may ask for one",
    "TLSV1_ALERT_UNKNOWN_CA": "its authority is not known there",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is not right",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not valid",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not for clients",
}
"""OpenSSL's names of the alerts with which a server refuses a client's certificate, and what each means."""


def describe_problem(error: OSError | UnicodeError, host: str, timeout: float) -> str:
    """What was wrong with an address to which no connection could be opened within `timeout` seconds."""
    if isinstance(error, TimeoutError):
        return f"did not answer within {timeout:g} s"
    if isinstance(error, tls.SSLCertVerificationError):
        return (
            f"shows a certificate that is not trusted: {error.verify_message}; "
            "name the authority that signed it as ca_file, or correct the host in the URL"
        )
    if isinstance(error, tls.SSLError) and error.reason in CLIENT_CERTIFICATE_ALERTS:
        return (
            f"does not accept this client's certificate ({CLIENT_CERTIFICATE_ALERTS[error.reason]}); give the agent "
            "one of an authority that the gateway trusts, as tls_cert and tls_key"
        )
    if isinstance(error, UnicodeError):
        return f"cannot be reached: {host!r} is not a valid host name ({error})"
    return f"cannot be reached: {error}"


def advise_on(response: handshake.Response) -> str:
    """Return advice about an answer that a gateway never gives to an upgrade request that reached it unchanged."""
    status, headers = response.status, response.headers
    if status == 404:
        return (
            ": no link is served under this address, or something on the way has dropped `Upgrade: websocket`; check "
            "the URL, whose path is /v1/link unless a proxy adds to it, and that proxies pass Upgrade and Connection"
        )
    if 300 <= status < 400:
        return (
            f": it redirects to {headers.get('location', 'nowhere')}; give the agent that address, as ws:// or wss://"
        )
    if status in (400, 405) or status < 300 or (status == 426 and "sec-websocket-protocol" not in headers):
        return (
            ": something on the way probably dropped `Upgrade: websocket`, as a proxy or load balancer without "
            "support for WebSockets does; let it pass the headers Upgrade and Connection, or bypass it"
        )
    return ""
