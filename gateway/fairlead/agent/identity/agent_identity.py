"""An agent's identity: its key, which never leaves the machine, and the credential that binds its id to the key.

Given to `Agent` in place of a token. The dialer asks for the credential before each attempt and proves the key with the
nonce of each connection. It also shows the session of its last welcome that has reached the disk, by which the gateway
tells a copy of the disk from an agent that restarts. The first credential is obtained with an enrolment token; later
ones take its place at two thirds of its lifetime, and the key alone is enough for that, also after the agent was away
for long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl as tls
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from fairlead.agent.identity.enrolment_client import EnrolmentClient, ObtainedCredential
from fairlead.agent.identity.identity_folder import IdentityFolder, StoredCredential
from fairlead.errors import ConfigError, ConnectionRefused
from fairlead.identity.agent_key import AgentKey, base64url, thumbprint
from fairlead.identity.enrolment_token import split_token
from fairlead.identity.proof import enrolment_statement, link_statement, prove, renewal_statement
from fairlead.wire.retry import after_refusal, pause

logger = logging.getLogger("fairlead.agent")

RENEW_AT: Final = 2 / 3
"""The share of its lifetime after which a credential is renewed: a third is left for a gateway that is away."""
RETRY: Final = (20.0, 60.0)
"""Seconds until a renewal that failed is tried again; drawn, so that a fleet does not come back together."""
DOUBLINGS: Final = 5
"""How often that time is doubled: a key that was released is refused for as long as the agent runs."""
REFUSED: Final = (401, 403)


class AgentIdentity:
    def __init__(self, folder: str | os.PathLike[str], enrolment_token: str | Callable[[], str] | None = None) -> None:
        """`folder` is for this agent alone, on a local disk. The token is needed until the agent is enrolled; a
        function is called when it is needed, and raises ConfigError if it has no token."""
        self.folder = IdentityFolder(Path(folder))
        self._token = enrolment_token
        self._agent = ""
        self._client: EnrolmentClient | None = None
        self._key: AgentKey | None = None
        self._stored: StoredCredential | None = None
        self.session = ""
        """The id of the newest session that is stored. One that is not stored yet must not be shown: after a crash the
        agent would show an older one, as a copy does."""
        self._welcomed = ""
        self._unstored = asyncio.Event()
        self._doubted = False
        """Whether the gateway has refused the credential, so that it is renewed before the next attempt."""
        self._busy = asyncio.Lock()
        self._obtained = asyncio.Event()

    def attach(self, agent: str, url: str, ssl: Callable[[], tls.SSLContext | None], proxy: str | None) -> None:
        """Say whose identity it is and where the gateway is. `Agent` calls it once."""
        self._agent = agent
        self._client = EnrolmentClient(url, ssl, proxy)

    async def credential(self) -> str:
        """A credential for the next attempt. Raises ConfigError, and ConnectionRefused if the gateway does not issue
        one."""
        async with self._busy:
            if self._key is None:
                key = await asyncio.to_thread(self.folder.load_key)
                self._stored = await asyncio.to_thread(self.folder.load_credential, self._agent)
                self.session = await asyncio.to_thread(self.folder.load_session)
                self._key = key  # once the folder is known to be this agent's
            if self._stored is None:
                await self._enrol(self._key)
            elif self._doubted or _age(self._stored) >= self._stored.lifetime:
                await self._renew_or_enrol(self._key, self._stored)
            assert self._stored is not None
            self._obtained.set()
            return self._stored.credential

    def prove(self, nonce: str, credential: str) -> str:
        """The proof for a link that was opened with `credential` and given this nonce."""
        if self._key is None or not nonce:
            return ""
        try:
            return prove(self._key, link_statement(nonce, self._agent, credential, self.session))
        except ValueError:
            return ""  # no nonce of a gateway: it refuses the link

    def refused(self) -> None:
        """Note that the gateway has refused the credential."""
        self._doubted = True

    def welcomed(self, session: str) -> None:
        """Note the session of a welcome, to be stored."""
        self._welcomed = session
        self._unstored.set()

    async def run(self) -> None:
        """Renew the credential and store sessions. `Agent` runs it as long as it runs; it does not return."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_renewed())
            group.create_task(self._keep_session())

    async def _keep_session(self) -> NoReturn:
        while True:
            await self._unstored.wait()
            self._unstored.clear()
            session = self._welcomed
            try:
                await asyncio.to_thread(self.folder.save_session, session)
            except ConfigError as e:
                logger.warning("the session was not stored, so the last one that was is shown: %s", e.message)
            else:
                self.session = session

    async def _keep_renewed(self) -> NoReturn:
        failures = 0
        while True:
            await self._obtained.wait()
            assert self._stored is not None
            assert self._key is not None
            due = self._stored.lifetime * RENEW_AT * random.uniform(1.0, 1.1)
            await asyncio.sleep(max(due - _age(self._stored), 0.0))
            try:
                async with self._busy:
                    if _age(self._stored) >= due:  # otherwise an attempt has renewed it meanwhile
                        await self._renew(self._key, self._stored)
                failures = 0
            except (ConnectionRefused, ConfigError) as e:
                wait = random.uniform(*RETRY) * 2 ** min(failures, DOUBLINGS)
                if isinstance(e, ConnectionRefused) and e.retry_after is not None:
                    wait = max(wait, _named_pause(e.retry_after))
                failures += 1
                logger.warning("the credential was not renewed: %s; trying again in %.0f s", e.message, wait)
                await asyncio.sleep(wait)

    async def _renew_or_enrol(self, key: AgentKey, stored: StoredCredential) -> None:
        try:
            await self._renew(key, stored)
        except ConnectionRefused as e:
            if e.status not in REFUSED or self._token is None:
                raise
            logger.info("the credential was not renewed, so the agent enrols again: %s", e.message)
            await self._enrol(key)

    async def _enrol(self, key: AgentKey) -> None:
        token = self._token() if callable(self._token) else self._token
        if not token:
            raise ConfigError(
                f"agent {self._agent} is not enrolled: expected an enrolment token (`fairlead enrolment-tokens create` "
                "makes one; set enrolment_token_file, or FAIRLEAD_AGENT_ENROLMENT_TOKEN)"
            )
        found = split_token(token)
        if found is None:
            raise ConfigError(
                "invalid enrolment token: expected text that begins with fl_enrol_, as `fairlead enrolment-tokens "
                "create` prints it"
            )
        proof = prove(key, enrolment_statement(found[0], self._agent, key.public))
        assert self._client is not None
        issued = await asyncio.to_thread(self._client.enrol, token, self._agent, base64url(key.public), proof)
        logger.info("enrolled as %s with key %s", self._agent, thumbprint(key.public))
        await self._keep(issued)

    async def _renew(self, key: AgentKey, stored: StoredCredential) -> None:
        proof = prove(key, renewal_statement(self._agent, stored.credential))
        assert self._client is not None
        await self._keep(await asyncio.to_thread(self._client.renew, stored.credential, proof))
        logger.debug("the credential was renewed")

    async def _keep(self, issued: ObtainedCredential) -> None:
        self._stored = StoredCredential(self._agent, issued.credential, time.time(), issued.lifetime)
        self._doubted = False
        await asyncio.to_thread(self.folder.save_credential, self._stored)


def _named_pause(retry_after: float) -> float:
    """Seconds to wait after a Retry-After, within the bounds that hold for links too: a proxy may name a year."""
    draw = random.random()
    return pause(after_refusal(retry_after, draw), 0, draw) / 1000


def _age(stored: StoredCredential) -> float:
    """Seconds since the credential was obtained. A clock that was set back counts as none."""
    return max(time.time() - stored.obtained, 0.0)
