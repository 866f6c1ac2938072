"""Asks the gateway for credentials, by HTTP at the address of the links.

`AgentIdentity` calls it in a thread, because it blocks. It is Python's own client: the requests are few and small, and
the agent's installation stays as small as it is.
"""

from __future__ import annotations

import email.message
import http.client
import ssl as tls
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from fairlead.errors import ConnectionRefused
from fairlead.text import plain
from fairlead.wire.websocket import handshake

TIMEOUT: Final = 10.0
"""Seconds for each step of a request."""
ANSWER_LIMIT: Final = 64 << 10
PENDING: Final = 202
"""The status of an enrolment that waits for an administrator."""
LINK_PATH: Final = "/v1/link"


class ObtainedCredential(msgspec.Struct, frozen=True):
    """A credential, and the seconds for which it is valid from now on."""

    credential: str
    lifetime: float


_decode = msgspec.json.Decoder(ObtainedCredential).decode
_encode = msgspec.json.Encoder().encode


class _Problem(msgspec.Struct):
    detail: str


_decode_problem = msgspec.json.Decoder(_Problem).decode


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the enrolment token to somebody else."""

    def redirect_request(self, *_: object) -> None:
        return None


class EnrolmentClient:
    def __init__(self, url: str, ssl: Callable[[], tls.SSLContext | None], proxy: str | None) -> None:
        """`url` is that of the links; `ssl`, which is called for each request, and `proxy` are those of the links
        too."""
        parts = urlsplit(url)
        base = parts.path.removesuffix(LINK_PATH).rstrip("/")
        scheme = "https" if parts.scheme == "wss" else "http"
        self._base = urlunsplit((scheme, parts.netloc, base, "", ""))
        self._ssl = ssl
        self._proxies = {} if proxy is None else {"http": proxy, "https": proxy}

    def enrol(self, token: str, agent: str, key: str, proof: str) -> ObtainedCredential:
        """Raises ConnectionRefused; its status is 0 if there was no answer."""
        return self._post("/v1/enrolments", {"token": token, "agent": agent, "key": key, "proof": proof})

    def renew(self, credential: str, proof: str) -> ObtainedCredential:
        """Raises ConnectionRefused; its status is 0 if there was no answer."""
        return self._post("/v1/renewals", {"credential": credential, "proof": proof})

    def _opener(self) -> urllib.request.OpenerDirector:
        """Raises ConfigError if the files of TLS cannot be used."""
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.ProxyHandler(self._proxies)]
        if self._base.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._ssl() or tls.create_default_context()))
        return urllib.request.build_opener(*handlers)

    def _post(self, path: str, body: dict[str, str]) -> ObtainedCredential:
        url = self._base + path
        request = urllib.request.Request(  # the scheme was checked with the URL of the links
            url, _encode(body), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with self._opener().open(request, timeout=TIMEOUT) as answer:
                content = answer.read(ANSWER_LIMIT)
                if answer.status == PENDING:
                    raise ConnectionRefused(
                        f"the gateway lets this agent wait{_detail(content)}", PENDING, _pause(answer.headers)
                    )
                return _decode(content)
        except urllib.error.HTTPError as e:
            with e:
                detail = _detail(e.read(ANSWER_LIMIT))
            raise ConnectionRefused(f"{url} answered {e.code}{detail}", e.code, _pause(e.headers)) from e
        except (OSError, http.client.HTTPException) as e:
            reason = getattr(e, "reason", e)
            raise ConnectionRefused(f"{url} cannot be reached: {plain(str(reason))}") from e
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise ConnectionRefused(f"{url} gave an answer that is no credential: is it a gateway?") from e


def _pause(headers: http.client.HTTPMessage | email.message.Message) -> float | None:
    """The Retry-After in seconds; None without one."""
    return handshake.retry_after(headers.get("Retry-After"), time.time())


def _detail(body: bytes) -> str:
    """The detail of a problem document (RFC 9457), after a colon; "" if the body is something else."""
    try:
        return f": {plain(_decode_problem(body).detail)[:300]}"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
