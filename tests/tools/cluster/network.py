"""The network namespace of the cluster, and the veth pair by which the machine reaches node, Services and pods.

Used by `up` and `down`. A namespace of its own because kube-proxy's address translation switches on connection
tracking for all that its namespace sees: on the machine itself a load test of some 100,000 loopback connections
would then overflow the table. There is no way out of it: pods have no internet, on purpose.
"""

from __future__ import annotations

from pathlib import Path

import place
from place import ClusterError, run

_OUTSIDE, _INSIDE = "flcluster0", "flcluster1"
_OUTSIDE_IP, _INSIDE_IP = "172.30.1.1", "172.30.1.2"


def exists() -> bool:
    return Path("/run/netns", place.NETNS).exists()


def up() -> None:
    if exists():
        return
    taken = [line for line in run(["ip", "-4", "route"]).splitlines() if line.split()[0] in _routes()]
    if taken:
        raise ClusterError(
            f"this machine has a route that the cluster needs: {taken[0]}",
            "stop what uses it, or use another cluster: KUBECONFIG=… (docs/cluster.md)",
        )
    inside = ["ip", "-n", place.NETNS]
    run(["ip", "netns", "add", place.NETNS])
    run(["ip", "link", "add", _OUTSIDE, "type", "veth", "peer", "name", _INSIDE, "netns", place.NETNS])
    run(["ip", "address", "add", f"{_OUTSIDE_IP}/30", "dev", _OUTSIDE])
    run(["ip", "link", "set", _OUTSIDE, "up"])
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{_INSIDE_IP}/30", "dev", _INSIDE])
    run([*inside, "link", "set", _INSIDE, "up"])
    # The node's address sits on a bridge of its own, so that it does not change with the way in.
    run([*inside, "link", "add", "node", "type", "bridge"])
    run([*inside, "address", "add", f"{place.NODE_IP}/24", "dev", "node"])
    run([*inside, "link", "set", "node", "up"])
    run([*inside, "route", "add", "default", "via", _OUTSIDE_IP])
    run(["nsenter", f"--net=/run/netns/{place.NETNS}", "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    for net in _routes():
        run(["ip", "route", "add", net, "via", _INSIDE_IP])


def down() -> None:
    """Takes the namespaces of pods with it: containerd leaves those of pods that were killed."""
    for pod in Path("/run/netns").glob("cni-*"):
        if _is_ours(pod.name):
            run(["ip", "netns", "delete", pod.name], quiet=True)
    if exists():
        run(["ip", "netns", "delete", place.NETNS])
    run(["ip", "link", "delete", _OUTSIDE], quiet=True)


def _routes() -> tuple[str, ...]:
    return place.NODE_NET, place.SERVICE_NET, place.POD_NET


def _is_ours(name: str) -> bool:
    """A pod of this cluster has its default route over the first address of the pods' network."""
    gateway = place.POD_NET.rpartition(".")[0] + ".1"
    return f"via {gateway} " in run(["ip", "-n", name, "-4", "route"], quiet=True)
