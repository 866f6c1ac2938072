"""The Redis of a fleet: its URL, the nodes' rows in it, and what the operator writes for the nodes.

Each reconciler has one and reads it in every pass, before it writes anything. Problems are reported in the condition
RedisReachable, and the pass continues without the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead.fleet import schema
from fairlead.fleet.directives.disconnect import Disconnect, Disconnects
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead.fleet.directives.preferred_revision import PreferredRevision, PreferredRevisions
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.fleet.moves.move_bucket import MoveBucket
from fairlead.redis_url import EXPECTED, parse_redis_url, with_option
from fairlead.store.errors import StoreError
from fairlead.store.reply import octets
from fairlead.store.store import Store
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.history.document import UnusableHistory
from fairlead_operator.autoscaler.observation import NodeMetrics
from fairlead_operator.inputs.client_certificate import ClientCertificate
from fairlead_operator.inputs.node_metrics import NodeMetricsReader
from fairlead_operator.inputs.secrets import Secrets, UnusableSecret, secret_reason

CALL_TIMEOUT = 4.0
"""Seconds for one small read or write. The next pass repeats it."""

T = TypeVar("T")

logger = logging.getLogger(__name__)
SCALING_HISTORY_MS = 7 * 24 * 3600_000
"""How long the operator's history is kept: after a week without an operator it describes another fleet."""


class FleetRedis:
    def __init__(self) -> None:
        self._reader: NodeMetricsReader | None = None
        self._certificate = ClientCertificate()

    async def aclose(self) -> None:
        await self._close_reader()
        self._certificate.close()

    async def _close_reader(self) -> None:
        if self._reader is not None:
            await self._reader.aclose()
            self._reader = None

    async def read(self, spec: LinkGatewaySpec, secrets: Secrets, conditions: Conditions) -> NodeMetrics | None:
        """The nodes' rows, or None when they cannot be read; sets RedisReachable."""
        try:
            url = self._with_certificate(redis_url(spec, secrets), spec, secrets)
        except FairleadError as e:
            reason = secret_reason(e)
            conditions.set("RedisReachable", False, "SecretNotFound" if reason == "NotFound" else reason, e.message)
            return None
        try:
            nodes = await (await self._reader_of(url)).read()
        except BusUnavailable as e:
            conditions.set("RedisReachable", False, "Unreachable", e.message)
        except ConfigError:
            # The error's own message is not used, because it may quote the user and password in the URL.
            conditions.set("RedisReachable", False, "Unusable", f"the Redis URL is invalid: expected {EXPECTED}")
        except FairleadError as e:
            conditions.set("RedisReachable", False, "Unusable", e.message)
        else:
            conditions.set("RedisReachable", True, "Reachable")
            return nodes
        return None

    async def prefer(self, revision: PreferredRevision) -> None:
        """Tells the nodes whose revision takes new links. Raises BusUnavailable."""
        await self._call(lambda store: PreferredRevisions(store).write(revision))

    async def write_rebalance(self, targets: Mapping[str, RebalanceTarget]) -> None:
        """Writes the target of each node; no targets end the rebalance. Raises BusUnavailable."""
        await self._call(lambda store: RebalanceTargets(store).write(targets))

    async def write_disconnect(self, wanted: Disconnect) -> None:
        """Tells the nodes whose links they should close; this expires after half a minute. Raises BusUnavailable."""
        await self._call(lambda store: Disconnects(store).write(wanted))

    async def withdraw_disconnect(self) -> None:
        """Tells the nodes to close no more links. Raises BusUnavailable."""
        await self._call(lambda store: Disconnects(store).withdraw())

    async def disconnect_progress(self, operation: str) -> dict[str, DisconnectReport]:
        """How far each node is with the LinkOperation of this uid, by lease. Raises BusUnavailable."""
        return await self._call(lambda store: Disconnects(store).progress(operation))

    async def set_move_rate(self, rate: float, most: float, now: int) -> None:
        """Allows the nodes `rate` moves per second for half a minute, and never more than `most`. `now`: Redis TIME in
        ms, from the `read` of this pass. If that fails, the nodes compute the rate themselves."""
        try:
            await self._call(lambda store: MoveBucket(store).set_rate(rate, most, now))
        except BusUnavailable as e:
            logger.warning("the rate of moves was not written: %s", e.message)

    async def read_history(self, most: int) -> bytes | None:
        """The first `most` bytes of the document that the last leader left; None without one. Raises BusUnavailable,
        and UnusableHistory when the key holds no document."""
        return await self._call(lambda store: _read_history(store, most)) or None

    async def write_history(self, document: bytes) -> None:
        """Raises BusUnavailable."""
        await self._call(lambda store: _write_history(store, document))

    async def _call(self, call: Callable[[Store], Awaitable[T]]) -> T:
        if self._reader is None:
            raise BusUnavailable("Redis has not been read in this pass")
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await call(self._reader.store)
        except TimeoutError as e:
            message = f"Redis at {self._reader.address} did not answer within {CALL_TIMEOUT:g} s"
            raise BusUnavailable(message) from e
        except StoreError as e:  # a key of another type, or a reply of another shape: that must not end the pass
            raise BusUnavailable(f"Redis at {self._reader.address}: {e.message}") from e

    async def _reader_of(self, url: str) -> NodeMetricsReader:
        if self._reader is None or self._reader.url != url:
            await self._close_reader()
            self._reader = NodeMetricsReader(url)
        return self._reader

    def _with_certificate(self, url: str, spec: LinkGatewaySpec, secrets: Secrets) -> str:
        """The URL with the certificate to present, if the spec names one."""
        if spec.redis.client_tls is None:
            return url
        path = quote(self._certificate.path(*secrets.keys(spec.redis.client_tls.secret_name, "tls.crt", "tls.key")))
        return with_option(with_option(url, "ssl_certfile", path), "ssl_keyfile", path)


async def _read_history(store: Store, most: int) -> bytes:
    try:
        return octets(await store.submit("GETRANGE", schema.SCALING_HISTORY, 0, most - 1, expected=most))
    except StoreError as e:
        raise UnusableHistory(e.message) from e


async def _write_history(store: Store, document: bytes) -> None:
    await store.submit("SET", schema.SCALING_HISTORY, document, "PX", SCALING_HISTORY_MS)


def redis_url(spec: LinkGatewaySpec, secrets: Secrets) -> str:
    """The URL of Redis, including the CA certificates, which the client of `fairlead.store` reads from it."""
    redis = spec.redis
    ref = redis.operator_secret_ref or redis.secret_ref
    url = (redis.url or "") if ref is None else secrets.text(ref.name, ref.key).strip()
    if redis.ca_secret_ref is None:
        return url
    try:
        tls = parse_redis_url(url).tls
    except ValueError:
        return url  # whoever connects says what is wrong with it
    if not tls:
        raise UnusableSecret("redis.caSecretRef needs a rediss:// URL: only such a server has a certificate to verify")
    pem = secrets.text(redis.ca_secret_ref.name, redis.ca_secret_ref.key)
    return with_option(url, "ssl_ca_data", quote(pem))
