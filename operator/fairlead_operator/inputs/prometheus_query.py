"""Queries Prometheus for the value of `scaling.signals.prometheus`: one instant query in each pass.

Each reconciler has one. The author of a LinkGateway chooses the server, within the policy. Therefore the request has a
deadline and follows no redirect, the size of the answer is bounded, and nothing but its number is ever shown. While a
query fails, no pod is added for it and none is removed; the condition PrometheusQueried says why it failed.
"""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

import aiohttp
import msgspec
from msgspec import Meta

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.scaling_signals import PrometheusSignal
from fairlead_operator.autoscaler.observation import QueriedValue

ANSWER_BYTES = 64 << 10
"""The maximum size of an answer in bytes. One with a single sample has some 200, and its labels may have some
thousand."""


class _Sample(msgspec.Struct, frozen=True):
    value: tuple[float, str]


class _Vector(msgspec.Struct, frozen=True, tag="vector", tag_field="resultType"):
    result: Annotated[list[_Sample], Meta(max_length=1000)]


class _Scalar(msgspec.Struct, frozen=True, tag="scalar", tag_field="resultType"):
    result: tuple[float, str]


class _Answer(msgspec.Struct, frozen=True):
    data: _Vector | _Scalar


class QueryFailed(Exception):
    """A query failed. The message completes the sentence that begins with the URL."""


class PrometheusQuery:
    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, signal: PrometheusSignal | None, conditions: Conditions) -> QueriedValue | None:
        """The result of the query, without a value if it failed; None if the spec has no query. Sets the condition
        PrometheusQueried."""
        if signal is None:
            return None
        try:
            async with asyncio.timeout(signal.timeout_seconds):
                value = await self._ask(signal)
        except QueryFailed as e:
            return self._failed(conditions, "Unusable", f"{signal.url} {e}")
        except TimeoutError:
            message = f"{signal.url} did not answer within {signal.timeout_seconds} s"
            return self._failed(conditions, "Unreachable", message)
        except (aiohttp.ClientError, OSError, ValueError) as e:
            return self._failed(conditions, "Unreachable", f"{signal.url} cannot be asked: {type(e).__name__}")
        conditions.set("PrometheusQueried", True, "Queried", f"the value is {value:.6g}")
        return QueriedValue(value)

    def _failed(self, conditions: Conditions, reason: str, why: str) -> QueriedValue:
        message = f"the query of scaling.signals.prometheus failed, so no pod is removed: {why}"
        conditions.set("PrometheusQueried", False, reason, message)
        return QueriedValue(None)

    async def _ask(self, signal: PrometheusSignal) -> float:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        where = f"{signal.url.rstrip('/')}/api/v1/query"
        parameters = {"query": signal.query, "timeout": f"{signal.timeout_seconds}s"}
        async with self._session.get(where, params=parameters, allow_redirects=False) as response:
            if response.status != 200:
                raise QueryFailed(f"answered {response.status}: expected 200")
            body = await response.content.read(ANSWER_BYTES + 1)
            while len(body) <= ANSWER_BYTES and (more := await response.content.read(ANSWER_BYTES + 1 - len(body))):
                body += more
        if len(body) > ANSWER_BYTES:
            raise QueryFailed(
                f"answered with more than {ANSWER_BYTES} bytes: expected one number (aggregate the query)"
            )
        return read_value(body)


def read_value(body: bytes) -> float:
    """The number in an answer of Prometheus' HTTP API. Raises QueryFailed for any other answer: for a vector of none or
    of several samples, and for a number that is negative or not finite."""
    try:
        data = msgspec.json.decode(body, type=_Answer).data
    except msgspec.MsgspecError:
        raise QueryFailed("did not answer with a vector or a scalar") from None
    if isinstance(data, _Scalar):
        _, text = data.result
    elif len(data.result) == 1:
        _, text = data.result[0].value
    else:
        raise QueryFailed(f"answered with {len(data.result)} samples: expected one (aggregate the query)")
    try:
        value = float(text)
    except ValueError:
        raise QueryFailed("answered with something that is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise QueryFailed(f"answered with {value:g}: expected a finite number that is not negative")
    return value
