"""Reads the issuer's keys from their file, makes of them what enrols agents and reads their credentials, and reads the
file again when it changes.

The file holds one key or several: the first one signs, and credentials that any of them has signed are valid. So one
key replaces another while all links stay. A key below a line `refused` is not believed, and the links that its
credentials have opened are closed. `IdentityRegistry` creates one and has the node run `run`; all nodes of a
fleet have the same file. A file that has become invalid changes nothing: the keys that were read last stay in use.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from pathlib import Path
from typing import Final

from fairlead.audit.log_writer import AuditLogWriter, AuditUnavailable
from fairlead.audit.records import AuditEvent
from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError
from fairlead.identity.agent_key import seed_of_pem, thumbprint
from fairlead.identity.credential import CredentialIssuer, CredentialVerifier
from fairlead.routing.agents.enrolment import Enrolment
from fairlead.routing.agents.key_revocations import KeyRevocations
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""
SIZE_LIMIT: Final = 16 << 10
ACTION: Final = "refuseIssuerKey"
"""The action in the audit log."""
AGAIN: Final = 2.0
"""Seconds until the links of refused keys are looked for once more, because a link may be about to be open."""
_PEM = re.compile(
    rb"(^refused[ \t\r]*\n\s*)?(-----BEGIN [^-\n]+-----.*?-----END [^-\n]+-----)", re.DOTALL | re.MULTILINE
)
_STRAY = re.compile(rb"^\W*refuse", re.IGNORECASE | re.MULTILINE)
"""A line that is to refuse a key, but does not. Whoever has written it would take a stolen key for refused."""


class IssuerKeyFile:
    def __init__(self, path: Path, audience: str) -> None:
        """Reads the file. Raises ConfigError if it cannot be used."""
        self._path = path
        self._audience = audience
        self._seen = file_signature(self._path)
        self.log: AuditLogWriter | None = None
        """The audit log of the node, if it has one; set by the node."""
        self.issuer, self.verifier, self._refused = self._read()
        self._reloads = 0
        self._failures = 0

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        metrics.add_counter(
            "fairlead_issuer_key_reloads_total",
            "Times that the changed file of the issuer's keys was read again",
            lambda: self._reloads,
        )
        metrics.add_counter(
            "fairlead_issuer_key_reload_failures_total",
            "Times that the changed file of the issuer's keys could not be used",
            lambda: self._failures,
        )

    async def run(self, enrolment: Enrolment, revocations: KeyRevocations) -> None:
        """Give `enrolment` the keys of the file whenever it has changed, and have `revocations` close the links of
        those that are refused. Never returns."""
        while True:
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
            seen = file_signature(self._path)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                self.issuer, self.verifier, refused = await asyncio.to_thread(self._read)
            except ConfigError as e:
                self._failures += 1
                logger.error("the changed issuer_key cannot be used, so the keys stay as they were: %s", e.message)
                continue
            enrolment.replace_issuers(self.issuer, self.verifier)
            self._reloads += 1
            logger.info("read issuer_key again: %s signs", thumbprint(self.issuer.public))
            new, self._refused = refused - self._refused, refused
            if new:
                await self._refuse(new, revocations)

    async def _refuse(self, issuers: frozenset[str], revocations: KeyRevocations) -> None:
        closed = await revocations.close_issued_by(issuers)
        await asyncio.sleep(AGAIN)
        closed += await revocations.close_issued_by(issuers)
        keys = ", ".join(sorted(issuers))
        logger.warning("refused the issuer's key %s: closed %d links that its credentials have opened", keys, closed)
        if self.log is not None:
            event = AuditEvent("gateway", "", ACTION, "allowed", f"issuer_key refuses {keys}", count=closed)
            try:
                await self.log.write(event)
            except AuditUnavailable as e:  # the key is refused in any case
                logger.error("a refused key of the issuer is not in the audit log: %s", e.message)

    def _read(self) -> tuple[CredentialIssuer, CredentialVerifier, frozenset[str]]:
        """The key that signs, those that are believed, and the thumbprints of those that are refused."""
        try:
            text = read_regular_file(self._path, SIZE_LIMIT)
            keys = _PEM.findall(text) or [(b"", b"")]
            made = [(CredentialIssuer(seed_of_pem(pem, str(self._path)), self._audience), mark) for mark, pem in keys]
            refused = frozenset(thumbprint(issuer.public) for issuer, mark in made if mark)
            issuers = [issuer for issuer, _ in made if thumbprint(issuer.public) not in refused]
            if _STRAY.search(_PEM.sub(b"", text)):
                raise ValueError("a line in it refuses no key: expected `refused` alone on the line above a block")
            if not issuers:
                raise ValueError("all its keys are refused: expected one that signs")
        except (ConfigError, ValueError) as e:
            raise ConfigError(f"cannot use issuer_key {self._path} with audience {self._audience!r}: {e}") from e
        return issuers[0], CredentialVerifier([issuer.public for issuer in issuers], self._audience), refused
