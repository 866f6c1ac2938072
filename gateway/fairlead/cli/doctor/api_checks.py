"""The checks of the platform API and of a node's probes.

One request to the API answers three questions: whether it is Fairlead that answers, whether it accepts the token, and
whether it reaches its Redis, without which it knows no agents.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fairlead.cli.doctor.checks import STEP_TIMEOUT, Check, CheckFailed
from fairlead.cli.doctor.endpoint_checks import EndpointChecks
from fairlead.cli.doctor.plain_http import get
from fairlead.client import Client, ConnectionLost, check_address
from fairlead.errors import BusUnavailable, ConnectionRefused, FairleadError, InvalidRequest, Unauthorized
from fairlead.settings import is_loopback


class ApiChecks(EndpointChecks):
    """The checks of the platform API at one URL."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, "http", "https", "--api")
        self._token = token
        self._refusal: FairleadError | None = None

    def _first_hop(self) -> tuple[str, int]:
        """The proxy from the environment, as the client would use it: never for this machine."""
        try:
            check_address(self.url)
        except InvalidRequest as e:
            raise CheckFailed(e.message, "--api https://HOST, or --api http://HOST:PORT") from e
        scheme = "https" if self.secure else "http"
        proxy = "" if is_loopback(self.host) or proxy_bypass(self.host) else getproxies().get(scheme, "")
        try:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            if proxy and parts.hostname:
                self.proxy = proxy
                return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as e:
            raise CheckFailed(
                f"invalid URL {proxy!r} of the proxy in the environment: {e}", f"correct {scheme}_proxy"
            ) from e
        return super()._first_hop()

    @property
    def checks(self) -> list[Check]:
        return [
            *self.endpoint_checks,
            ("api", self._check_api),
            ("token", self._check_token),
            ("redis", self._check_redis),
        ]

    async def _check_api(self) -> str:
        try:
            async with Client(self.url, self._token) as client, asyncio.timeout(2 * STEP_TIMEOUT):
                await anext(client.agents(), None)
            return "Fairlead answers"
        except TimeoutError as e:
            raise CheckFailed(
                f"no answer within {2 * STEP_TIMEOUT:g} s", "is the node, or a proxy in front of it, overloaded?"
            ) from e
        except (ConnectionLost, ConnectionRefused) as e:
            advice = "see the server's log" if self.secure else "if this port speaks TLS, write https://"
            raise CheckFailed(e.message, advice) from e
        except FairleadError as e:
            if not e.details.get("code"):
                raise CheckFailed(
                    f"the answer is not from Fairlead's API: {e.message}",
                    "is this the API's port (8081 by default), and does a proxy in front of it forward /v1/?",
                ) from e
            self._refusal = e
            return "Fairlead answers"

    async def _check_token(self) -> str:
        if isinstance(self._refusal, Unauthorized):
            raise CheckFailed(
                f"the gateway rejects the token: {self._refusal.message}",
                "set FAIRLEAD_TOKEN to the value that the gateway has as platform_token",
            )
        return "the gateway accepts the token"

    async def _check_redis(self) -> str:
        if isinstance(self._refusal, BusUnavailable):
            raise CheckFailed(
                f"the gateway cannot reach its Redis: {self._refusal.message}",
                "is Redis running, and is the gateway's `redis` setting right? It reconnects by itself",
            )
        if self._refusal is not None:
            raise CheckFailed(self._refusal.message, "see the gateway's log")
        return "the gateway reaches its Redis"


class ProbeChecks(EndpointChecks):
    """The checks of a node's admin port: whether the node says that it is ready."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "http", "https", "--admin")

    @property
    def checks(self) -> list[Check]:
        return [*self.endpoint_checks, ("readyz", self._check_readyz)]

    async def _check_readyz(self) -> str:
        wrong_port = "is this the admin port (8082 by default)?"
        try:
            answer, body = await get(self, "/readyz")
        except (OSError, TimeoutError, ConnectionRefused) as e:
            raise CheckFailed(f"no answer from /readyz: {e}", wrong_port) from e
        text = "; ".join(body.decode(errors="replace").split("\n")).strip("; ")
        if answer.status == 200:
            return f"the node is ready: {text}"
        if answer.status == 503:
            raise CheckFailed(f"the node is not ready: {text}", "see the node's log")
        raise CheckFailed(f"unexpected answer HTTP {answer.status} from /readyz", wrong_port)
