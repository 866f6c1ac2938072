"""The command behind `make cluster` and `make image`: a real Kubernetes on this machine, from packages alone.

    python3 -I tests/tools/cluster up | down | build | image [TARGET...] | load ARCHIVE... | packages | status

Started by the Makefile, by CI and by the end-to-end tests, with the system's Python and nothing installed into it.
With KUBECONFIG set to another cluster `up` starts nothing and checks that one. Talk goes to stderr; stdout holds the
path of the kubeconfig and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

import binaries
import certificates
import containers
import controlplane
import entrance
import images
import network
import node
import place
import processes
from place import ClusterError, run

_MADE_OF = place.RUN / "made-of"
_SECONDS = place.RUN / "seconds-to-start"
"""For those who tell how long it took."""
PROGRAMS = (*controlplane.PROGRAMS, "containerd", "kubelet", "kube-proxy", "coredns", "traefik")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/tools/cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs, unless they are built")
    commands.add_parser("up", help="build and start the cluster, unless it runs")
    commands.add_parser("down", help="end the cluster and remove its data")
    commands.add_parser("status", help="print what runs")
    commands.add_parser("packages", help="name the Debian packages that are missing, for apt-get")
    commands.add_parser("load", help="load images into the cluster").add_argument("archives", nargs="+", type=Path)
    image = commands.add_parser("image", help="build the images of the project")
    image.add_argument("targets", nargs="*")
    image.add_argument("--source", type=Path, default=place.ROOT, help="another version of the source, with a --tag")
    image.add_argument("--tag", default="", help="of images of another version")
    asked = parser.parse_args()
    try:
        if asked.command == "load":
            load(asked.archives)
        elif asked.command == "image":
            images.build(asked.targets, images.Source(asked.source, asked.tag))
        else:
            {"build": binaries.build, "up": up, "down": down, "packages": packages, "status": status}[asked.command]()
    except ClusterError as e:
        print(f"cluster: {e}\n  → {e.remedy}", file=sys.stderr)
        return 1
    return 0


def up() -> None:
    foreign = _foreign()
    if foreign is not None:
        if shutil.which("kubectl") is None:
            raise ClusterError("KUBECONFIG names a cluster, but kubectl was not found", "install kubectl")
        run(["kubectl", f"--kubeconfig={foreign}", "get", "--raw", "/readyz"])
        print_progress(f"KUBECONFIG names a cluster that answers; it is used as it is: {foreign}")
        print(foreign)
        return
    if all(processes.alive(name) for name in PROGRAMS):
        same = _MADE_OF.exists() and _MADE_OF.read_text() == _fingerprint()
        print_progress("runs already" if same else "runs already, of another version; `make cluster-down` ends it")
        print(place.KUBECONFIG)
        return
    _may_run()
    binaries.build()
    began = time.monotonic()
    place.RUN.mkdir(parents=True, exist_ok=True)
    network.up()
    certificates.make()
    controlplane.start()
    containers.start()
    containers.ready()
    controlplane.ready()
    node.start()
    entrance.start()
    node.ready()
    entrance.ready()
    _MADE_OF.write_text(_fingerprint())
    took = f"{time.monotonic() - began:.0f}"
    _SECONDS.write_text(took)
    print_progress(f"up in {took} s; Ingresses of the class `traefik` are served at {place.INGRESS}")
    print(place.KUBECONFIG)


def down() -> None:
    if _foreign() is not None:
        print_progress("KUBECONFIG names a cluster that was not started here; it is left alone")
        return
    _is_root()
    began = time.monotonic()
    node.empty()
    entrance.stop()
    node.stop()
    containers.stop()
    controlplane.stop()
    network.down()
    shutil.rmtree(place.RUN, ignore_errors=True)
    shutil.rmtree(place.SOCKETS, ignore_errors=True)
    print_progress(f"down in {time.monotonic() - began:.0f} s")


def load(archives: list[Path]) -> None:
    if _foreign() is not None:
        raise ClusterError("KUBECONFIG names a cluster that was not started here", "docs/cluster.md: loading images")
    if not processes.alive("containerd"):
        raise ClusterError("the cluster does not run", "make cluster")
    containers.load(archives)


def packages() -> None:
    debian = place.VERSIONS["debian"]
    print(" ".join(place.missing({**debian["programs"], **debian["builders"]}, _plugins())))


def status() -> None:
    for name in PROGRAMS:
        print(f"{name:<24} {'runs' if processes.alive(name) else '-'}")


def print_progress(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def _foreign() -> str | None:
    named = os.environ.get("KUBECONFIG", "")
    return named if named and Path(named).resolve() != place.KUBECONFIG.resolve() else None


def _fingerprint() -> str:
    """Of the binaries and of the programs here that started them."""
    code = b"".join(path.read_bytes() for path in sorted(place.SOURCE.glob("*.py")))
    return binaries.folder().name + hashlib.sha256(code).hexdigest()


def _is_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            "only root may make network namespaces and containers",
            "sudo make cluster, or use another cluster: KUBECONFIG=… (docs/cluster.md)",
        )


def _may_run() -> None:
    if sys.platform != "linux":
        raise ClusterError("this cluster needs Linux", "use kind or k3d: docs/cluster.md")
    _is_root()
    debian = place.VERSIONS["debian"]
    place.require(debian["programs"], _plugins(), later=debian["builders"])
    if builders := place.missing(debian["builders"]):
        print_progress(f"`make image` will need packages that are missing: apt-get install {' '.join(builders)}")


def _plugins() -> list[str]:
    """Programs that are not on the PATH: those that containerd calls to give a pod its network."""
    return [] if Path("/usr/lib/cni/bridge").exists() else [place.VERSIONS["debian"]["plugins"]]


if __name__ == "__main__":
    sys.exit(main())
