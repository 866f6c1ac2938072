"""An OpenID provider over real HTTP, with keys of its own: it publishes keys, signs whatever a test wants, rotates its
keys, goes away, and grants tokens to devices (RFC 8628). Dex plays the honest provider; this one also plays attackers.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

Key = RSAKey | ECKey | OKPKey
AUDIENCE = "fairlead"
ENDPOINTS = ("token_endpoint", "device_authorization_endpoint", "revocation_endpoint")


def new_key(id: str, kind: str = "RSA") -> Key:
    if kind == "EC":
        return ECKey.generate_key("P-256", {"kid": id})
    if kind == "OKP":
        return OKPKey.generate_key("Ed25519", {"kid": id})
    return RSAKey.generate_key(2048, {"kid": id})


def sign(key: Key, claims: dict[str, Any], algorithm: str = "RS256", **header: Any) -> str:
    """A JWT with any header, also a wrong one."""
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    header = {"alg": algorithm, "kid": key.kid, **header}
    return jws.serialize_compact(header, json.dumps(claims).encode(), key, registry=registry)


class Issuer:
    """`published` are the keys of its set. It signs with `key`. `away` makes it answer 503."""

    def __init__(self, port: int = 0) -> None:
        self.key = new_key("first")
        self.published: list[Key] = [self.key]
        self.away = False
        self.bearer = ""
        """The token without which nothing is answered, as the API server of Kubernetes asks for one."""
        self.asked: Counter[str] = Counter()
        self.metadata: dict[str, Any] = {}
        """Members that replace those of the metadata."""
        self.device_answers: list[dict[str, Any]] = []
        """What the token endpoint answers to a device, one after the other; the last one for good."""
        self.forms: list[dict[str, str]] = []
        self.lifetime = 3600.0
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)

    def rotate(self, id: str, keep: bool = False) -> None:
        """Sign with a new key, and publish the old one no longer unless it is to be kept."""
        self.key = new_key(id)
        self.published = [*self.published, self.key] if keep else [self.key]

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        made = {"iss": self.url, "aud": AUDIENCE, "sub": "anna", "iat": now, "exp": now + self.lifetime, **more}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, **more: Any) -> str:
        return sign(self.key, self.claims(**more))

    def write_file(self, path: Path, **more: str) -> Path:
        members = {"url": f'"{self.url}"', "audience": f'"{AUDIENCE}"', "groups_claim": '"groups"', **more}
        fresh = path.with_suffix(".new")
        fresh.write_text("[issuers.company]\n" + "".join(f"{name} = {value}\n" for name, value in members.items()))
        fresh.replace(path)
        return path

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked[path] += 1
        if self.away:
            return 503, {"error": "away"}
        if path == "/.well-known/openid-configuration":
            endpoints = {name: f"{self.url}/{name}" for name in ENDPOINTS}
            return 200, {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **endpoints, **self.metadata}
        if path == "/keys":
            return 200, {"keys": [{**key.as_dict(private=False), "use": "sig"} for key in self.published]}
        self.forms.append(form)
        if path == "/device_authorization_endpoint":
            return 200, {
                "device_code": "the-device-code", "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/device",
                "expires_in": 600, "interval": 1,
            }  # fmt: skip
        if path == "/token_endpoint":
            answer = self.device_answers.pop(0) if len(self.device_answers) > 1 else self.device_answers[0]
            return (400 if "error" in answer else 200), answer
        if path == "/revocation_endpoint":
            return 200, {}
        return 404, {"error": "unknown path"}


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self._answer(dict(parse_qsl(self.rfile.read(length).decode())))

        def _answer(self, form: dict[str, str]) -> None:
            if issuer.bearer and self.headers.get("authorization") != f"Bearer {issuer.bearer}":
                status, document = 401, {"error": "unauthorized"}
            else:
                status, document = issuer.answer(self.path, form)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
