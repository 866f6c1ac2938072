"""The guard of a port: Host and Origin first, then the token, with penalties for an address that fails.

Asked by the link endpoint and by the API before anything else of a request is looked at. The token is compared before
the address is: whoever has the right one passes at once, even from an address that an attacker shares. The guards of a
node share their penalties, so that nobody guesses on one port what costs too much on the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import Counter

from fairlead.app.access.bearer_token import BearerToken
from fairlead.app.access.hosts import HostRules
from fairlead.app.access.penalties import Penalties
from fairlead.carrier.http_server.admission import authenticated
from fairlead.carrier.http_server.client_address import address_key
from fairlead.errors import Throttled, Unauthorized
from fairlead.telemetry.logs import LogAggregator

logger = logging.getLogger(__name__)

WAITING: Final = 1_024
"""Answers that are held back at once, some 5 KB each; beyond that they are given at once. More than the connections
without a token that the defaults allow: who comes with many must not be answered at once on the rest of them."""


class CredentialFailures:
    """The failures of all ports of a node: who fails waits, and is named in the log once a second."""

    def __init__(self, refused: Counter) -> None:
        self._penalties = Penalties()
        self._refused = refused
        self._log_aggregator = LogAggregator(logger)
        self._waiting = 0

    async def note(self, port: str, key: str, error: Unauthorized) -> Unauthorized | Throttled:
        """Count a failure and hold back its answer, which is returned."""
        self._refused.labels(port).inc()
        who = key or "an unknown address"
        self._log_aggregator.note(
            "credentials refused", f"{port} {who}", logging.WARNING,
            "refused a credential on the %s port from %s: %s", port, who, error.message,
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
            f"too many wrong credentials from {who}: {error.message}; the right one is accepted at once",
            retry_after=after,
        )

    def aclose(self) -> None:
        self._log_aggregator.aclose()


class AccessGuard:
    """`port` is its name in metrics and in the log: link or api."""

    def __init__(self, port: str, token: BearerToken, hosts: HostRules, failures: CredentialFailures) -> None:
        self._port = port
        self._token = token
        self._hosts = hosts
        self._failures = failures

    async def admit(self, scope: Mapping[str, Any]) -> None:
        """Raises Forbidden, Unauthorized or Throttled, the last two as late as the address has deserved."""
        headers = scope["headers"]
        self._hosts.check(headers)
        try:
            self._token.check(headers)
        except Unauthorized as e:
            raise await self._failures.note(self._port, client_key(scope), e) from None
        authenticated(scope)


def client_key(scope: Mapping[str, Any]) -> str:
    """What the client's address is counted by, "" when it has none."""
    client = scope.get("client")
    return address_key(client[0]) if client else ""
