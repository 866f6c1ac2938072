"""The checks of the agents' links: the upgrade to WebSocket, the agent token, and silence.

The upgrade request is sent without a library, because an answer other than 101 shows what is between this machine and
the gateway.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

from fairlead.carrier.client import connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.cli.doctor.checks import STEP_TIMEOUT, Check, CheckFailed
from fairlead.cli.doctor.endpoint_checks import EndpointChecks
from fairlead.cli.doctor.idle_check import IdleLink, check_idle
from fairlead.cli.doctor.plain_http import get, read_answer
from fairlead.cli.link_options import endpoint
from fairlead.errors import ConnectionRefused
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, SUBPROTOCOLS, Bye
from fairlead.wire.websocket import handshake

PROXY_ADVICE = (
    "it must forward Upgrade and Connection (nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
    'proxy_set_header Connection "upgrade")'
)


class LinkChecks(EndpointChecks):
    """The checks of the links at one URL. `idle` is how many seconds a link is kept silent; 0 skips that check."""

    def __init__(self, url: str, token: str, idle: float) -> None:
        super().__init__(url, "ws", "wss", "--links")
        self._token = token
        self._idle = idle

    @property
    def checks(self) -> list[Check]:
        checks = [*self.endpoint_checks, ("upgrade", self._check_upgrade), ("token", self._check_token)]
        return [*checks, ("idle", self._check_idle)] if self._idle else checks

    async def _check_upgrade(self) -> str:
        self._token_refused = False
        answer, body, key = await self._request_upgrade()
        if answer.status == 101:
            try:
                agreed = handshake.agreement(answer, key, SUBPROTOCOLS)
            except ConnectionRefused as e:
                raise CheckFailed(f"invalid 101 answer: {e.message}", self._proxy_advice(answer)) from e
            if agreed.subprotocol is None:
                raise CheckFailed(
                    "the 101 answer names no subprotocol: Sec-WebSocket-Protocol is lost on the way",
                    self._proxy_advice(answer),
                )
            return f"101, {agreed.subprotocol}"
        is_fairlead = b'"urn:fairlead:error:' in body
        if answer.status == 401 and is_fairlead:
            self._token_refused = True
            return "the upgrade reaches the gateway, which rejects the token"
        if answer.status in (429, 503) and is_fairlead:
            raise CheckFailed(
                f"the node accepts no links now: HTTP {answer.status}, {_detail(body)}",
                "check `fairlead agents ls`, or try again after the node's drain",
            )
        raise CheckFailed(await self._explain_refusal(answer), self._proxy_advice(answer))

    async def _explain_refusal(self, answer: handshake.Response) -> str:
        """What an answer other than 101 means, in words."""
        server = _server(answer)
        try:
            status = (await get(self, self._path))[0].status
        except (OSError, TimeoutError, ConnectionRefused):
            status = 0
        if status == answer.status:
            return (
                f"HTTP {answer.status} instead of 101, as for a request without upgrade: something between here and "
                f"the gateway{server} removes the upgrade, or {self._path} is not the path of links"
            )
        return (
            f"HTTP {answer.status} instead of 101: something between here and the gateway{server} refuses the upgrade, "
            "or this is not the port of links"
        )

    def _proxy_advice(self, answer: handshake.Response) -> str:
        server = _server(answer)
        return f"check the proxy{server}: {PROXY_ADVICE}" if server else f"check the proxies on the way: {PROXY_ADVICE}"

    async def _check_token(self) -> str:
        if self._token_refused:
            raise CheckFailed(
                "the gateway rejects the agent token",
                "set FAIRLEAD_AGENT_TOKEN or --agent-token-file to what the gateway has as agent_token",
            )
        return "the gateway accepts the agent token"

    async def _request_upgrade(self) -> tuple[handshake.Response, bytes, bytes]:
        """The answer to a request for an upgrade, the beginning of its body, and our key."""
        key = handshake.new_key(os.urandom(16))
        request = handshake.request(
            urlsplit(self.url).netloc, self._path, key, subprotocols=SUBPROTOCOLS, headers=self._headers
        )
        try:
            reader, writer = await self.open()
            try:
                async with asyncio.timeout(2 * STEP_TIMEOUT):
                    writer.write(request)
                    return *await read_answer(reader, handshake.MAX_BODY), key
            finally:
                writer.close()
        except (OSError, TimeoutError, ConnectionRefused) as e:
            late = f"nothing within {2 * STEP_TIMEOUT:g} s"
            raise CheckFailed(
                f"no answer to the upgrade: {e.message if isinstance(e, ConnectionRefused) else str(e) or late}",
                f"is this the port of links (8080 by default)? If there is a proxy, {PROXY_ADVICE}",
            ) from e

    @property
    def _path(self) -> str:
        return urlsplit(endpoint(self.url)).path

    @property
    def _headers(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._token}")]

    async def _check_idle(self) -> str:
        """Connect as an agent that says hello and then nothing."""
        link = IdleLink()
        url = urlsplit(self.url)._replace(path=self._path).geturl()
        async with TimerWheel() as timer_wheel:
            try:
                connection = await connect(
                    url, link, timer_wheel=timer_wheel, subprotocols=[SUBPROTOCOL_MSGPACK], headers=self._headers
                )
            except ConnectionRefused as e:
                raise CheckFailed(
                    f"a second upgrade failed: {e.message}", "try again; is there more than one node?"
                ) from e
            try:
                found = await check_idle(link, self._idle)
                link.send(Bye(code=CloseCode.NORMAL, why="doctor"))
                connection.close(CloseCode.NORMAL, "doctor")
                await link.closed_within(STEP_TIMEOUT)
                return found
            finally:
                connection.abort()


def _server(answer: handshake.Response) -> str:
    """What the answer says about the server that sent it, in parentheses."""
    names = [answer.headers[name] for name in ("server", "via") if answer.headers.get(name)]
    return f" ({', '.join(names)})" if names else ""


def _detail(body: bytes) -> str:
    import msgspec

    class ProblemDetail(msgspec.Struct):
        detail: str = ""

    try:
        return msgspec.json.decode(body, type=ProblemDetail).detail
    except msgspec.MsgspecError:
        return ""
