"""The checks of a Redis: its connection with TLS and login, how it keeps data, and what its user may do.

`fairlead redis check` and `fairlead doctor` run them. Each check says what to do next; a user that lacks rights is told
the rules to add.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from redis.exceptions import RedisError

from fairlead.cli.doctor.checks import STEP_TIMEOUT, Check, CheckFailed
from fairlead.errors import BusUnavailable
from fairlead.fleet.acl.rights import missing_rules
from fairlead.fleet.acl.users import USERS
from fairlead.redis_url import parse_redis_url
from fairlead.store.endpoint import Endpoint, RedisConnection
from fairlead.store.errors import lacking_rule, unfit
from fairlead.store.reply import text
from fairlead.store.servers.server_check import ServerFacts

ADVICE = {
    "Hostname mismatch": "name the host as its certificate does, or have one issued for this name",
    "IP address mismatch": "name the host as its certificate does, or have one issued for this address",
    "certificate has expired": "renew the certificate of Redis",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that has signed the certificate of Redis with --redis-ca-file",
    "KEY_VALUES_MISMATCH": "name the key that belongs to the certificate with --redis-key-file",
    "WRONG_VERSION_NUMBER": "this port speaks no TLS: write redis://, or name the port that does",
    "password": "set user and password in the URL: rediss://USER:PASSWORD@HOST",
}
"""What to do, by a part of the reason."""
CLOSED = ("closed by server", "reset by peer")
"""How redis-py reports that a server with TLS 1.3 does not accept the client's certificate, or that it has none: the
server closes the connection at once, which may overtake what it says."""


class RedisChecks:
    """The checks of one Redis. Each uses what the ones before it found."""

    def __init__(self, url: str, user: str) -> None:
        """`user` is the name of the rights in `USERS`. Raises ConfigError if the URL is not valid."""
        self._endpoint = Endpoint(url, "fairlead-doctor")
        self.address = self._endpoint.address
        self._rights = USERS[user]
        self._secure = parse_redis_url(url).tls
        presented = "ssl_certfile=" in url
        self._of_clients = (
            "does Redis trust the authority of --redis-cert-file? It has to be in its tls-ca-cert-file"
            if presented
            else "if Redis asks for certificates of clients, present one: --redis-cert-file and --redis-key-file"
        )
        self._user = urlsplit(url).username or "default"

    @property
    def checks(self) -> list[Check]:
        server: list[Check] = [("server", self._check_server)] if "info" in self._rights.commands else []
        return [("connect", self._check_connection), *server, ("rights", self._check_rights)]

    async def _connect(self) -> RedisConnection:
        try:
            return await self._endpoint.connect(STEP_TIMEOUT)
        except BusUnavailable as e:
            advice = next((advice for part, advice in ADVICE.items() if part in e.message), "")
            if self._secure and any(words in e.message for words in CLOSED):
                advice = self._of_clients
            raise CheckFailed(e.message, advice or "is Redis running, and is this its address?") from e

    async def _check_connection(self) -> str:
        await (await self._connect()).close()
        return f"Redis answers {self._user}, {'with' if self._secure else 'without'} TLS"

    async def _check_server(self) -> str:
        connection = await self._connect()
        try:
            facts = ServerFacts.parse(text(await connection.call("INFO")))
        except RedisError as e:
            if rule := lacking_rule(e):
                raise CheckFailed(str(e), f"ACL SETUSER {self._user} {rule}") from e
            raise CheckFailed(unfit(e) or str(e), "see the log of Redis") from e
        finally:
            await connection.close()
        wrong = "; ".join([why] if (why := facts.unfit()) else facts.risks())
        if wrong:
            raise CheckFailed(f"{facts.product} {facts.version} {wrong}", "see operations.md on Redis")
        return f"{facts.product} {facts.version} evicts nothing and keeps an append-only file"

    async def _check_rights(self) -> str:
        connection = await self._connect()
        try:
            missing = await missing_rules(connection, self._rights)
        except BusUnavailable as e:
            raise CheckFailed(e.message, "see the log of Redis") from e
        finally:
            await connection.close()
        if missing:
            raise CheckFailed(
                f"{self._user} may not do everything that {self._rights.purpose} needs",
                f"ACL SETUSER {self._user} {' '.join(missing)}",
            )
        return f"{self._user} may do everything that {self._rights.purpose} needs"
