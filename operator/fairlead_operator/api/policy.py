"""What authors of LinkGateways may ask for, as the operator's administrator allows it. Pure.

The operator writes Deployments, Services and Ingresses with its own rights. If it wrote whatever it is asked to, anyone
who may create a LinkGateway would have those rights too. `main` reads a policy at start-up, and the reconciler asks
`violations` before it applies anything. Every entry is a pattern in which `*` stands for any text. What no pattern
allows is refused; what is not named here (resources, node selectors, the gateway's own settings) needs no permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead_operator.api.gateway_spec import GROUP, LinkGatewaySpec, ServiceType

SECRET_LABEL = f"{GROUP}/gateway-secret"
"""Who may label a Secret with it, "true", lends it to the LinkGateways of its namespace."""
IMAGE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._/:-]*?)(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:\w+)?"
)
DOCKER_HUB = "docker.io"
PROGRAMS_ENV = ("PYTHON", "LD_", "OPENSSL_", "GCONV_PATH", "BROWSER")
"""Beginnings of variables by which a process is made to run what they name: Python's own (which the images ignore,
being started with -I), those of the dynamic linker, of OpenSSL's modules, of character sets, of `webbrowser`."""


class SecretState(StrEnum):
    LABELLED = "labelled"
    PLAIN = "plain"
    """It is there, and has no label."""
    MISSING = "missing"
    UNREADABLE = "unreadable"
    """The operator has no right to read it, so that it knows nothing of it."""


