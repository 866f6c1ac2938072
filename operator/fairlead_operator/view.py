"""Which LinkGateways there are, as kopf's watch streams tell: an index, and a wake-up when one asks for something new.

Run by `main`, read by `watch`. kopf is used for what it does best, streams that survive everything, and for nothing
else: no handler here makes it write to a resource. A timer, a daemon or on.delete would, since they put a finalizer on
each LinkGateway, which then hangs in deletion once the operator has been uninstalled.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import kopf

from fairlead.errors import FairleadError
from fairlead_operator.cluster import Cluster
from fairlead_operator.errors import Absent
from fairlead_operator.objects import Object
from fairlead_operator.spec import GROUP, PLURAL, VERSION

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name."""
AGAIN = 5.0
"""Seconds until the next try when the streams cannot be opened."""


class View:
    def __init__(self, namespaces: tuple[str, ...], wake: Callable[[], None]) -> None:
        self._namespaces = namespaces
        self._wake = wake
        self._index: kopf.Index[Key, Object] | None = None
        self._asked: dict[Key, tuple[str, int]] = {}
        self.trouble = "the LinkGateways have not been listed yet"
        """Why there is no view of the cluster, "" when there is."""

    def all(self) -> dict[Key, Object]:
        return {key: next(iter(found)) for key, found in (self._index or {}).items() if found}

    async def follow_forever(self, cluster: Cluster, stop: asyncio.Event) -> None:
        """Streams until `stop`, and whatever ends them before is waited out."""
        while not stop.is_set():
            if await self._listable(cluster):
                ready = asyncio.Event()
                opened = asyncio.create_task(self._note(ready))
                try:
                    await self._stream(stop, ready)
                except Exception as e:
                    logger.warning("the LinkGateways cannot be watched: %s", e, exc_info=True)
                    self.trouble = f"the LinkGateways cannot be watched: {e}"
                finally:
                    opened.cancel()
                self._index = None
                if ready.is_set() and not self.trouble:
                    stop.set()  # kopf has heard a signal
            if not stop.is_set():
                try:
                    await asyncio.wait_for(stop.wait(), AGAIN * random.uniform(0.8, 1.2))
                except TimeoutError:
                    pass

    async def _note(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self.trouble = ""

    async def _listable(self, cluster: Cluster) -> bool:
        """Whether kopf would find what it is to watch: it tells of missing rights and kinds by ending."""
        try:
            for namespace in self._namespaces or ("",):
                await cluster.items("LinkGateway", namespace)
        except FairleadError as e:
            said = "the CRD of LinkGateway is not installed" if isinstance(e, Absent) else e.message
            if said != self.trouble:
                logger.warning("waiting: %s", said)
            self.trouble = said
            return False
        return True

    async def _stream(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # CRDs and namespaces are not ours to list
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.watching.connect_timeout = 5
        settings.watching.server_timeout = 300
        await kopf.operator(
            registry=self._registry(),
            settings=settings,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
            ready_flag=ready,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
            # kopf's own choice, by the client library, goes out without a credential in a pod.
            return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

        @kopf.on.startup(registry=registry)
        def begin(**cause: Any) -> None:
            self._index = cause["gateways"]

        @kopf.index(GROUP, VERSION, PLURAL, registry=registry)
        def gateways(**cause: Any) -> dict[Key, Object]:
            body = cause["body"]
            return {_key(body): {"metadata": dict(body["metadata"]), "spec": dict(body["spec"])}}

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        def changed(**cause: Any) -> None:
            body = cause["body"]
            asked = (body["metadata"]["uid"], int(body["metadata"].get("generation", 0)))
            if cause["type"] == "DELETED":
                self._asked.pop(_key(body), None)
            elif self._asked.get(_key(body)) == asked:
                return  # our own status
            else:
                self._asked[_key(body)] = asked
            self._wake()

        return registry


def _key(body: kopf.Body) -> Key:
    return str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
