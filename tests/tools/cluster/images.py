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
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Source:
    """What images are made from."""

    folder: Path = place.ROOT
    tag: str = ""
    """Of another version of the source; empty for the present one, whose tag is the version of the package, which is
    the chart's appVersion too."""

    def name(self, target: str) -> str:
        return f"docker.io/fairlead/{target}:{self.tag or self.version()}"

    def version(self) -> str:
        found = re.search(
            r'^__version__ = "([^"]+)"$', (self.folder / "gateway/fairlead/version.py").read_text(), re.MULTILINE
        )
        if found is None:
            raise ClusterError("gateway/fairlead/version.py holds no version", 'it needs the line __version__ = "…"')
        return found[1]

    def revision(self) -> str:
        """The commit; that of another version is its tag."""
        return self.tag or run(["git", "-C", self.folder, "rev-parse", "HEAD"], quiet=True).strip() or "unknown"

    def archive(self, target: str) -> Path:
        """Each start of the cluster loads those of the present version."""
        return place.IMAGES / f"{target}.tar" if not self.tag else STORE / f"{target}-{self.tag}.tar"


def build(targets: Sequence[str], source: Source) -> None:
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise ClusterError(f"there is no image {', '.join(unknown)}", f"choose of {', '.join(TARGETS)}")
    place.IMAGES.mkdir(parents=True, exist_ok=True)
    STORE.mkdir(parents=True, exist_ok=True)
    builder = Docker() if _docker_answers() else Buildah()
    for target in targets or TARGETS:
        began = time.monotonic()
        name, file = source.name(target), source.archive(target)
        builder.build(source, target, file)
        took, size = time.monotonic() - began, file.stat().st_size / 1e6
        print_progress(f"{name} in {took:.0f} s, {size:.0f} MB uncompressed: {file}")
        if processes.alive("containerd"):
            containers.load([file])
            print_progress(f"{name} loaded into the cluster")


class Docker:
    """A daemon that answers and can reach a registry, or has the base."""

    def build(self, source: Source, target: str, file: Path) -> None:
        _build(["docker", "build", *_arguments(source, target), str(source.folder)])
        run(["docker", "save", "--output", file, source.name(target)], timeout=BUILD_TIMEOUT)


class Buildah:
    """Needs no daemon. Its store is the checkout's own, so that it neither needs nor leaves anything elsewhere."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("buildah is run as root here, and no Docker daemon answers", "sudo make image")
        place.require({"buildah": "buildah"})
        config = STORE / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{STORE}/run"\ngraphroot = "{STORE}/store"\n', encoding="utf-8"
        )
        os.environ["CONTAINERS_STORAGE_CONF"] = str(config)
        self._base = self._find_base()

    def build(self, source: Source, target: str, file: Path) -> None:
        # In a chroot and on the machine's network: a sandbox often allows no more. What this machine's pip needs to
        # reach its index is mounted while the steps run, and is in no layer.
        mounts = ["/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"]
        shared = [f"--volume={path}:{path}:ro" for path in mounts if Path(path).exists()]
        _build(["buildah", "build", "--layers", "--pull-never", "--isolation=chroot", "--network=host", *shared,
                f"--build-arg=PYTHON_IMAGE={self._base}", *_arguments(source, target), str(source.folder)])  # fmt: skip
        file.unlink(missing_ok=True)
        name = source.name(target)
        run(["buildah", "push", "--quiet", name, f"docker-archive:{file}:{name}"], timeout=BUILD_TIMEOUT)

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


def _arguments(source: Source, target: str) -> list[str]:
    return [f"--target={target}", f"--tag={source.name(target)}", f"--build-arg=VERSION={source.version()}",
            f"--build-arg=REVISION={source.revision()}"]  # fmt: skip


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
