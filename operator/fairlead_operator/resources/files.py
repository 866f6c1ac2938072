"""The files that the gateway's container has, and the settings that name them. Pure.

Called by `deployment`. Secrets and ConfigMaps are mounted as whole volumes, because the kubelet renews those in a pod
that runs; whatever nodes read again needs no new pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fairlead_operator.api.access.access_spec import KeptFolder, MountedFile
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.network_spec import ClientAuth
from fairlead_operator.kube.objects import Object

FOLDER = "/etc/fairlead"
DATA = "/var/lib/fairlead"
READABLE = 0o440
"""For the group of the pod's files, which its user belongs to."""


class Mount(NamedTuple):
    name: str
    path: str
    source: Object
    env: Mapping[str, str]
    read_only: bool = True

    @property
    def volume(self) -> Object:
        return {"name": self.name, **self.source}

    @property
    def volume_mount(self) -> Object:
        body = {"name": self.name, "mountPath": self.path}
        return {**body, "readOnly": True} if self.read_only else body


def mounts(spec: LinkGatewaySpec) -> list[Mount]:
    """All mounts of a pod, those of the author's own volumes excepted."""
    return [*_tokens(spec), *_redis(spec), *_link_tls(spec), *_files(spec), *_audit(spec), *_terminals(spec)]


def _tokens(spec: LinkGatewaySpec) -> Iterator[Mount]:
    ref, path = spec.tokens.secret_ref, f"{FOLDER}/tokens"
    items = [{"key": ref.agent_key, "path": "agent-token"}, {"key": ref.platform_key, "path": "platform-token"}]
    env = {
        "FAIRLEAD_AGENT_TOKEN_FILE": f"{path}/agent-token",
        "FAIRLEAD_PLATFORM_TOKEN_FILE": f"{path}/platform-token",
    }
    if ref.issuer_key is not None:
        items.append({"key": ref.issuer_key, "path": "issuer.pem"})
        env["FAIRLEAD_ISSUER_KEY"] = f"{path}/issuer.pem"
    yield Mount("tokens", path, _secret(ref.name, items), env)


def _redis(spec: LinkGatewaySpec) -> Iterator[Mount]:
    """The URL of Redis and the files of TLS. A variable would be visible to anyone who may list the processes."""
    redis, path = spec.redis, f"{FOLDER}/redis"
    sources: list[Object] = []
    env: dict[str, str] = {}
    if url := redis.secret_ref:
        sources.append({"secret": {"name": url.name, "items": [{"key": url.key, "path": "url"}]}})
        env["FAIRLEAD_REDIS_FILE"] = f"{path}/url"
    if ca := redis.ca_secret_ref:
        sources.append({"secret": {"name": ca.name, "items": [{"key": ca.key, "path": "ca.crt"}]}})
        env["FAIRLEAD_REDIS_CA_FILE"] = f"{path}/ca.crt"
    if own := redis.client_tls:
        items = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
        sources.append({"secret": {"name": own.secret_name, "items": items}})
        env |= {"FAIRLEAD_REDIS_CERT_FILE": f"{path}/tls.crt", "FAIRLEAD_REDIS_KEY_FILE": f"{path}/tls.key"}
    if sources:
        yield Mount("redis", path, {"projected": {"defaultMode": READABLE, "sources": sources}}, env)


def _link_tls(spec: LinkGatewaySpec) -> Iterator[Mount]:
    tls, path = spec.link_tls, f"{FOLDER}/link-tls"
    if tls is None:
        return
    items = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
    env = {"FAIRLEAD_LINK_TLS_CERT": f"{path}/tls.crt", "FAIRLEAD_LINK_TLS_KEY": f"{path}/tls.key"}
    yield Mount("link-tls", path, _secret(tls.secret_name, items), env)
    if tls.client_ca is not None:
        path = f"{FOLDER}/link-client-ca"
        env = {
            "FAIRLEAD_LINK_TLS_CLIENT_CA": f"{path}/ca.crt",
            "FAIRLEAD_LINK_TLS_CLIENT_AUTH": ClientAuth(tls.client_ca.auth).value.lower(),
        }
        items = [{"key": tls.client_ca.key, "path": "ca.crt"}]
        if tls.client_ca.crl_key is not None:
            items.append({"key": tls.client_ca.crl_key, "path": "crl.pem"})
            env["FAIRLEAD_LINK_TLS_CLIENT_CRL"] = f"{path}/crl.pem"
        yield Mount("link-client-ca", path, _secret(tls.client_ca.secret_name, items), env)


def _files(spec: LinkGatewaySpec) -> Iterator[Mount]:
    if spec.roles is not None:
        yield _file("roles", spec.roles, "roles.yaml", "FAIRLEAD_ROLES")
    if spec.issuers is not None:
        yield _file("issuers", spec.issuers, "issuers.toml", "FAIRLEAD_ISSUERS")
    if spec.event_sinks is not None:
        yield _file("event-sinks", spec.event_sinks, "sinks.toml", "FAIRLEAD_EVENT_SINKS")


def _file(name: str, given: MountedFile, key: str, setting: str) -> Mount:
    path = f"{FOLDER}/{name}"
    source: Object = {"configMap": {"name": given.config_map, "defaultMode": READABLE}}
    if given.secret is not None:
        source = {"secret": {"secretName": given.secret, "defaultMode": READABLE}}
    return Mount(name, path, source, {setting: f"{path}/{given.key or key}"})


def _audit(spec: LinkGatewaySpec) -> Iterator[Mount]:
    log = spec.audit_log
    if log is None:
        return
    env = {"FAIRLEAD_AUDIT_LOG": f"{DATA}/audit"}
    if log.otlp_endpoint is not None:
        env["FAIRLEAD_AUDIT_ENDPOINT"] = log.otlp_endpoint
    yield Mount("audit", f"{DATA}/audit", _kept(log), env, read_only=False)
    if log.key_secret_ref is not None:
        path = f"{FOLDER}/audit-key"
        source = _secret(log.key_secret_ref.name, [{"key": log.key_secret_ref.key, "path": "key.pem"}])
        yield Mount("audit-key", path, source, {"FAIRLEAD_AUDIT_KEY": f"{path}/key.pem"})


def _terminals(spec: LinkGatewaySpec) -> Iterator[Mount]:
    if spec.terminal_recordings is not None:
        path = f"{DATA}/terminals"
        source = _kept(spec.terminal_recordings)
        yield Mount("terminals", path, source, {"FAIRLEAD_TERMINAL_RECORDINGS": path}, read_only=False)


def _kept(folder: KeptFolder) -> Object:
    if folder.claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": folder.claim_name}}
    return {"emptyDir": {"sizeLimit": str(folder.size_limit)}}


def _secret(name: str, items: list[Object]) -> Object:
    return {"secret": {"secretName": name, "defaultMode": READABLE, "items": items}}
