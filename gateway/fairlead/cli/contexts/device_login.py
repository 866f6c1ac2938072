"""Logs a user in by the OAuth 2.0 device authorization grant (RFC 8628), and refreshes the tokens.

The user opens an address in any browser, on any machine, and enters a code there; meanwhile this end asks the issuer in
the interval that it wants. No port is opened here, so it works over SSH.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fairlead.cli.contexts.contexts_file import Context
from fairlead.cli.contexts.credentials import LoginTokens
from fairlead.errors import ConfigError, Unauthorized, Unavailable

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LONGEST: Final = 1_800.0
"""Seconds that a login may take at most, whatever the issuer says."""
SLOWER: Final = 5.0
"""Seconds that each `slow_down` adds to the interval (RFC 8628 §3.5)."""
LIFETIME: Final = 300.0
"""Seconds for which a token counts as valid whose end its issuer does not tell."""


class DeviceCode(msgspec.Struct):
    """What the issuer gives to begin with. The user needs `user_code` and the address."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str = ""
    interval: float = 5.0


class _Tokens(msgspec.Struct):
    id_token: str = ""
    access_token: str = ""
    refresh_token: str = ""
    expires_in: float = LIFETIME


class _Refusal(msgspec.Struct):
    error: str = ""
    error_description: str = ""


async def login(context: Context, show: Callable[[DeviceCode], None]) -> LoginTokens:
    """Ask for a code, `show` it, and wait until the user has entered it. Raises Unauthorized if the user or the issuer
    refuses, and Unavailable if the issuer does not answer."""
    from fairlead.oidc.provider import decoded, fetch_metadata, request

    ca = _ca(context)
    endpoints = await fetch_metadata(context.issuer, ca)
    if not endpoints.device_authorization_endpoint or not endpoints.token_endpoint:
        raise ConfigError(
            f"the issuer {context.issuer} offers no device authorization grant: enable it there (RFC 8628)"
        )
    form = {"client_id": context.client_id, "scope": context.scopes}
    status, body = await request("POST", endpoints.device_authorization_endpoint, ca, form)
    if status != 200:
        raise _refusal(body, status)
    code = decoded(body, DeviceCode, f"the issuer {context.issuer}")
    if not code.verification_uri.startswith(("https://", "http://")):
        raise Unavailable(f"the issuer {context.issuer} names no address for the code: expected https://")
    show(code)
    return await _wait(context, endpoints.token_endpoint, code)


async def _wait(context: Context, endpoint: str, code: DeviceCode) -> LoginTokens:
    from fairlead.oidc.provider import request

    form = {"grant_type": GRANT, "device_code": code.device_code, "client_id": context.client_id}
    interval = min(max(code.interval, 1.0), 60.0)
    try:
        async with asyncio.timeout(min(max(code.expires_in, 1.0), LONGEST)):
            while True:
                await asyncio.sleep(interval)
                try:
                    status, body = await request("POST", endpoint, _ca(context), form)
                except Unavailable:
                    interval = min(interval * 2, 60.0)  # RFC 8628 §3.5: back off exponentially
                    continue
                if status == 200:
                    return _credentials(context, body, "")
                match _error(body):
                    case "authorization_pending":
                        pass
                    case "slow_down":
                        interval += SLOWER
                    case _:
                        raise _refusal(body, status)
    except TimeoutError as e:
        raise Unauthorized("nobody has entered the code in time: `fairlead login` gives another one") from e


async def refresh(context: Context, refresh_token: str) -> LoginTokens:
    """New tokens. Raises Unauthorized if the issuer refuses, and Unavailable if it does not answer."""
    from fairlead.oidc.provider import fetch_metadata, request

    ca = _ca(context)
    endpoint = (await fetch_metadata(context.issuer, ca)).token_endpoint
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": context.client_id}
    status, body = await request("POST", endpoint, ca, form)
    if status >= 500:
        raise Unavailable(f"the issuer {context.issuer} answered with the status {status}: try again later")
    if status != 200:
        raise _refusal(body, status)
    return _credentials(context, body, refresh_token)


async def revoke(context: Context, refresh_token: str) -> bool:
    """Tell the issuer that the refresh token is not needed any more; whether it has an endpoint for that (RFC 7009)."""
    from fairlead.oidc.provider import fetch_metadata, request

    endpoint = (await fetch_metadata(context.issuer, _ca(context))).revocation_endpoint
    if endpoint:
        await request("POST", endpoint, _ca(context), {"token": refresh_token, "client_id": context.client_id})
    return bool(endpoint)


def _credentials(context: Context, body: bytes, refresh_token: str) -> LoginTokens:
    """An ID token is for this client; an access token may be for anybody, and is sent only if there is no other."""
    from fairlead.oidc.provider import decoded

    tokens = decoded(body, _Tokens, f"the issuer {context.issuer}")
    token = tokens.id_token or tokens.access_token
    if not token:
        raise Unavailable(f"the issuer {context.issuer} gave no token")
    expires = _end_of(token) or time.time() + tokens.expires_in
    return LoginTokens(context.issuer, context.client_id, token, expires, tokens.refresh_token or refresh_token)


def _end_of(token: str) -> float | None:
    """When a JWT expires, as it says itself; the gateway is who verifies it."""
    import base64

    try:
        body = token.split(".")[1]
        claims: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, ValueError, TypeError, msgspec.MsgspecError):
        return None


def _error(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except msgspec.MsgspecError:
        return ""


def _refusal(body: bytes, status: int) -> Unauthorized:
    try:
        found = msgspec.json.decode(body, type=_Refusal)
    except msgspec.MsgspecError:
        found = _Refusal()
    words = {
        "access_denied": "the login was refused",
        "expired_token": "nobody has entered the code in time",
        "invalid_grant": "the issuer takes the refresh token no more",
    }.get(found.error, f"the issuer answered with the status {status} {found.error}".rstrip())
    more = f": {found.error_description[:200]}" if found.error_description else ""
    return Unauthorized(f"{words}{more}")


def _ca(context: Context) -> Any:
    from pathlib import Path

    return Path(context.issuer_ca) if context.issuer_ca else None
