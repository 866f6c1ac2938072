"""Which LinkGateways and LinkOperations there are, as kopf's watch streams tell, and a wake-up when one asks anew.

Made by `watch`, run by `main`. kopf is used for what it does best, streams that survive everything, and for nothing
else: no handler here makes it write to a resource. A timer, a daemon or on.delete would, since they put a finalizer on
each of them, which then hangs in deletion once the operator has been uninstalled. It has a thread and a loop of
its own: at its end it takes every younger task of its loop for one of its own, and the signals of the process too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from fairlead.errors import FairleadError
from fairlead_operator.api import gateway_spec, link_operation
from fairlead_operator.api.gateway_spec import GROUP, VERSION
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import ApiServerUnavailable, NotFound
from fairlead_operator.kube.objects import Object

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name."""
Generation = tuple[str, int]
"""Uid and generation."""
GATEWAY, OPERATION = KINDS = gateway_spec.KIND, link_operation.KIND
AGAIN = 5.0
"""Seconds until the next try when the streams cannot be opened."""
LOOK = 30.0
"""Seconds between two looks whether a namespace that could not be listed can be now."""


class Informer:
    def __init__(self, namespaces: tuple[str, ...], wake: Callable[[], None]) -> None:
        self._namespaces = namespaces
        self._wake = wake
        self._seen: dict[str, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self.problem = "the LinkGateways have not been listed yet"
        """Why there is no view of the cluster, "" when there is."""
        self._said = ""
        """What was last told of namespaces that cannot be listed."""

    def all(self, kind: str = GATEWAY) -> dict[Key, Object]:
        """Metadata, spec and phase of each, as last told: whoever acts on one reads it again."""
        return dict(self._seen[kind])

    def gone(self, key: Key, kind: str = GATEWAY) -> None:
        """Found to be gone: a deletion between two streams is told by none."""
        self._seen[kind].pop(key, None)

    async def run_forever(self, cluster: Cluster) -> None:
        """Streams until cancelled; whatever ends them before is told and waited out."""
        while True:
            there, missing = await self._listable(cluster)
            if there:
                for kind in KINDS:
                    kept = {key: body for key, body in self._seen[kind].items() if there == ("",) or key[0] in there}
                    self._seen[kind] = kept
                stop = threading.Event()
                stream = asyncio.create_task(asyncio.to_thread(self._stream, stop, asyncio.get_running_loop(), there))
                try:
                    await self._until_it_ends(stream, cluster, missing)
                    self.problem = "the streams of LinkGateways have ended"
                except Exception as e:
                    self.problem = f"the LinkGateways cannot be watched: {e}"
                finally:
                    stop.set()
                    await asyncio.wait([stream], timeout=5.0)
                logger.warning("%s: opening them again", self.problem)
            else:
                self.problem = self._said
            await asyncio.sleep(AGAIN * random.uniform(0.8, 1.2))

    async def _until_it_ends(self, stream: asyncio.Task[None], cluster: Cluster, missing: tuple[str, ...]) -> None:
        """Returns when the stream has ended, or when one of `missing` can be listed at last."""
        while missing and not stream.done():
            await asyncio.wait([stream], timeout=LOOK * random.uniform(0.8, 1.2))
            there, still = await self._listable(cluster)
            if there and still != missing:
                return
        await asyncio.shield(stream)

    async def _listable(self, cluster: Cluster) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The namespaces that kopf can watch ("" is the whole cluster), and those that it would end for: it tells of
        missing rights and kinds by ending. One whose rights are gone, perhaps with itself, blinds no other. None at all
        while the API server does not answer for one: that says nothing of it."""
        there, failures, away = [], {}, False
        for namespace in self._namespaces or ("",):
            try:
                for kind in KINDS:
                    await cluster.items(kind, namespace)
                there.append(namespace)
            except NotFound:
                failures[namespace] = f"the CRD of {kind} is not installed"
            except FairleadError as e:
                failures[namespace] = e.message
                away = away or isinstance(e, ApiServerUnavailable)
        said = "; ".join(sorted(set(failures.values())))
        if said and said != self._said:
            logger.warning("waiting: %s", said)
        self._said = said
        return () if away else tuple(there), tuple(failures)

    def _stream(self, stop: threading.Event, loop: asyncio.AbstractEventLoop, there: tuple[str, ...]) -> None:
        """In a thread of its own, until `stop`."""
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # CRDs and namespaces are not ours to list
        settings.process.ultimate_exiting_timeout = None  # the process is not kopf's to kill
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.watching.connect_timeout = 5
        settings.watching.server_timeout = 300

        def tell(told: str, kind: str, body: Object) -> None:
            try:
                loop.call_soon_threadsafe(self._hear, told, kind, body)
            except RuntimeError:
                stop.set()  # the process has ended its loop

        async def follow() -> None:
            try:
                await kopf.operator(
                    registry=_registry(tell),
                    settings=settings,
                    standalone=True,
                    clusterwide=there == ("",),
                    namespaces=() if there == ("",) else there,
                    stop_flag=stop,
                )
            finally:
                stop.set()  # a thread of kopf's waits for it, and the end of the loop for that thread

        asyncio.run(follow())

    def _hear(self, told: str, kind: str, body: Object) -> None:
        """`told` is what became of it: listed, ADDED, MODIFIED, DELETED; "" when the streams are about to open."""
        if told == "":
            self.problem = ""
            return
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        before = self._seen[kind].get(key)
        if told == "DELETED":
            self._seen[kind].pop(key, None)
        else:
            self._seen[kind][key] = body
            if before is not None and generation_of(before) == generation_of(body):
                return  # our own status
        self._wake()


def _registry(tell: Callable[[str, str, Object], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**cause: Any) -> kopf.ConnectionInfo | None:
        # kopf's own choice, by the client library, goes out without a credential in a pod.
        return kopf.login_with_service_account(**cause) or kopf.login_with_kubeconfig(**cause)

    @kopf.on.startup(registry=registry)
    async def begin(**_: Any) -> None:
        tell("", "", {})

    @kopf.on.event(GROUP, VERSION, gateway_spec.PLURAL, registry=registry)
    async def gateway(**cause: Any) -> None:
        tell(cause["type"] or "listed", GATEWAY, _kept(cause["body"]))

    @kopf.on.event(GROUP, VERSION, link_operation.PLURAL, registry=registry)
    async def request(**cause: Any) -> None:
        tell(cause["type"] or "listed", OPERATION, _kept(cause["body"]))

    return registry


def _kept(body: Mapping[str, Any]) -> Object:
    phase = (body.get("status") or {}).get("phase")
    return {"metadata": dict(body["metadata"]), "spec": dict(body.get("spec") or {}), "status": {"phase": phase}}


def generation_of(body: Object) -> Generation:
    """What was asked for, by which object."""
    return body["metadata"]["uid"], int(body["metadata"].get("generation", 0))
