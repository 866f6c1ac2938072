"""Reads the issuer's keys from their file, makes of them what enrols agents and reads their credentials, and reads the
file again when it changes.

The file holds one key or several: the first one signs, and credentials that any of them has signed are valid. So one
key replaces another while all links stay. `IdentityRegistry` creates one and has the node run `run`; all nodes of a
fleet have the same file. A file that has become invalid changes nothing: the keys that were read last stay in use.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from pathlib import Path
from typing import Final

from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError
from fairlead.identity.agent_key import seed_of_pem, thumbprint
from fairlead.identity.credential import CredentialIssuer, CredentialVerifier
from fairlead.routing.agents.enrolment import Enrolment
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""
SIZE_LIMIT: Final = 16 << 10
_PEM = re.compile(rb"-----BEGIN [^-\n]+-----.*?-----END [^-\n]+-----", re.DOTALL)


class IssuerKeyFile:
    def __init__(self, path: Path, audience: str) -> None:
        """Reads the file. Raises ConfigError if it cannot be used."""
        self._path = path
        self._audience = audience
        self._seen = file_signature(self._path)
        self.issuer, self.verifier = self._read()
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

    async def run(self, enrolment: Enrolment) -> None:
        """Give `enrolment` the keys of the file whenever it has changed. Never returns."""
        while True:
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
            seen = file_signature(self._path)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                self.issuer, self.verifier = await asyncio.to_thread(self._read)
            except ConfigError as e:
                self._failures += 1
                logger.error("the changed issuer_key cannot be used, so the keys stay as they were: %s", e.message)
                continue
            enrolment.replace_issuers(self.issuer, self.verifier)
            self._reloads += 1
            logger.info("read issuer_key again: %s signs", thumbprint(self.issuer.public))

    def _read(self) -> tuple[CredentialIssuer, CredentialVerifier]:
        try:
            keys = _PEM.findall(read_regular_file(self._path, SIZE_LIMIT))
            seeds = [seed_of_pem(key, str(self._path)) for key in keys or [b""]]
            issuers = [CredentialIssuer(seed, self._audience) for seed in seeds]
        except (ConfigError, ValueError) as e:
            raise ConfigError(f"cannot use issuer_key {self._path} with audience {self._audience!r}: {e}") from e
        return issuers[0], CredentialVerifier([issuer.public for issuer in issuers], self._audience)
