"""Dex, a real OpenID provider, as a process: with one user who has a password, or one whom it finds without asking.

The program is that of `make dex`, or in the folder that DEX_BIN names. `enter_code` is what a person does in a browser.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import httpx2

from support.free_ports import free_port
from support.waiting import WAIT, wait_until

ROOT = Path(__file__).resolve().parents[3]
USER, PASSWORD = "admin@example.com", "password"
HASH = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"
"""Of PASSWORD, by bcrypt: the example in Dex's documentation."""
CLIENT = "fairlead"


def program() -> str | None:
    places = [os.environ.get("DEX_BIN") or str(ROOT / ".cache" / "dex" / "bin"), os.environ["PATH"]]
    return shutil.which("dex", path=os.pathsep.join(places))


class Dex:
    """Its ID tokens are valid for a minute. With `groups`, everybody is one user, who is in the group `authors`."""

    def __init__(
        self, binary: str, folder: Path, groups: bool = False, host: str = "127.0.0.1",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:  # fmt: skip
        """`certificate`: files of the certificate and its key, with which it speaks TLS."""
        port = free_port()
        self.url = f"{'https' if certificate else 'http'}://{host}:{port}"
        self._ca = certificate[0] if certificate else None
        web = {"http": f"{host}:{port}"}
        if certificate:
            web = {"https": f"{host}:{port}", "tlsCert": str(certificate[0]), "tlsKey": str(certificate[1])}
        user = {"email": USER, "hash": HASH, "username": "admin", "userID": "08a8684b-db88-4b73-90a9-3cd1661f5466"}
        config = {
            "issuer": self.url,
            "storage": {"type": "memory"},
            "web": web,
            "expiry": {"idTokens": "1m"},
            "oauth2": {"skipApprovalScreen": True},
            "staticClients": [{"id": CLIENT, "name": "Fairlead", "public": True}],
            "enablePasswordDB": not groups,
            "staticPasswords": [] if groups else [user],
            "connectors": [{"type": "mockCallback", "id": "mock", "name": "Mock"}] if groups else [],
        }
        (folder / "dex.yaml").write_text(json.dumps(config))  # JSON is YAML
        self.log = folder / "dex.log"
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen([binary, "serve", str(folder / "dex.yaml")], stdout=sink, stderr=sink)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            page = f"{self.url}/.well-known/openid-configuration"
            return httpx2.get(page, trust_env=False, verify=trust(self._ca)).is_success
        except httpx2.TransportError:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT)


def trust(ca: Path | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=str(ca)) if ca else True


def enter_code(page: str, ca: Path | None = None) -> str:
    """Open the address, confirm the code, and give name and password if they are asked for; the last page. `ca` is the
    authority of Dex's certificate."""
    with httpx2.Client(follow_redirects=True, trust_env=False, timeout=WAIT, verify=trust(ca)) as browser:
        answer = browser.get(page)
        for _ in range(4):
            form = re.search(r'<form method="post" action="([^"]*)"', answer.text)
            if form is None:
                break
            given = dict(re.findall(r'name="(user_code)"[^>]*value="([^"]*)"', answer.text))
            if 'name="password"' in answer.text:
                given = {"login": USER, "password": PASSWORD}
            answer = browser.post(urljoin(str(answer.url), unescape(form[1])), data=given)
        assert answer.is_success, answer.text
        return answer.text
