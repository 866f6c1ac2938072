"""Builds the project's images with what this machine has, and keeps them as archives.

Used by `make image`, by CI and before the end-to-end tests. With Docker it is a plain `docker build`. With buildah
the base comes from a registry too, and where none can be reached it is made from Debian's packages by debootstrap,
under the name of the official image of that Python: the Dockerfile is one and the same. The archives are what
`make cluster` loads at its start; a running cluster gets them at once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import archive
import containers
import place
import processes
from place import ClusterError, run

TARGETS = ("gateway", "operator", "valkey")
BUILD_TIMEOUT = 1200.0
PULL_TIMEOUT = 60.0
"""A base of 50 MB; where no registry can be reached the answer comes at once or never."""
STORE = place.CACHE / "build"


def name(target: str) -> str:
    """The version is that of the package: the chart's appVersion is the same."""
    return f"docker.io/fairlead/{target}:{version()}"


def version() -> str:
    source = (place.ROOT / "gateway" / "fairlead" / "version.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise ClusterError("gateway/fairlead/version.py holds no version", 'it needs the line __version__ = "…"')
    return found[1]


def build(targets: Sequence[str]) -> None:
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise ClusterError(f"there is no image {', '.join(unknown)}", f"choose of {', '.join(TARGETS)}")
    place.IMAGES.mkdir(parents=True, exist_ok=True)
    builder = Docker() if _docker_answers() else Buildah()
    for target in targets or TARGETS:
        began = time.monotonic()
        file = place.IMAGES / f"{target}.tar"
        builder.build(target, file)
        took, size = time.monotonic() - began, file.stat().st_size / 1e6
        print_progress(f"{name(target)} in {took:.0f} s, {size:.0f} MB uncompressed: {file}")
        if processes.alive("containerd"):
            containers.load([file])
            print_progress(f"{name(target)} loaded into the cluster")


class Docker:
    """A daemon that answers and can reach a registry, or has the base."""

    def build(self, target: str, file: Path) -> None:
        _build(["docker", "build", *_arguments(target), str(place.ROOT)])
        run(["docker", "save", "--output", file, name(target)], timeout=BUILD_TIMEOUT)


class Buildah:
    """Needs no daemon. Its store is the checkout's own, so that it neither needs nor leaves anything elsewhere."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("buildah is run as root here, and no Docker daemon answers", "sudo make image")
        place.require({"buildah": "buildah"})
        STORE.mkdir(parents=True, exist_ok=True)
        config = STORE / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{STORE}/run"\ngraphroot = "{STORE}/store"\n', encoding="utf-8"
        )
        os.environ["CONTAINERS_STORAGE_CONF"] = str(config)
        self._base = self._find_base()

    def build(self, target: str, file: Path) -> None:
        # In a chroot and on the machine's network: a sandbox often allows no more. What this machine's pip needs to
        # reach its index is mounted while the steps run, and is in no layer.
        mounts = ["/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"]
        shared = [f"--volume={path}:{path}:ro" for path in mounts if Path(path).exists()]
        _build(["buildah", "build", "--layers", "--pull-never", "--isolation=chroot", "--network=host", *shared,
                f"--build-arg=PYTHON_IMAGE={self._base}", *_arguments(target), str(place.ROOT)])  # fmt: skip
        file.unlink(missing_ok=True)
        run(
            ["buildah", "push", "--quiet", name(target), f"docker-archive:{file}:{name(target)}"], timeout=BUILD_TIMEOUT
        )

    def _find_base(self) -> str:
        official, debian = place.VERSIONS["image"]["python"], place.VERSIONS["image"]["debian_python"]
        for base in (official, debian):
            if run(["buildah", "images", "--quiet", base], quiet=True).strip():
                return str(base)
        if os.environ.get("FAIRLEAD_BASE") != "debian":
            try:
                run(["buildah", "pull", "--quiet", official], timeout=PULL_TIMEOUT)
                return str(official)
            except ClusterError:
                print_progress(f"no registry gave {official}: making {debian} from Debian's packages")
        run(["buildah", "pull", "--quiet", f"docker-archive:{_debian_base(debian)}"], timeout=BUILD_TIMEOUT)
        return str(debian)


def _debian_base(name: str) -> Path:
    """A minimal Debian with its Python, under the name that the official image of that Python has."""
    file = STORE / "base.tar"
    if file.exists():
        return file
    place.require({"debootstrap": "debootstrap"})
    root = STORE / "root"
    shutil.rmtree(root, ignore_errors=True)
    release = place.VERSIONS["debian"]["release"]
    run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv,python3-pip,ca-certificates",
         release, root, *_mirror(release)], timeout=BUILD_TIMEOUT)  # fmt: skip
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / waste, ignore_errors=True)
        (root / waste).mkdir()
    # As in the official image: `python` is there, and pip may install beside it.
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    (root / "usr/bin/python").symlink_to("python3")
    archive.write(file, name, root, archive.Config(command=("python3",), environment=("LANG=C.UTF-8",)))
    shutil.rmtree(root)
    return file


def _mirror(release: str) -> list[str]:
    """Where this machine's own apt finds that release; debootstrap knows the usual place where it does not."""
    if shutil.which("apt-get") is None:
        return []
    sites = run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Identifier: Packages"], quiet=True)
    return [line.split()[0] for line in sites.splitlines() if line.split()[1:] == [release]][:1]


def _arguments(target: str) -> list[str]:
    revision = run(["git", "-C", place.ROOT, "rev-parse", "HEAD"], quiet=True).strip() or "unknown"
    return [f"--target={target}", f"--tag={name(target)}", f"--build-arg=VERSION={version()}",
            f"--build-arg=REVISION={revision}"]  # fmt: skip


def _build(argv: list[str]) -> None:
    """Shows what it does: the first build takes minutes."""
    try:
        built = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=BUILD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as e:
        raise ClusterError(f"the build took longer than {BUILD_TIMEOUT:.0f} s", "does it reach the index?") from e
    if built.returncode:
        raise ClusterError(f"{argv[0]} could not build the image", "its last lines above say why")


def _docker_answers() -> bool:
    return shutil.which("docker") is not None and bool(
        run(["docker", "info", "--format", "{{.ID}}"], quiet=True).strip()
    )


def print_progress(text: str) -> None:
    print(f"image: {text}", file=sys.stderr, flush=True)
