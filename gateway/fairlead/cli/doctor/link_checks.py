"""The road of links: whether an upgrade to WebSocket gets through, the token is taken, and silence is borne.

Used by `doctor`. The upgrade is asked for by hand, since what stands between us and the gateway is known by the answer
that is not 101.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

from fairlead.carrier.client import connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.cli.doctor.api_checks import get, read_answer
from fairlead.cli.doctor.endpoint_checks import PATIENCE, Check, CheckFailed, EndpointChecks
from fairlead.cli.doctor.idle_check import DoctorLink, measure
from fairlead.cli.link_options import endpoint
from fairlead.errors import ConnectionRefused
from fairlead.wire import handshake
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, SUBPROTOCOLS, Bye

PROXIES = (
    "let it pass Upgrade and Connection (nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
    'proxy_set_header Connection "upgrade")'
)


class LinkChecks(EndpointChecks):
    def __init__(self, url: str, token: str, idle: float) -> None:
        super().__init__(url, "ws", "wss", "--links")
        self._token = token
        self._idle = idle

    @property
    def steps(self) -> list[Check]:
        steps = [*self.first_steps, ("upgrade", self._upgrade), ("token", self._judge_token)]
        return [*steps, ("idle", self._be_silent)] if self._idle else steps

    async def _upgrade(self) -> str:
        self._refused = False
        answer, body, key = await self._ask()
        if answer.status == 101:
            try:
                agreed = handshake.agreement(answer, key, SUBPROTOCOLS)
            except ConnectionRefused as e:
                raise CheckFailed(f"the 101 answer was changed on the way: {e.message}", self._between(answer)) from e
            if agreed.subprotocol is None:
                raise CheckFailed(
                    "the 101 answer names no subprotocol: Sec-WebSocket-Protocol is lost on the way",
                    self._between(answer),
                )
            return f"101, {agreed.subprotocol}"
        ours = b'"urn:fairlead:error:' in body
        if answer.status == 401 and ours:
            self._refused = True
            return "it arrives: the gateway refuses the token, not the upgrade"
        if answer.status in (429, 503) and ours:
            raise CheckFailed(
                f"it arrives, but the node takes no links now: HTTP {answer.status}, {_detail(body)}",
                "look at `fairlead agents ls`, or try again when it has drained",
            )
        raise CheckFailed(await self._stripped(answer), self._between(answer))

    async def _stripped(self, answer: handshake.Response) -> str:
        """What stands behind an answer that is no 101, in words."""
        who = _server(answer)
        try:
            plain = (await get(self, self._path))[0].status
        except (OSError, TimeoutError, ConnectionRefused):
            plain = 0
        if plain == answer.status:
            return (
                f"HTTP {answer.status} in place of 101, the answer to a plain request: something between here and the "
                f"gateway{who} strips the upgrade, or {self._path} is not the path of links"
            )
        return (
            f"HTTP {answer.status} in place of 101: something between here and the gateway{who} refuses the upgrade, "
            "or this is not the port of links"
        )

    def _between(self, answer: handshake.Response) -> str:
        who = _server(answer)
        return f"look at the proxy{who}: {PROXIES}" if who else f"look at the proxies on the way: {PROXIES}"

    async def _judge_token(self) -> str:
        if self._refused:
            raise CheckFailed(
                "the token of agents is not taken",
                "give FAIRLEAD_AGENT_TOKEN or --agent-token-file what the gateway has as agent_token",
            )
        return "the token of agents is taken"

    async def _ask(self) -> tuple[handshake.Response, bytes, bytes]:
        """Ask for the upgrade: the answer, the beginning of its body, our key."""
        key = handshake.new_key(os.urandom(16))
        request = handshake.request(
            urlsplit(self.url).netloc, self._path, key, subprotocols=SUBPROTOCOLS, headers=self._headers
        )
        try:
            reader, writer = await self.open()
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    writer.write(request)
                    return *await read_answer(reader, handshake.MAX_BODY), key
            finally:
                writer.close()
        except (OSError, TimeoutError, ConnectionRefused) as e:
            said = e.message if isinstance(e, ConnectionRefused) else str(e) or f"no answer within {2 * PATIENCE:g} s"
            raise CheckFailed(
                f"no answer to the upgrade: {said}",
                f"is it the port of links (8080 unless told otherwise)? If a proxy stands there: {PROXIES}",
            ) from e

    @property
    def _path(self) -> str:
        return urlsplit(endpoint(self.url)).path

    @property
    def _headers(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._token}")]

    async def _be_silent(self) -> str:
        """Be an agent that says hello and then nothing."""
        ear = DoctorLink()
        url = urlsplit(self.url)._replace(path=self._path).geturl()
        async with TimerWheel() as timer_wheel:
            try:
                connection = await connect(
                    url, ear, timer_wheel=timer_wheel, subprotocols=[SUBPROTOCOL_MSGPACK], headers=self._headers
                )
            except ConnectionRefused as e:
                raise CheckFailed(
                    f"a second upgrade failed: {e.message}", "try again; is more than one node there?"
                ) from e
            try:
                told = await measure(ear, self._idle)
                ear.say(Bye(code=CloseCode.NORMAL, why="doctor"))
                connection.close(CloseCode.NORMAL, "doctor")
                await ear.closed_within(PATIENCE)
                return told
            finally:
                connection.abort()


def _server(answer: handshake.Response) -> str:
    """What the answer says of who gave it, in brackets."""
    names = [answer.headers[name] for name in ("server", "via") if answer.headers.get(name)]
    return f" ({', '.join(names)})" if names else ""


def _detail(body: bytes) -> str:
    import msgspec

    class Problem(msgspec.Struct):
        detail: str = ""

    try:
        return msgspec.json.decode(body, type=Problem).detail
    except msgspec.MsgspecError:
        return ""
