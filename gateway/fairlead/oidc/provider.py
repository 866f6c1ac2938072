"""Asks an OpenID provider over HTTP: its metadata by discovery (OpenID Connect Discovery 1.0), and its keys.

`issuer_keys` fetches keys with it, and the command line finds the endpoints of a login. Every answer is bounded in time
and size; redirects are not followed, so that nobody between can name another place for the keys.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from fairlead.configuration.loopback import is_loopback
from fairlead.errors import ConfigError, Unavailable

TIMEOUT: Final = 5.0
"""Seconds for the metadata and the keys together."""
BODY_LIMIT: Final = 1 << 18

T = TypeVar("T")


class ProviderMetadata(msgspec.Struct, frozen=True):
    """The members of an issuer's metadata that are used here."""

    issuer: str
    jwks_uri: str
    token_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""


def trusted_context(ca: Path | None) -> ssl.SSLContext:
    """The certificate authorities of the system, or those of a PEM file. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(f"{ca} cannot be used ({e}): expected a PEM file of certificate authorities") from e


async def fetch_metadata(issuer: str, ca: Path | None = None, token: str = "") -> ProviderMetadata:
    """Raises Unavailable if the issuer does not answer, or answers with something else."""
    body = await get(f"{issuer.rstrip('/')}/.well-known/openid-configuration", ca, token)
    found = decoded(body, ProviderMetadata, f"the issuer {issuer}")
    if found.issuer != issuer:
        raise Unavailable(
            f"the issuer {issuer} calls itself {found.issuer[:200]!r}: expected the same URL in both places"
        )
    for url in (found.jwks_uri, found.token_endpoint, found.device_authorization_endpoint, found.revocation_endpoint):
        if url and not _is_safe(url):
            raise Unavailable(f"the issuer {issuer} names the address {url[:200]!r}: expected https://")
    return found


async def fetch_keys(issuer: str, ca: Path | None = None, token: str = "") -> bytes:
    """The JSON Web Key Set of the issuer, unread. The `token` is presented to the issuer. Raises Unavailable."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await get((await fetch_metadata(issuer, ca, token)).jwks_uri, ca, token)
    except TimeoutError as e:
        raise Unavailable(f"the issuer {issuer} has not answered within {TIMEOUT:g} s") from e


def decoded(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise Unavailable(f"{what} gave an answer that is not understood: {e}") from e


async def get(url: str, ca: Path | None, token: str = "") -> bytes:
    status, body = await request("GET", url, ca, token=token)
    if status != 200:
        raise Unavailable(f"{url} answered with the status {status}: expected 200")
    return body


async def request(
    method: str,
    url: str,
    ca: Path | None,
    form: dict[str, str] | None = None,
    timeout: float = TIMEOUT,
    token: str = "",
) -> tuple[int, bytes]:
    """The status and the body of an answer. Raises Unavailable if there is none."""
    import httpx2

    secure = urlsplit(url).scheme == "https"
    # A proxy from the environment is for other hosts: it cannot reach this machine's loopback interface.
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    outside = not is_loopback(urlsplit(url).hostname or "")
    try:
        # The system's authorities take 30 ms to read, and whoever invents the id of a key has the keys fetched.
        verify = await asyncio.to_thread(trusted_context, ca) if secure else False
        async with (
            asyncio.timeout(timeout),
            httpx2.AsyncClient(verify=verify, trust_env=outside) as http,
            http.stream(method, url, data=form, headers=headers) as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > BODY_LIMIT:
                    raise Unavailable(f"{url} answered with more than {BODY_LIMIT} bytes")
            return answer.status_code, body
    except TimeoutError as e:
        raise Unavailable(f"{url} has not answered within {timeout:g} s") from e
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        raise Unavailable(f"{url} cannot be reached: {e or type(e).__name__}") from e


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        return False
