"""LinkOperations of one namespace in the user's cluster: created, watched and cancelled.

The commands and the shell completion use it. It knows about a LinkOperation only what a user of kubectl sees, because
the operator's code is not installed on a user's machine. Every call has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.errors import ConfigError, FairleadError, Unavailable

GROUP, VERSION = "fairlead.dev", "v1alpha1"
OPERATIONS, GATEWAYS = "linkoperations", "linkgateways"
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 15.0
"""Seconds for one call. kubectl, too, gives up on a silent API server after some ten."""
ENDED = ("Succeeded", "Failed")

Spec = dict[str, Any]


class ClusterUnavailable(Unavailable):
    """The API server does not answer."""

    code = "cluster_unavailable"


class ClusterRefused(FairleadError):
    """The API server refused a request; the message is its own."""

    code = "cluster_refused"


@dataclass(frozen=True, slots=True)
class LinkOperation:
    """A LinkOperation as it is in the cluster. `phase` is "" until the operator has seen it."""

    name: str
    type: str
    pod: str
    phase: str
    reason: str
    message: str
    cancelled: bool

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @classmethod
    def parse(cls, body: dict[str, Any]) -> LinkOperation:
        spec, status = body["spec"], body.get("status") or {}
        reasons = {one["type"]: one["reason"] for one in status.get("conditions") or []}
        return cls(
            body["metadata"]["name"],
            str(spec.get("type", "")),
            str(spec.get("pod") or ""),
            str(status.get("phase") or ""),
            str(reasons.get("Complete", "")),
            str(status.get("message") or ""),
            bool(spec.get("cancel")),
        )


class LinkOperations:
    """The LinkOperations of `namespace`; "" is that of the kubeconfig. Raises ConfigError without a kubeconfig.

    The methods raise ClusterUnavailable, ClusterRefused, and ConfigError for what does not exist.
    """

    def __init__(self, kubeconfig: str = "", context: str = "", namespace: str = "") -> None:
        try:
            from kubernetes import config
            from kubernetes.client import ApiClient, Configuration, CustomObjectsApi
        except ModuleNotFoundError as e:
            message = f"this command talks to a cluster and needs the package {e.name}, which is not installed"
            raise ConfigError(f"{message}: pip install 'fairlead[operator]'") from e
        file = kubeconfig or None
        made = Configuration()
        try:
            contexts, current = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
            config.load_kube_config(file, context or None, made, persist_config=False)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as e:
            raise ConfigError(f"the kubeconfig cannot be used: {e}; set KUBECONFIG or --kubeconfig") from e
        made.retries = False  # each call has a deadline: three more attempts would only delay the message
        if context:
            current = next(one for one in contexts if one["name"] == context)
        self.namespace = namespace or current["context"].get("namespace") or "default"
        self._api = ApiClient(made)
        self._objects = CustomObjectsApi(self._api)

    def gateways(self) -> list[str]:
        """Names of the LinkGateways."""
        found = self._call("LinkGateways", self._objects.list_namespaced_custom_object, plural=GATEWAYS)
        return sorted(one["metadata"]["name"] for one in found["items"])

    def pods(self, gateway: str) -> list[str]:
        """Names of the pods of a LinkGateway."""
        found = self._translated("the pods", lambda: self._list_pods(f"{GROUP}/gateway={gateway}"))
        return sorted(one["metadata"]["name"] for one in found["items"])

    def _list_pods(self, selector: str) -> Any:
        """The pods as JSON, because importing the client's CoreV1Api takes two seconds of CPU time, most of it for its
        models.
        """
        request = self._api.param_serialize(
            "GET", f"/api/v1/namespaces/{self.namespace}/pods", query_params=[("labelSelector", selector)],
            header_params={"Accept": "application/json"}, auth_settings=["BearerToken"],
        )  # fmt: skip
        response = self._api.call_api(*request, _request_timeout=(CONNECT_TIMEOUT, READ_TIMEOUT))
        response.read()
        return self._api.response_deserialize(response, {"200": "object"}).data

    def check_gateway(self, gateway: str) -> None:
        """Raises ConfigError when there is no such LinkGateway."""
        what = f"the LinkGateway {gateway}"
        self._call(what, self._objects.get_namespaced_custom_object, plural=GATEWAYS, name=gateway)

    def create(self, gateway: str, spec: Spec) -> LinkOperation:
        kind = str(spec["type"]).lower()
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "LinkOperation",
            "metadata": {"generateName": f"{gateway}-{kind}-"},
            "spec": {"gateway": {"name": gateway}, **spec},
        }
        create = self._objects.create_namespaced_custom_object
        return LinkOperation.parse(self._call("the LinkOperation", create, plural=OPERATIONS, body=body))

    def read(self, name: str) -> LinkOperation:
        get = self._objects.get_namespaced_custom_object
        return LinkOperation.parse(self._call(f"the LinkOperation {name}", get, plural=OPERATIONS, name=name))

    def unfinished(self, gateway: str, kind: str, pod: str = "") -> list[LinkOperation]:
        """The unfinished operations of one type on a LinkGateway; with `pod`, only those of that pod."""
        found = self._call("LinkOperations", self._objects.list_namespaced_custom_object, plural=OPERATIONS)
        of_gateway = [one for one in found["items"] if one["spec"].get("gateway", {}).get("name") == gateway]
        parsed = map(LinkOperation.parse, of_gateway)
        return [one for one in parsed if (one.type, one.pod) == (kind, pod) and not (one.ended or one.cancelled)]

    def cancel(self, name: str) -> None:
        self._call(
            f"the LinkOperation {name}", self._objects.patch_namespaced_custom_object, plural=OPERATIONS, name=name,
            body={"spec": {"cancel": True}}, _content_type="application/merge-patch+json",
        )  # fmt: skip

    def _call(self, what: str, method: Callable[..., Any], **arguments: object) -> dict[str, Any]:
        where = {"group": GROUP, "version": VERSION, "namespace": self.namespace}
        timeout = (CONNECT_TIMEOUT, READ_TIMEOUT)
        found: dict[str, Any] = self._translated(what, lambda: method(**where, **arguments, _request_timeout=timeout))
        return found

    def _translated(self, what: str, call: Callable[[], Any]) -> Any:
        import json

        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except ApiException as e:
            try:
                message = str(json.loads(e.body)["message"])
            except (ValueError, TypeError, KeyError):
                message = str(e.reason)
            if e.status == 404:
                raise ConfigError(f"{what} does not exist in the namespace {self.namespace}: {message}") from e
            if e.status == 429 or (e.status or 500) >= 500:
                raise ClusterUnavailable(f"the API server answered {e.status}: {message}") from e
            raise ClusterRefused(message) from e
        except (HTTPError, OSError) as e:
            raise ClusterUnavailable(f"the API server cannot be reached: {e}") from e
