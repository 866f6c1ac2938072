"""etcd, the API server, the controller manager and the scheduler, as processes of the cluster's namespace.

Used by `up` and `down`. One of each, so none elects a leader. etcd does not wait for the disk: this cluster is thrown
away with its data, and the writes of a test would otherwise take as long as the machine's slowest sync. Every write is
in the audit log with the pod that made it: so a test can say who did *not* write.
"""

from __future__ import annotations

import json
from pathlib import Path

import place
import processes
from place import PKI, run

PROGRAMS = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
"""In the order in which they stop."""
READY_TIMEOUT = 90.0
"""The API server alone is ready within 6 s on two cores; a machine busy with a build takes many times that."""

AUDIT_LOG = place.LOG / "audit.json"
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}
_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"


def start() -> None:
    policy = place.RUN / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT))
    processes.start("etcd", [
        place.BIN / "etcd", "--data-dir", place.RUN / "etcd", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}", f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
    ])  # fmt: skip
    processes.start("kube-apiserver", [
        place.BIN / "kube-apiserver", f"--etcd-servers={_ETCD}",
        f"--bind-address={place.NODE_IP}", f"--advertise-address={place.NODE_IP}", "--secure-port=6443",
        f"--service-cluster-ip-range={place.SERVICE_NET}", "--allow-privileged=true",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={PKI}/ca.crt",
        f"--tls-cert-file={PKI}/apiserver.crt", f"--tls-private-key-file={PKI}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI}/accounts.pub", f"--service-account-signing-key-file={PKI}/accounts.key",
        f"--kubelet-client-certificate={PKI}/admin.crt", f"--kubelet-client-key={PKI}/admin.key",
        "--kubelet-preferred-address-types=InternalIP", "--profiling=false",
        f"--audit-policy-file={policy}", f"--audit-log-path={AUDIT_LOG}", "--audit-log-maxsize=100",
    ])  # fmt: skip


def ready() -> None:
    """Waits for the API server, and starts what needs it."""
    processes.until("the API server", lambda: kubectl("get", "--raw", "/readyz", quiet=True) == "ok", READY_TIMEOUT,
                    "etcd", "kube-apiserver")  # fmt: skip
    processes.start("kube-controller-manager", [
        place.BIN / "kube-controller-manager", "--bind-address=127.0.0.1", "--leader-elect=false",
        "--use-service-account-credentials=true", *_identity("controller-manager"),
        f"--service-account-private-key-file={PKI}/accounts.key", f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-signing-cert-file={PKI}/ca.crt", f"--cluster-signing-key-file={PKI}/ca.key",
    ])  # fmt: skip
    processes.start("kube-scheduler", [
        place.BIN / "kube-scheduler", "--bind-address=127.0.0.1", "--leader-elect=false", *_identity("scheduler"),
    ])  # fmt: skip


def stop() -> None:
    for name in PROGRAMS:
        processes.stop(name)


def kubectl(*arguments: str, stdin: str | None = None, quiet: bool = False, timeout: float = 60.0) -> str:
    argv: list[str | Path] = [place.BIN / "kubectl", f"--kubeconfig={place.KUBECONFIG}", *arguments]
    return run(argv, stdin=stdin, quiet=quiet, timeout=timeout)


def _identity(name: str) -> list[str]:
    config = place.RUN / f"{name}.kubeconfig"
    return [f"--{role}kubeconfig={config}" for role in ("", "authentication-", "authorization-")]
