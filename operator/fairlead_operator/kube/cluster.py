"""The Kubernetes API as the operator uses it: objects are plain dicts, every write is fenced, and every error is
translated.

Everything that reads or writes the cluster goes through it. The client library provides the connection and the
credentials. Objects stay dicts, because server-side apply must send exactly the operator's own fields, and a model
would add others. Each write first asks the fence, so that a replica whose lease has ended writes nothing, and every
call ends before another replica can hold the lease.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from fairlead.errors import ConfigError, FairleadError
from fairlead_operator.kube.errors import (
    AccessDenied,
    ApiServerRefused,
    ApiServerUnavailable,
    Conflict,
    EvictionBlocked,
    InvalidObject,
    KindNotFound,
    NotFound,
)
from fairlead_operator.kube.objects import Object, path

CALL_TIMEOUT = 4.0
"""Seconds for one call. The leader relies on its lease of 13 s for only 8 s, so a write that it sends at the last
moment has succeeded or failed before another replica can hold the lease."""
FIELD_MANAGER = "fairlead-operator"
APPLY_PATCH = "application/apply-patch+yaml"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"


async def configuration() -> Configuration:
    """The credentials of this pod, or those of the kubeconfig outside a pod. Raises ConfigError."""
    made = Configuration()
    try:
        if os.path.exists(SERVICE_ACCOUNT):  # noqa: ASYNC240  # once, at start-up
            config.load_incluster_config(made)  # type: ignore[no-untyped-call]  # a generated client
        else:
            file = os.environ.get("KUBECONFIG")
            await config.load_kube_config(file, client_configuration=made)  # type: ignore[no-untyped-call]  # as above
    except (ConfigException, OSError) as e:
        raise ConfigError(f"no cluster is configured: {e}; run in a pod, or set KUBECONFIG") from e
    return made


class Cluster:
    """`fence` is called before each write and raises NotLeader when this replica must not write."""

    def __init__(self, client: ApiClient, fence: Callable[[], None]) -> None:
        self._client = client
        self._fence = fence

    async def aclose(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]  # as above

    async def get(self, kind: str, namespace: str, name: str, subresource: str = "") -> Object:
        return await self._call("GET", path(kind, namespace, name, subresource))

    async def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None when the object or its kind does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except NotFound:
            return None

    async def items(self, kind: str, namespace: str, selector: str = "", fields: str = "") -> list[Object]:
        """The objects whose labels match `selector` and whose fields match `fields`."""
        asked = {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in asked.items() if value}
        return list((await self._call("GET", path(kind, namespace), query=query))["items"])

    async def schemas(self, group: str, version: str) -> dict[str, Object]:
        """The schemas of a group's custom resources, by kind. The API server publishes them to every authenticated
        user, so no RBAC rule is needed. A change of a CRD appears after some seconds.
        """
        found = await self._call("GET", f"/openapi/v3/apis/{group}/{version}")
        return {
            one["kind"]: schema
            for schema in found["components"]["schemas"].values()
            for one in schema.get("x-kubernetes-group-version-kind") or []
            if one["group"] == group
        }

    async def apply(self, body: Object, manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply: sets the fields in `body`, and leaves the fields of other managers unchanged."""
        meta = body["metadata"]
        where = path(body["kind"], meta.get("namespace", ""), meta["name"])
        query = {"fieldManager": manager, "force": "true"}
        return await self._write("PATCH", where, body, APPLY_PATCH, query)

    async def patch(self, kind: str, namespace: str, name: str, body: Object, subresource: str = "") -> Object:
        """A merge patch. With metadata.resourceVersion in `body` it raises Conflict when the object has changed."""
        where = path(kind, namespace, name, subresource)
        return await self._write("PATCH", where, body, "application/merge-patch+json", {"fieldManager": FIELD_MANAGER})

    async def create(self, body: Object) -> Object:
        where = path(body["kind"], body["metadata"].get("namespace", ""))
        return await self._write("POST", where, body, "application/json", {"fieldManager": FIELD_MANAGER})

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Deletes only the object with this uid, never one that was created in its place meanwhile."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", path(kind, namespace, name), body, "application/json", {})

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evicts a pod. Raises EvictionBlocked if a disruption budget does not allow it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self._write("POST", path("Pod", namespace, name, "eviction"), body, "application/json", {})

    async def _write(
        self, method: str, where: str, body: Object, content_type: str, query: Mapping[str, str]
    ) -> Object:
        self._fence()
        return await self._call(method, where, body=body, content_type=content_type, query=query)

    async def _call(
        self,
        method: str,
        where: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                request = await self._client.param_serialize(
                    method, where, query_params=list((query or {}).items()), header_params=headers, body=body,
                    auth_settings=["BearerToken"],
                )  # fmt: skip
                response = await self._client.call_api(*request)
                text = await response.read()  # type: ignore[no-untyped-call]  # as above
        except TimeoutError as e:
            raise ApiServerUnavailable(
                f"the API server did not answer {method} {where} within {CALL_TIMEOUT:g} s"
            ) from e
        except (aiohttp.ClientError, OSError) as e:
            raise ApiServerUnavailable(f"the API server cannot be reached: {e}") from e
        if response.status >= 400:
            raise _error(response.status, text, method, where, applying=content_type == APPLY_PATCH)
        answer: Object = json.loads(text)
        return answer


def _error(status: int, text: bytes, method: str, where: str, *, applying: bool = False) -> FairleadError:
    try:
        status_object = json.loads(text)
        server_message, reason = str(status_object.get("message") or ""), str(status_object.get("reason") or "")
        details = status_object.get("details") or {}
        named = bool(details.get("name"))
        causes = [one.get("reason") for one in details.get("causes") or []]
    except (ValueError, AttributeError):
        server_message, reason, named, causes = "", "", False, []
    message = server_message or text[:200].decode(errors="replace") or f"{method} {where} answered {status}"
    if status == 404:
        # For a kind that does not exist, the answer is plain text, or a Status that names no object.
        return NotFound(message) if named else KindNotFound(message)
    if status in (401, 403):
        return AccessDenied(message)
    if status == 409:
        return Conflict(message)
    if status == 429 and "DisruptionBudget" in causes:
        return EvictionBlocked(message)
    if status in (400, 422) or (status == 500 and applying and not reason):
        # Server-side apply answers 500 without a reason if it cannot decode the body, for example because of an invalid
        # quantity.
        return InvalidObject(message, status=status)
    if status == 429 or status >= 500:
        return ApiServerUnavailable(f"the API server answered {status}: {message}")
    return ApiServerRefused(message, status=status)


async def apply_crds(definitions: Iterable[Object], manager: str) -> int:
    """Applies the definitions, as the chart's upgrade job does; returns the exit code, 0 when all were applied."""
    cluster = Cluster(ApiClient(await configuration()), lambda: None)
    failed = 0
    try:
        for definition in definitions:
            try:
                await cluster.apply(definition, manager)
            except FairleadError as e:
                print(f"{definition['metadata']['name']} could not be applied: {e.message}", file=sys.stderr)
                failed = 1
    finally:
        await cluster.aclose()
    return failed
