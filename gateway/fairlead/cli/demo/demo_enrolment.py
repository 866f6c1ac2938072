"""The identities of a demo: the issuer's key that its nodes share, and the enrolment of its agents.

Used by `demo`. The agents enrol as those of a real fleet do, with a token from the API. Keys stay in the demo's folder,
so that an agent is the same one when the demo is started again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead.client import Client
from fairlead.errors import ConfigError, FairleadError
from fairlead.identity.agent_key import SEED_BYTES, pem_of_seed

LIFETIME: Final = 3600.0
"""Seconds for which the enrolment token is valid. The agents use it at once."""


class DemoEnrolment:
    def __init__(self, data: Path) -> None:
        self._data = data
        self.issuer_key = data / "issuer.pem"

    def folder(self, agent: str) -> Path:
        """Where an agent keeps its identity."""
        return self._data / "identities" / agent

    def make_issuer_key(self) -> None:
        """Make the key with which the nodes sign credentials, unless there is one. Raises ConfigError."""
        try:
            if not self.issuer_key.exists():
                file = os.open(self.issuer_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(file, "wb") as opened:
                    opened.write(pem_of_seed(os.urandom(SEED_BYTES)))
        except OSError as e:
            raise ConfigError(f"cannot write {self.issuer_key}: {e.strerror}; name another folder with --data") from e

    async def token(self, client: Client, agents: Sequence[str]) -> str:
        """An enrolment token for the agents. An agent whose key is gone may enrol with a new one."""
        for agent in agents:
            if not (self.folder(agent) / "key.pem").exists():
                with contextlib.suppress(FairleadError):  # it was never enrolled
                    await client.agent_keys.release(agent)
        return (await client.enrolment_tokens.create("agent-*", max(len(agents), 1), LIFETIME)).token
