"""The guard of a port: it checks Host and Origin, then the token, and delays the answers to an address that fails.

The link endpoint and the API call it first for every request. The token is checked before the address: a caller with
the right token passes at once, even if an attacker uses the same address. The guards of a node share one
`CredentialFailures`, so an attacker gains nothing by guessing on the other port.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from prometheus_client import Counter

from fairlead.app.access.hosts import HostRules
from fairlead.app.access.penalties import Penalties
from fairlead.carrier.http_server.admission import authenticated
from fairlead.carrier.http_server.client_address import address_key
from fairlead.errors import FairleadError, Throttled, Unauthorized
from fairlead.oidc.jwt_verifier import UnknownIssuer
from fairlead.telemetry.logs import LogAggregator

logger = logging.getLogger(__name__)

C = TypeVar("C", covariant=True)

WAITING: Final = 1_024
"""Maximum number of delayed answers, of about 5 KB each; further ones are sent at once. It is above the default limit
of connections without a token, so an attacker is delayed on all of their connections."""


class Credentials(Protocol[C]):
    """What a port accepts as credential."""

    def check(self, scope: Mapping[str, Any]) -> C:
        """Whom the credential of a request, given by its ASGI scope, belongs to. Raises Unauthorized, and Unavailable
        if that cannot be found out now."""
        ...


class BearerToken:
    """The secret that agents or platforms present; `holder` says which of the two. It is compared in constant time."""

    def __init__(self, secret: str, holder: str) -> None:
        self._header = b"Bearer " + secret.encode()
        self._holder = holder

    def matches(self, scheme: bytes, credential: bytes) -> bool:
        return hmac.compare_digest(scheme + b" " + credential, self._header)

    def refusal(self) -> Unauthorized:
        return Unauthorized(f"wrong credential: expected the {self._holder} token")


def bearer_credential(headers: Iterable[tuple[bytes, bytes]], holder: str) -> tuple[bytes, bytes]:
    """The scheme and the credential of the header Authorization. Raises Unauthorized unless there is exactly one: of
    two, a proxy may have checked the other."""
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        raise Unauthorized(f"missing credential: send `Authorization: Bearer <{holder} token>`")
    if len(given) > 1:
        raise Unauthorized(f"{len(given)} headers Authorization: expected one, with the {holder} token")
    scheme, _, credential = given[0].partition(b" ")
    return scheme.capitalize(), credential.strip()


class CredentialFailures:
    """Failed authentications on all ports of a node: their answers are delayed, and the log names the addresses."""

    def __init__(self, refused: Counter) -> None:
        self._penalties = Penalties()
        self._refused = refused
        self._log_aggregator = LogAggregator(logger)
        self._waiting = 0

    async def note(self, port: str, key: str, error: Unauthorized) -> Unauthorized | Throttled:
        """Count a failure, wait as long as its address has to, and return the error to answer with."""
        self._refused.labels(port).inc()
        client = key or "an unknown address"
        trusted = ""
        if isinstance(error, UnknownIssuer):
            trusted = f"; trusted there: {', '.join(error.trusted) or 'no issuer'}"
        self._log_aggregator.note(
            "credentials refused", f"{port} {client}", logging.WARNING,
            "refused a credential on the %s port from %s: %s%s", port, client, error.message, trusted,
        )  # fmt: skip
        penalty = self._penalties.fail(key, asyncio.get_running_loop().time(), random.random())
        if penalty.delay and self._waiting < WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(penalty.delay)
            finally:
                self._waiting -= 1
        if not penalty.retry_after:
            return error
        after = penalty.retry_after + random.randint(0, penalty.retry_after)
        return Throttled(
            f"too many wrong credentials from {client}: {error.message}; the right one is still accepted at once",
            retry_after=after,
        )

    def aclose(self) -> None:
        self._log_aggregator.aclose()


class AccessGuard(Generic[C]):
    """`port` is the port's name in metrics and logs: link or api. `fetch_after` may fetch what a failed check has
    missed, such as the keys of an issuer, and says whether to check once more."""

    def __init__(
        self,
        port: str,
        token: Credentials[C],
        hosts: HostRules,
        failures: CredentialFailures,
        fetch_after: Callable[[FairleadError], Awaitable[bool]] | None = None,
    ) -> None:
        self._port = port
        self._token = token
        self._hosts = hosts
        self._failures = failures
        self._fetch_after = fetch_after

    def examine(self, scope: Mapping[str, Any]) -> C:
        """Return what `admit` would return. Raises a FairleadError if that would refuse. Counts and delays nothing."""
        self._hosts.check(scope["headers"])
        return self._token.check(scope)

    async def admit(self, scope: Mapping[str, Any]) -> C:
        """Returns whom the credential belongs to. Raises Forbidden at once, and Unauthorized or Throttled after the
        delay for the address."""
        self._hosts.check(scope["headers"])
        try:
            admitted = await self._check(scope)
        except Unauthorized as e:
            raise await self._failures.note(self._port, client_key(scope), e) from None
        authenticated(scope)
        return admitted

    async def _check(self, scope: Mapping[str, Any]) -> C:
        try:
            return self._token.check(scope)
        except FairleadError as e:
            if self._fetch_after is None or not await self._fetch_after(e):
                raise
        return self._token.check(scope)


def client_key(scope: Mapping[str, Any]) -> str:
    """The key under which the client's address is counted; "" if the client has no address."""
    client = scope.get("client")
    return address_key(client[0]) if client else ""
