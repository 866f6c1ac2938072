"""What authors of LinkGateways may ask for, as the operator's administrator allows it. Pure.

The operator writes Deployments, Services and Ingresses with its own rights. If it wrote whatever it is asked to, anyone
who may create a LinkGateway would have those rights too. `settings` reads the policies at start-up, and
`runtime.acceptance` calls `violations` before anything is applied. Every entry is a pattern in which `*` stands for any
text. A value that no pattern allows is refused; fields without an entry here (resources, node selectors, the gateway's
own settings) need no permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import ConfigError, FairleadError
from fairlead_operator.api.gateway_spec import GROUP, LinkGatewaySpec
from fairlead_operator.api.network_spec import ServiceType
from fairlead_operator.api.pod_spec import lies_in, mounted_at

SECRET_LABEL = f"{GROUP}/gateway-secret"
"""The label that, with the value "true", makes a Secret available to the LinkGateways of its namespace."""
IMAGE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._/:-]*?)(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:\w+)?"
)
DOCKER_HUB = "docker.io"
CODE_LOADING_ENV = ("PYTHON", "LD_", "OPENSSL_", "GCONV_PATH", "BROWSER")
"""Prefixes of variables that can make a process run code that they name: those of Python (which the images ignore,
because they start it with -I), of the dynamic linker, of OpenSSL's modules, of character sets, and of `webbrowser`."""
PROGRAM_FOLDERS = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
)
"""Where images have programs, libraries, and what these read at their start, such as /etc/ld.so.preload: a file that is
mounted there may be a program of the author, and the operator itself makes a volume of the ConfigMap that `roles`
names."""


class PolicyViolation(FairleadError):
    """The policy no longer allows what was accepted earlier; the message says why."""

    code = "policy_violation"


class SecretState(StrEnum):
    LABELLED = "labelled"
    UNLABELLED = "unlabelled"
    """The Secret exists, but does not have the label."""
    MISSING = "missing"
    UNREADABLE = "unreadable"
    """The operator may not read the Secret, so it does not know whether it exists."""


