"""The cluster's certificate authority and what it signs: one certificate for each program, and their kubeconfigs.

Used by `up`. Made anew for each cluster and valid for 30 days; the keys never leave its folder, which only root
reads. openssl because the standard library signs nothing, and the cluster must start before any venv exists.
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass

import place
from place import PKI, run

DAYS = "30"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a certificate is for. Kubernetes takes the organisation for the group and the common name for the user."""

    name: str
    subject: str
    names: str = ""


_API_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
    f"DNS:localhost,IP:127.0.0.1,IP:{place.API_SERVICE_IP},IP:{place.NODE_IP}"
)
HOLDERS = (
    Holder("apiserver", "/CN=kube-apiserver", _API_NAMES),
    Holder("admin", "/O=system:masters/CN=admin"),
    Holder("controller-manager", "/CN=system:kube-controller-manager"),
    Holder("scheduler", "/CN=system:kube-scheduler"),
    Holder("proxy", "/CN=system:kube-proxy"),
    Holder("kubelet", f"/O=system:nodes/CN=system:node:{place.NODE}"),
)


def make() -> None:
    if (PKI / "complete").exists():
        return
    shutil.rmtree(PKI, ignore_errors=True)
    PKI.mkdir(parents=True, mode=0o700)
    _key("ca")
    run(["openssl", "req", "-x509", "-new", "-key", PKI / "ca.key", "-subj", "/CN=fairlead-cluster", "-days", DAYS,
         "-out", PKI / "ca.crt"])  # fmt: skip
    for holder in HOLDERS:
        _sign(holder)
        _kubeconfig(holder.name)
    run(["openssl", "genrsa", "-out", PKI / "accounts.key", "2048"])
    run(["openssl", "rsa", "-in", PKI / "accounts.key", "-pubout", "-out", PKI / "accounts.pub"])
    (PKI / "complete").touch()


def _key(name: str) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", PKI / f"{name}.key"])


def _sign(holder: Holder) -> None:
    base = PKI / holder.name
    _key(holder.name)
    extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
    if holder.names:
        extensions += f"subjectAltName={holder.names}\n"
    base.with_suffix(".ext").write_text(extensions)
    run(["openssl", "req", "-new", "-key", base.with_suffix(".key"), "-subj", holder.subject,
         "-out", base.with_suffix(".csr")])  # fmt: skip
    run(["openssl", "x509", "-req", "-in", base.with_suffix(".csr"), "-CA", PKI / "ca.crt", "-CAkey", PKI / "ca.key",
         "-CAcreateserial", "-days", DAYS, "-extfile", base.with_suffix(".ext"),
         "-out", base.with_suffix(".crt")])  # fmt: skip


def _kubeconfig(name: str) -> None:
    """JSON, which is YAML; with the credentials inside, so that the file alone opens the cluster."""
    path = place.RUN / f"{name}.kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "fairlead",
                        "cluster": {"server": place.API, "certificate-authority-data": _encoded("ca.crt")},
                    }
                ],
                "users": [
                    {
                        "name": name,
                        "user": {
                            "client-certificate-data": _encoded(f"{name}.crt"),
                            "client-key-data": _encoded(f"{name}.key"),
                        },
                    }
                ],
                "contexts": [{"name": "fairlead", "context": {"cluster": "fairlead", "user": name}}],
                "current-context": "fairlead",
            },
            indent=1,
        )
    )
    path.chmod(0o600)


def _encoded(file: str) -> str:
    return base64.b64encode((PKI / file).read_bytes()).decode()