class Policy(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Patterns of what is allowed."""

    images: tuple[str, ...] = ()
    """Repositories, without tag and digest, of gateways and of further containers."""
    secrets: tuple[str, ...] = ()
    """Names of Secrets that need no label."""
    pod_labels: tuple[str, ...] = ()
    """Keys, as those of annotations."""
    pod_annotations: tuple[str, ...] = ()
    service_annotations: tuple[str, ...] = ()
    ingress_annotations: tuple[str, ...] = ()
    """Of HTTPRoutes too. Those of a preset need no permission."""
    ingress_hosts: tuple[str, ...] = ()
    """Of HTTPRoutes too. No host at all is the empty name, which `*` allows."""
    service_types: tuple[str, ...] = ()
    """NodePort, LoadBalancer; ClusterIP is always allowed."""
    tolerations: tuple[str, ...] = ()
    """Keys of taints. A toleration without a key is the empty name."""
    priority_classes: tuple[str, ...] = ()
    runtime_classes: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """Types, as configMap, emptyDir, hostPath."""
    containers: bool = False
    """Further containers, init containers, hooks, variables as LD_PRELOAD: programs of the author's choice."""

    def joined(self, other: Policy) -> Policy:
        """What either allows."""
        both = {
            name: (*getattr(self, name), *getattr(other, name))
            for name in self.__struct_fields__
            if name != "containers"
        }
        return Policy(**both, containers=self.containers or other.containers)


OWN_IMAGE = Policy(images=("docker.io/fairlead/gateway",))
"""Where nothing else is said: the project's image, and nothing more."""


class Policies(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`all` holds everywhere, and each of `namespaces` allows more there."""

    all: Policy = OWN_IMAGE  # the word of the file
    namespaces: dict[str, Policy] = {}

    def of(self, namespace: str) -> Policy:
        more = self.namespaces.get(namespace)
        return self.all if more is None else self.all.joined(more)


def read_policies(text: str) -> Policies:
    """Of the JSON that the operator is started with. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=Policies)
    except msgspec.DecodeError as e:
        raise ConfigError(f"the policy cannot be read: {e}") from e


def violations(spec: LinkGatewaySpec, policy: Policy, secrets: Mapping[str, SecretState]) -> list[str]:
    """What `policy` does not allow of `spec`, in words. `secrets` tells of those that `secrets_to_read` names."""
    pod = spec.pod
    found = list(_images(spec, policy))
    found += _secrets(spec, policy, secrets)
    found += _unlisted("pod.labels", pod.labels, policy.pod_labels, "podLabels")
    found += _unlisted("pod.annotations", pod.annotations, policy.pod_annotations, "podAnnotations")
    found += _ways_in(spec, policy)
    keys = [str(one.get("key") or "") for one in pod.tolerations]
    found += _unlisted("pod.tolerations: the key", keys, policy.tolerations, "tolerations")
    classes = [pod.priority_class_name or ""]
    found += _unlisted("pod.priorityClassName", filter(None, classes), policy.priority_classes, "priorityClasses")
    classes = [pod.runtime_class_name or ""]
    found += _unlisted("pod.runtimeClassName", filter(None, classes), policy.runtime_classes, "runtimeClasses")
    kinds = [kind for one in pod.volumes for kind in (one.keys() - {"name"} or {"emptyDir"})]
    found += _unlisted("pod.volumes: the type", kinds, policy.volumes, "volumes")
    if not policy.containers:
        for field, asked in (
            ("containers", pod.containers), ("initContainers", pod.init_containers), ("lifecycle", pod.lifecycle)
        ):  # fmt: skip
            if asked:
                found.append(f"pod.{field} is not allowed (containers of the operator's policy)")
        found += [
            f"pod.env must not set {one.name[:200]}, which may have the gateway run another program (containers of the "
            "operator's policy)"
            for one in pod.env
            if one.name.startswith(PROGRAMS_ENV)
        ]
    return found


def secrets_to_read(spec: LinkGatewaySpec, policy: Policy) -> list[str]:
    """Names of the Secrets that a gateway cannot do without, and of others whose label must be looked at."""
    needed = _needed_secrets(spec)
    return sorted({*needed, *(name for name in _named_secrets(spec) if not _matches(name, policy.secrets))})


def _needed_secrets(spec: LinkGatewaySpec) -> list[str]:
    refs = (spec.redis.secret_ref, spec.redis.ca_secret_ref)
    return [spec.tokens.secret_ref.name, *(ref.name for ref in refs if ref is not None)]


def _named_secrets(spec: LinkGatewaySpec) -> list[str]:
    """All from which the pods would get something."""
    pod = spec.pod
    names = [*_needed_secrets(spec), *(str(one.get("name", "")) for one in pod.image_pull_secrets)]
    values = [one.value_from for one in pod.env if one.value_from]
    names += _secrets_in([values, pod.volumes, pod.containers, pod.init_containers])
    return sorted(set(filter(None, names)))


def _images(spec: LinkGatewaySpec, policy: Policy) -> Iterator[str]:
    asked = [("image", spec.image)]
    for field, containers in (("containers", spec.pod.containers), ("initContainers", spec.pod.init_containers)):
        asked += [(f"pod.{field}: the image", str(one.get("image", ""))) for one in containers]
    allowed = [pattern if "/" not in pattern else _with_registry(pattern) for pattern in policy.images]
    for what, image in asked:
        repository = repository_of(image)
        if repository is None:
            yield f"{what} {image[:200]} is not the name of an image"
        elif not _matches(repository, allowed):
            yield f"{what} {image[:200]} is of a repository that is not allowed (images of the operator's policy)"


def repository_of(image: str) -> str | None:
    """With its registry, without tag and digest; None for what is no reference of an image."""
    found = IMAGE.fullmatch(image)
    return _with_registry(found["repository"]) if found else None


def _with_registry(repository: str) -> str:
    first, slash, _ = repository.partition("/")
    if not slash:
        return f"{DOCKER_HUB}/library/{repository}"
    if "." in first or ":" in first or "*" in first or first == "localhost":
        return repository
    return f"{DOCKER_HUB}/{repository}"


def _secrets(spec: LinkGatewaySpec, policy: Policy, secrets: Mapping[str, SecretState]) -> Iterator[str]:
    label = f"the label {SECRET_LABEL}=true"
    for name in _named_secrets(spec):
        state = secrets.get(name, SecretState.UNREADABLE)
        if state is SecretState.LABELLED or _matches(name, policy.secrets):
            continue
        if state is SecretState.PLAIN:
            yield f"the Secret {name} is not for LinkGateways: it has not {label}"
        elif state is SecretState.MISSING:
            yield f"there is no Secret {name}; it needs {label}"
        else:
            yield (
                f"the Secret {name} does not exist, or the operator may not read it to see whether it has {label}; "
                "operator.rbac.secretNames of the chart gives it the right, and allows the Secret"
            )


def _ways_in(spec: LinkGatewaySpec, policy: Policy) -> Iterator[str]:
    for name, service in (("agents", spec.services.agents), ("platform", spec.services.platform)):
        here = f"services.{name}"
        kinds = [str(service.type)] if service.type is not ServiceType.CLUSTER_IP else []
        yield from _unlisted(f"{here}.type", kinds, policy.service_types, "serviceTypes")
        yield from _unlisted(
            f"{here}.annotations", service.annotations, policy.service_annotations, "serviceAnnotations"
        )
    ways: list[tuple[str, Iterable[str], Iterable[str]]] = []
    if spec.ingress is not None and spec.ingress.enabled:
        ways.append(("ingress", spec.ingress.hosts or [""], spec.ingress.annotations))
    if spec.http_route is not None and spec.http_route.enabled:
        ways.append(("httpRoute", spec.http_route.hostnames or [""], spec.http_route.annotations))
    for name, hosts, keys in ways:
        yield from _unlisted(f"{name}: the host", hosts, policy.ingress_hosts, "ingressHosts")
        yield from _unlisted(f"{name}.annotations", keys, policy.ingress_annotations, "ingressAnnotations")


def _unlisted(what: str, asked: Iterable[str], allowed: tuple[str, ...], field: str) -> list[str]:
    """A sentence for each of `asked` that no pattern allows."""
    return [
        f"{what} {one or '(none given)'} is not allowed ({field} of the operator's policy)"
        for one in asked
        if not _matches(one, allowed)
    ]


def _matches(value: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(value, pattern.replace("[", "[[]").replace("?", "[?]")) for pattern in patterns)


def _secrets_in(node: Any) -> Iterator[str]:
    """Names at every place of a pod where Kubernetes has one: secretKeyRef, secretRef, secret and secretName."""
    if isinstance(node, list):
        for inner in node:
            yield from _secrets_in(inner)
    elif isinstance(node, Mapping):
        for key, inner in node.items():
            if key == "secretName":
                yield str(inner)
            elif isinstance(inner, Mapping) and (
                key == "secret" or key.lower().endswith(("secretref", "secretkeyref"))
            ):
                yield str(inner.get("secretName") or inner.get("name") or "")
            else:
                yield from _secrets_in(inner)