class Policy(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What LinkGateways may ask for; each entry is a pattern in which `*` stands for any text."""

    images: tuple[str, ...] = ()
    """Repositories, without tag and digest, of the images of gateways and further containers."""
    secrets: tuple[str, ...] = ()
    """Names of Secrets that do not need the label."""
    pod_labels: tuple[str, ...] = ()
    """Keys, as for annotations."""
    pod_annotations: tuple[str, ...] = ()
    service_annotations: tuple[str, ...] = ()
    ingress_annotations: tuple[str, ...] = ()
    """Keys of annotations of Ingresses and HTTPRoutes. The annotations of a preset need no permission."""
    ingress_hosts: tuple[str, ...] = ()
    """Hosts of Ingresses and HTTPRoutes. A route without a host has the empty name, which `*` allows."""
    prometheus_urls: tuple[str, ...] = ()
    """URLs of Prometheus servers that the operator may ask for a signal."""
    service_types: tuple[str, ...] = ()
    """NodePort, LoadBalancer; ClusterIP is always allowed."""
    tolerations: tuple[str, ...] = ()
    """Keys of taints. A toleration without a key has the empty name."""
    priority_classes: tuple[str, ...] = ()
    runtime_classes: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """Types, such as configMap, emptyDir, hostPath."""
    containers: bool = False
    """Further containers, init containers, hooks, variables such as LD_PRELOAD, mounts in folders of programs: whatever
    runs a program of the author."""

    def merged(self, other: Policy) -> Policy:
        """A policy that allows whatever either of the two allows."""
        both = {
            name: (*getattr(self, name), *getattr(other, name))
            for name in self.__struct_fields__
            if name != "containers"
        }
        return Policy(**both, containers=self.containers or other.containers)


DEFAULT_POLICY = Policy(images=("docker.io/fairlead/gateway",))
"""Allows the project's own image and nothing else."""


class Policies(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`all` applies everywhere; each entry of `namespaces` allows more in that namespace."""

    all: Policy = DEFAULT_POLICY
    namespaces: dict[str, Policy] = {}

    def of(self, namespace: str) -> Policy:
        more = self.namespaces.get(namespace)
        return self.all if more is None else self.all.merged(more)


def read_policies(text: str) -> Policies:
    """Reads the policies from the operator's JSON configuration. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=Policies)
    except msgspec.DecodeError as e:
        raise ConfigError(f"the policy cannot be read: {e}") from e


def violations(spec: LinkGatewaySpec, policy: Policy, secrets: Mapping[str, SecretState]) -> list[str]:
    """What `spec` asks for and `policy` does not allow, one sentence each. `secrets` has the state of each Secret that
    `secrets_to_read` returns."""
    pod = spec.pod
    found = list(_images(spec, policy))
    found += _secrets(spec, policy, secrets)
    found += _not_allowed("pod.labels", pod.labels, policy.pod_labels, "podLabels")
    found += _not_allowed("pod.annotations", pod.annotations, policy.pod_annotations, "podAnnotations")
    found += _routes(spec, policy)
    found += _signals(spec, policy)
    keys = [str(one.get("key") or "") for one in pod.tolerations]
    found += _not_allowed("pod.tolerations: the key", keys, policy.tolerations, "tolerations")
    classes = [pod.priority_class_name or ""]
    found += _not_allowed("pod.priorityClassName", filter(None, classes), policy.priority_classes, "priorityClasses")
    classes = [pod.runtime_class_name or ""]
    found += _not_allowed("pod.runtimeClassName", filter(None, classes), policy.runtime_classes, "runtimeClasses")
    kinds = [kind for one in pod.volumes for kind in (one.keys() - {"name"} or {"emptyDir"})]
    found += _not_allowed("pod.volumes: the type", kinds, policy.volumes, "volumes")
    for name, folder in (("auditLog", spec.audit_log), ("terminalRecordings", spec.terminal_recordings)):
        claims = ["persistentVolumeClaim"] if folder is not None and folder.claim_name is not None else []
        found += _not_allowed(f"{name}.claimName: the type", claims, policy.volumes, "volumes")
    if not policy.containers:
        found += _programs(spec)
    return found


def _programs(spec: LinkGatewaySpec) -> Iterator[str]:
    """What makes the pods run a program of the author."""
    pod = spec.pod
    for field, asked in (
        ("containers", pod.containers), ("initContainers", pod.init_containers), ("lifecycle", pod.lifecycle)
    ):  # fmt: skip
        if asked:
            yield f"pod.{field} is not allowed (see containers of the operator's policy)"
    for variable in pod.env:
        if variable.name.startswith(CODE_LOADING_ENV):
            yield (
                f"pod.env must not set {variable.name[:200]}, which can make the gateway run another program (see "
                "containers of the operator's policy)"
            )
    for mount in pod.volume_mounts:
        if (path := mounted_at(mount)) == "/" or lies_in(path, PROGRAM_FOLDERS):
            yield (
                f"pod.volumeMounts must not replace anything at {str(mount.get('mountPath', ''))[:200]}, where "
                "programs and their libraries are (see containers of the operator's policy)"
            )


def secrets_to_read(spec: LinkGatewaySpec, policy: Policy) -> list[str]:
    """Names of the Secrets that a gateway needs, and of all other Secrets whose label must be checked."""
    needed = _needed_secrets(spec)
    return sorted({*needed, *(name for name in _named_secrets(spec) if not _matches(name, policy.secrets))})


def _needed_secrets(spec: LinkGatewaySpec) -> list[str]:
    refs = (spec.redis.secret_ref, spec.redis.operator_secret_ref, spec.redis.ca_secret_ref)
    names = [spec.tokens.secret_ref.name, *(ref.name for ref in refs if ref is not None)]
    tls = spec.link_tls
    if tls is not None:
        names += [tls.secret_name, *([tls.client_ca.secret_name] if tls.client_ca else [])]
    if spec.redis.client_tls is not None:
        names.append(spec.redis.client_tls.secret_name)
    names += [file.secret for file in spec.files if file.secret is not None]
    if spec.audit_log is not None and spec.audit_log.key_secret_ref is not None:
        names.append(spec.audit_log.key_secret_ref.name)
    return names


def _named_secrets(spec: LinkGatewaySpec) -> list[str]:
    """Names of all Secrets of which the pods would get contents."""
    pod = spec.pod
    names = [*_needed_secrets(spec), *(str(one.get("name", "")) for one in pod.image_pull_secrets)]
    values = [one.value_from for one in pod.env if one.value_from]
    names += secrets_in([values, pod.volumes, pod.containers, pod.init_containers])
    return sorted(set(filter(None, names)))


def _images(spec: LinkGatewaySpec, policy: Policy) -> Iterator[str]:
    asked = [("image", spec.image)]
    for field, containers in (("containers", spec.pod.containers), ("initContainers", spec.pod.init_containers)):
        asked += [(f"pod.{field}: the image", str(one.get("image", ""))) for one in containers]
    allowed = [pattern if "/" not in pattern else _with_registry(pattern) for pattern in policy.images]
    for what, image in asked:
        repository = repository_of(image)
        if repository is None:
            yield f"{what} {image[:200]} is not a valid image reference"
        elif not _matches(repository, allowed):
            yield f"{what} {image[:200]}: its repository is not allowed (see images of the operator's policy)"


def repository_of(image: str) -> str | None:
    """The repository with its registry, without tag and digest; None for an invalid reference."""
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
        if state is SecretState.UNLABELLED:
            yield f"the Secret {name} is not available to LinkGateways: it does not have {label}"
        elif state is SecretState.MISSING:
            yield f"the Secret {name} does not exist; it needs {label}"
        else:
            yield (
                f"the Secret {name} does not exist, or the operator is not allowed to read it to check for {label}; "
                "operator.rbac.secretNames of the chart grants the right and allows the Secret"
            )


def _routes(spec: LinkGatewaySpec, policy: Policy) -> Iterator[str]:
    for name, service in (("agents", spec.services.agents), ("platform", spec.services.platform)):
        here = f"services.{name}"
        kinds = [str(service.type)] if service.type is not ServiceType.CLUSTER_IP else []
        yield from _not_allowed(f"{here}.type", kinds, policy.service_types, "serviceTypes")
        yield from _not_allowed(
            f"{here}.annotations", service.annotations, policy.service_annotations, "serviceAnnotations"
        )
    routes: list[tuple[str, Iterable[str], Iterable[str]]] = []
    if spec.ingress is not None and spec.ingress.enabled:
        routes.append(("ingress", spec.ingress.hosts or [""], spec.ingress.annotations))
    if spec.http_route is not None and spec.http_route.enabled:
        routes.append(("httpRoute", spec.http_route.hostnames or [""], spec.http_route.annotations))
    for name, hosts, keys in routes:
        yield from _not_allowed(f"{name}: the host", hosts, policy.ingress_hosts, "ingressHosts")
        yield from _not_allowed(f"{name}.annotations", keys, policy.ingress_annotations, "ingressAnnotations")


def _signals(spec: LinkGatewaySpec, policy: Policy) -> Iterator[str]:
    prometheus = spec.scaling.signals.prometheus
    if prometheus is not None:
        yield from _not_allowed(
            "scaling.signals.prometheus.url", [prometheus.url], policy.prometheus_urls, "prometheusUrls"
        )


def _not_allowed(what: str, asked: Iterable[str], allowed: tuple[str, ...], field: str) -> list[str]:
    """One sentence for each of `asked` that no pattern allows."""
    return [
        f"{what} {one or '(none)'} is not allowed (see {field} of the operator's policy)"
        for one in asked
        if not _matches(one, allowed)
    ]


def _matches(value: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(value, pattern.replace("[", "[[]").replace("?", "[?]")) for pattern in patterns)


def secrets_in(node: Any) -> Iterator[str]:
    """Names from every place where a pod can name a Secret: secretKeyRef, secretRef, secret and secretName."""
    if isinstance(node, list):
        for inner in node:
            yield from secrets_in(inner)
    elif isinstance(node, Mapping):
        for key, inner in node.items():
            if key == "secretName":
                yield str(inner)
            elif isinstance(inner, Mapping) and (
                key == "secret" or key.lower().endswith(("secretref", "secretkeyref"))
            ):
                # Each of the two means something in some places, and is passed over in the others.
                yield from (str(inner[name]) for name in ("secretName", "name") if inner.get(name))
            else:
                yield from secrets_in(inner)
