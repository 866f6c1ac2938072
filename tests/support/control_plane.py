"""A real API server for the run (etcd, kube-apiserver, kube-controller-manager on loopback), a namespace for each test.

There is no kubelet: tests play it by writing the status of the pods that the real controllers made. Redis is a real
Valkey, and the rows in it are beaten by the gateway's own code. The programs are those of `make cluster`; without them
the tests are skipped, or fail where CI=1 says that they must be there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead_operator.api.policy import SECRET_LABEL
from fairlead_operator.crd import crds
from fairlead_operator.kube import objects
from fairlead_operator.kube.cluster import Cluster, configuration
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import CLUSTER, LEASE, NAMESPACED

from support.free_ports import free_port
from support.operator_namespace import OperatorNamespace

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".cache" / "cluster" / "bin"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "garbage-collector-controller", "namespace-controller",
    "disruption-controller",
)  # fmt: skip
GARBAGE = {"GOGC": "400"}
"""Go looks for garbage when the heap is five times what was in use, not twice: with this default the API server used a
quarter of its CPU time for that. It takes 600 MiB instead of 350."""
START_TIMEOUT = 90.0
"""Seconds: 8 on two idle cores; a machine that builds takes many times that."""
ADMIN, OPERATOR = "token-of-the-admin", "token-of-the-operator"
AGENT_TOKEN, PLATFORM_TOKEN = "agent-token-of-a-test", "platform-token-of-a-test"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Kubeconfigs of an administrator, and of a user `operator` who may do what a test gives it."""

    admin: Path
    operator: Path
    server: subprocess.Popen[bytes]
    """The API server's process."""


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    missing = [name for name in PROGRAMS if not (BIN / name).exists()]
    if missing or shutil.which("openssl") is None:
        text = f"no API server to test with ({', '.join(missing) or 'openssl'}): python3 -I tests/tools/cluster build"
        if os.environ.get("CI") == "1":
            pytest.fail(text)
        pytest.skip(text)
    folder = tmp_path_factory.mktemp("control-plane")
    (folder / "tokens.csv").write_text(f"{ADMIN},admin,1,system:masters\n{OPERATOR},operator,2\n")
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=60)
    etcd, peer, api = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        stack.enter_context(
            _program(
                folder, "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
                f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
            )
        )  # fmt: skip
        server = stack.enter_context(
            _program(
                folder, "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1", f"--secure-port={api}", f"--cert-dir={folder}/pki",
                "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
                f"--token-auth-file={folder}/tokens.csv",
                # No kubelet and no token controller: a pod's account need not have a token.
                "--disable-admission-plugins=ServiceAccount",
                "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}", "--profiling=false",
            )
        )  # fmt: skip
        plane = ControlPlane(folder / "admin.kubeconfig", folder / "operator.kubeconfig", server)
        _kubeconfig(plane.admin, api, folder, ADMIN)
        _kubeconfig(plane.operator, api, folder, OPERATOR)
        _wait_answer(folder, api, server, "/readyz")
        for definition in crds():
            _post(folder, api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for kind in ("LinkGateway", "LinkOperation"):
            _wait_answer(folder, api, server, objects.path(kind, ""))
        stack.enter_context(
            _program(
                folder, "kube-controller-manager", f"--kubeconfig={plane.admin}", "--leader-elect=false",
                f"--controllers={','.join(CONTROLLERS)}", "--secure-port=0", f"--cert-dir={folder}/pki",
            )
        )  # fmt: skip
        yield plane


@contextmanager
def _program(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / name, *arguments], stdout=log, stderr=log, cwd=folder, env={**os.environ, **GARBAGE}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def _kubeconfig(path: Path, port: int, folder: Path, token: str) -> None:
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": f"https://127.0.0.1:{port}",
                            "certificate-authority": f"{folder}/pki/apiserver.crt",
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )


def _post(folder: Path, port: int, where: str, body: Object | None = None) -> str:
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{where}",
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
    )
    trust = ssl.create_default_context(cafile=f"{folder}/pki/apiserver.crt")
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
        return str(answer.read().decode())


def _wait_answer(folder: Path, port: int, server: subprocess.Popen[bytes], where: str) -> None:
    """Until the server answers; it refuses the objects of a new kind while it still prepares their storage."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            _post(folder, port, where)
            return
        except (OSError, urllib.error.URLError):
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            log = (folder / "kube-apiserver.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the API server did not answer {where}: {log}")
        time.sleep(0.1)


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"), port=0)  # a URL that a pod could use
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def namespace(
    control_plane: ControlPlane, valkey_server: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OperatorNamespace]:
    namespace_name = f"t-{os.urandom(4).hex()}"
    for kind, resource in (("Role", "roles"), ("RoleBinding", "rolebindings"), ("ClusterRole", "clusterroles"),
                           ("ClusterRoleBinding", "clusterrolebindings")):  # fmt: skip
        monkeypatch.setitem(objects.KINDS, kind, ("rbac.authorization.k8s.io/v1", resource))
    monkeypatch.setitem(objects.KINDS, "Namespace", ("v1", "namespaces"))
    clients = []
    for file in (control_plane.admin, control_plane.operator):
        monkeypatch.setenv("KUBECONFIG", str(file))
        clients.append(ApiClient(await configuration()))
    admin, operator = (Cluster(client, lambda: None) for client in clients)
    store = Pipeliner(valkey_server.url)
    store.start()
    assert await store.wait_available(10)
    await store.submit("FLUSHALL")
    made = OperatorNamespace(admin, operator, namespace_name, store, valkey_server.url)
    # Whatever pods are made in it must fit: the admission of the API server says so.
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    await admin.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace_name, "labels": restricted}}
    )
    lent = {"redis": {"url": valkey_server.url}}
    lent["tokens"] = {"agent-token": AGENT_TOKEN, "platform-token": PLATFORM_TOKEN}
    for name, data in lent.items():
        meta = {"name": name, "namespace": namespace_name, "labels": {SECRET_LABEL: "true"}}
        await admin.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})
    await made.allow(*NAMESPACED, *LEASE)
    who = {"kind": "User", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"}
    await admin.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "operator", "namespace": namespace_name},
            "subjects": [who],
            "roleRef": {"kind": "Role", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )
    rules = [{"apiGroups": [group], "resources": list(kinds), "verbs": list(verbs)} for group, kinds, verbs in CLUSTER]
    meta = {"name": "operator"}
    version = "rbac.authorization.k8s.io/v1"
    await admin.apply({"apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": rules}, "test")
    await admin.apply(
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "subjects": [who],
            "roleRef": {"kind": "ClusterRole", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"},
        },
        "test",
    )
    try:
        yield made
    finally:
        # The namespace stays: to empty it, its controller asks for every kind that there is, and the server ends soon.
        for reconciler in made.reconcilers:
            await reconciler.aclose()
        await store.aclose()
        for client in clients:
            await client.close()  # type: ignore[no-untyped-call]  # a generated client
