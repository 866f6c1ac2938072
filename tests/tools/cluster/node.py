"""The one real node: a kubelet that runs pods in containerd, and kube-proxy for the Services.

Used by `up` and `down`. The kubelet is told to accept what small machines and CI sandboxes have: control groups of
version 1, swap, no right to raise limits or to change the OOM score (`KubeletInUserNamespace` makes it bear that).
"""

from __future__ import annotations

import json
from pathlib import Path

import place
import processes
from controlplane import kubectl
from place import run

READY_TIMEOUT = 90.0
POD_END_TIMEOUT = 60
"""Seconds that pods have to end when the cluster goes; then they are killed."""


def start() -> None:
    root = place.RUN / "kubelet"
    root.mkdir(parents=True, exist_ok=True)
    resolver = place.RUN / "resolv.conf"
    resolver.write_text(f"nameserver {place.NODE_IP}\n")
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": place.NODE_IP,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "containerRuntimeEndpoint": f"unix://{place.SOCKETS}/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{place.PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [place.DNS_SERVICE_IP],
        "resolvConf": str(resolver),
        "podLogsDir": str(place.RUN / "pod-logs"),
        "volumePluginDir": str(root / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "featureGates": {"KubeletInUserNamespace": True},
        "makeIPTablesUtilChains": False,
        # The disk belongs to somebody else too: a full one must not make this node delete images it cannot fetch.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi"},
    }
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": place.NODE,
        "bindAddress": place.NODE_IP,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": place.POD_NET,
        "nodePortAddresses": [place.NODE_NET],
        "clientConnection": {"kubeconfig": str(place.RUN / "proxy.kubeconfig")},
        # Zero: leave the machine's limits of connection tracking alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    for name, config in (("kubelet", kubelet), ("kube-proxy", proxy)):
        (place.RUN / f"{name}.json").write_text(json.dumps(config, indent=1))
    processes.start("kubelet", [
        place.BIN / "kubelet", f"--config={place.RUN}/kubelet.json", f"--kubeconfig={place.RUN}/kubelet.kubeconfig",
        f"--root-dir={root}", f"--cert-dir={root}/pki", f"--hostname-override={place.NODE}",
        f"--node-ip={place.NODE_IP}",
    ])  # fmt: skip
    processes.start("kube-proxy", [place.BIN / "kube-proxy", f"--config={place.RUN}/kube-proxy.json"])


def ready() -> None:
    ask = ("get", "node", place.NODE, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    processes.until("the node", lambda: kubectl(*ask, quiet=True) == "True", READY_TIMEOUT, "kubelet", "kube-proxy")
    # The controller manager makes it; without it no pod of the namespace is admitted.
    account = ("get", "serviceaccount", "default", "-o", "name")
    processes.until("the service account `default`", lambda: bool(kubectl(*account, quiet=True)), READY_TIMEOUT,
                    "kube-controller-manager")  # fmt: skip


def empty() -> None:
    """Deletes all that starts pods and then the pods, so that their volumes and networks are taken down in order."""
    if not processes.alive("kubelet") or not processes.alive("kube-apiserver"):
        return
    kinds = "deployments,statefulsets,daemonsets,jobs,cronjobs,replicasets"
    kubectl("delete", kinds, "--all", "--all-namespaces", "--wait=false", quiet=True)
    kubectl("delete", "pods", "--all", "--all-namespaces", f"--timeout={POD_END_TIMEOUT}s", quiet=True,
            timeout=POD_END_TIMEOUT + 30)  # fmt: skip


def stop() -> None:
    for name in ("kube-proxy", "kubelet"):
        processes.stop(name)
    root = f"{place.RUN}/kubelet"
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(root):
            run(["umount", "--lazy", mount], quiet=True)
