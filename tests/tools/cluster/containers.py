"""containerd for the one node: its configuration, the pods' network, and the images that are loaded into it.

Used by `up`, `down` and `load`. A containerd of the cluster alone, beside any other of the machine: own folder, own
socket. It runs where the kernel lets less than it expects (no CAP_SYS_RESOURCE, no AppArmor, no huge pages), which a
machine without those limits does not notice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import archive
import place
import processes
from place import run

PAUSE = "docker.io/fairlead/pause:1"
SOCKET = place.SOCKETS / "containerd.sock"
READY_TIMEOUT = 30.0
LOAD_TIMEOUT = 180.0
"""An image of 250 MB unpacks in some 5 s; a busy disk takes longer."""

_CONFIG = f"""\
version = 2
root = "{place.RUN}/containerd"
state = "{place.SOCKETS}/state"
oom_score = 0
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{place.RUN}/cni"
"""
_POD_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,  # a pod reaches itself through its own Service
            "ipam": {
                "type": "host-local",
                "dataDir": str(place.RUN / "addresses"),
                "ranges": [[{"subnet": place.POD_NET}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def start() -> None:
    (place.RUN / "cni").mkdir(parents=True, exist_ok=True)
    place.SOCKETS.mkdir(parents=True, exist_ok=True)
    (place.RUN / "cni" / "10-pods.conflist").write_text(json.dumps(_POD_NETWORK))
    config = place.RUN / "containerd.toml"
    config.write_text(_CONFIG)
    processes.start("containerd", ["containerd", "--config", config])


def ready() -> None:
    """Waits for containerd, and loads the image that every pod needs and those that were built before."""
    processes.until("containerd", lambda: bool(ctr("version", quiet=True)), READY_TIMEOUT, "containerd")
    pause = place.RUN / "pause.tar"
    archive.write(pause, PAUSE, place.BIN / "pause", archive.Config(entrypoint=("/pause",), user="65535:65535"))
    load([pause, *sorted(place.IMAGES.glob("*.tar"))])


def load(archives: Sequence[Path]) -> None:
    for file in archives:
        ctr("--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", str(file), timeout=LOAD_TIMEOUT)


def stop() -> None:
    """Ends what runs in containers too: a pod that the API could not delete would outlive its containerd."""
    if processes.alive("containerd"):
        for task in ctr("--namespace", "k8s.io", "tasks", "list", "--quiet", quiet=True).split():
            ctr("--namespace", "k8s.io", "tasks", "kill", "--signal", "9", task, quiet=True)
        processes.until("the end of all containers", _no_tasks_run, READY_TIMEOUT, "containerd")
    processes.stop("containerd")


def ctr(*arguments: str, quiet: bool = False, timeout: float = 60.0) -> str:
    return run(["ctr", "--address", SOCKET, *arguments], quiet=quiet, timeout=timeout)


def _no_tasks_run() -> bool:
    return "RUNNING" not in ctr("--namespace", "k8s.io", "tasks", "list", quiet=True)
