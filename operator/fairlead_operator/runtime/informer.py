"""Keeps the existing LinkGateways and LinkOperations, using kopf's watch streams, and wakes the controller on a change.

Created by the controller, run by `process`. It uses kopf only for its streams, which recover from every interruption.
No handler here makes kopf write to a resource: a timer, a daemon or on.delete would add a finalizer to each resource,
which could then not be deleted after the operator is uninstalled. kopf runs in a thread and an event loop of its own,
because when it ends it cancels all later tasks of its loop, and it would take over the signals of the process.
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
"""Uid and metadata.generation."""
GATEWAY, OPERATION = KINDS = gateway_spec.KIND, link_operation.KIND
WHOLE_CLUSTER = ("",)
RETRY_DELAY = 5.0
"""Seconds until the streams are opened again after they have ended."""
RECHECK_PERIOD = 30.0
"""Seconds between two checks of whether a namespace that could not be listed can be listed now."""


class Informer:
    def __init__(self, namespaces: tuple[str, ...], wake: Callable[[], None]) -> None:
        self._namespaces = namespaces
        self._wake = wake
        self._objects: dict[str, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self.problem = "the LinkGateways have not been listed yet"
        """Why the resources cannot be watched, "" when they can."""
        self._reported = ""
        """What was last logged about namespaces that cannot be listed."""

    def all(self, kind: str = GATEWAY) -> dict[Key, Object]:
        """Metadata, spec and phase of each as the streams last sent them. Read an object again before acting on it."""
        return dict(self._objects[kind])

    def discard(self, key: Key, kind: str = GATEWAY) -> None:
        """Removes an object that was found to be gone: a deletion between two streams is reported by neither."""
        self._objects[kind].pop(key, None)

    async def run_forever(self, cluster: Cluster) -> None:
        """Streams until cancelled; opens the streams again whenever they end."""
        while True:
            namespaces, missing = await self._listable(cluster)
            if namespaces:
                await self._stream_until_end(namespaces, missing, cluster)
                logger.warning("%s: opening the streams again", self.problem)
            else:
                self.problem = self._reported
            await asyncio.sleep(RETRY_DELAY * random.uniform(0.8, 1.2))

    async def _stream_until_end(self, namespaces: tuple[str, ...], missing: tuple[str, ...], cluster: Cluster) -> None:
        """Returns when the streams have ended, or when one of the `missing` namespaces can be listed."""
        for kind, objects in self._objects.items():
            self._objects[kind] = {
                key: body for key, body in objects.items() if namespaces == WHOLE_CLUSTER or key[0] in namespaces
            }
        stop = threading.Event()
        run = asyncio.to_thread(self._run_kopf, stop, asyncio.get_running_loop(), namespaces)
        stream = asyncio.create_task(run)
        try:
            while missing and not stream.done():
                await asyncio.wait([stream], timeout=RECHECK_PERIOD * random.uniform(0.8, 1.2))
                listable, still_missing = await self._listable(cluster)
                if listable and still_missing != missing:
                    break
            else:
                await asyncio.shield(stream)
            self.problem = "the streams of LinkGateways have ended"
        except Exception as e:
            self.problem = f"the LinkGateways cannot be watched: {e}"
        finally:
            stop.set()
            await asyncio.wait([stream], timeout=5.0)

    async def _listable(self, cluster: Cluster) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The namespaces that kopf can watch, and those that it cannot.

        kopf ends if a right or a kind is missing, so one namespace whose rights are gone, perhaps because it was
        deleted, would end the streams of all others. While the API server does not answer, no namespace counts as
        listable.
        """
        listable, problems, unavailable = [], {}, False
        for namespace in self._namespaces or WHOLE_CLUSTER:
            try:
                for kind in KINDS:
                    await cluster.items(kind, namespace)
                listable.append(namespace)
            except NotFound:
                problems[namespace] = f"the CRD of {kind} is not installed"
            except FairleadError as e:
                problems[namespace] = e.message
                unavailable = unavailable or isinstance(e, ApiServerUnavailable)
        report = "; ".join(sorted(set(problems.values())))
        if report and report != self._reported:
            logger.warning("some resources cannot be watched yet: %s", report)
        self._reported = report
        return () if unavailable else tuple(listable), tuple(problems)

    def _run_kopf(self, stop: threading.Event, loop: asyncio.AbstractEventLoop, namespaces: tuple[str, ...]) -> None:
        """Runs in a thread of its own, until `stop` is set; calls `_receive` in `loop`."""
        clusterwide = namespaces == WHOLE_CLUSTER

        def send(change: str, kind: str, body: Object) -> None:
            try:
                loop.call_soon_threadsafe(self._receive, change, kind, body)
            except RuntimeError:
                stop.set()  # the process has closed its loop

        async def watch() -> None:
            try:
                await kopf.operator(
                    registry=_registry(send),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=clusterwide,
                    namespaces=() if clusterwide else namespaces,
                    stop_flag=stop,
                )
            finally:
                stop.set()  # one of kopf's threads waits for it, and the loop cannot end before that thread

        asyncio.run(watch())

    def _receive(self, change: str, kind: str, body: Object) -> None:
        """`change` is listed, ADDED, MODIFIED or DELETED, or "" when the streams are about to open."""
        if change == "":
            self.problem = ""
            return
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        before = self._objects[kind].get(key)
        if change == "DELETED":
            self._objects[kind].pop(key, None)
        else:
            self._objects[kind][key] = body
            if before is not None and generation_of(before) == generation_of(body):
                return  # only the status has changed, which the operator itself writes
        self._wake()


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the operator has no right to list CRDs and namespaces
    settings.process.ultimate_exiting_timeout = None  # kopf must not kill the process
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 300
    return settings


def _registry(send: Callable[[str, str, Object], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**cause: Any) -> kopf.ConnectionInfo | None:
        # kopf's default, the login of the client library, sends no credential when it runs in a pod.
        return kopf.login_with_service_account(**cause) or kopf.login_with_kubeconfig(**cause)

    @kopf.on.startup(registry=registry)
    async def startup(**_: Any) -> None:
        send("", "", {})

    @kopf.on.event(GROUP, VERSION, gateway_spec.PLURAL, registry=registry)
    async def gateway_event(**cause: Any) -> None:
        send(cause["type"] or "listed", GATEWAY, _kept(cause["body"]))

    @kopf.on.event(GROUP, VERSION, link_operation.PLURAL, registry=registry)
    async def operation_event(**cause: Any) -> None:
        send(cause["type"] or "listed", OPERATION, _kept(cause["body"]))

    return registry


def _kept(body: Mapping[str, Any]) -> Object:
    status = body.get("status") or {}
    kept = {name: status.get(name) for name in ("phase", "finishedAt")}
    return {"metadata": dict(body["metadata"]), "spec": dict(body.get("spec") or {}), "status": kept}


def generation_of(body: Object) -> Generation:
    """Identifies an object and the version of its spec."""
    return body["metadata"]["uid"], int(body["metadata"].get("generation", 0))
