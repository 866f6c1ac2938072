"""Writes an image as an archive that docker, podman, buildah and containerd load: one layer, one configuration.

Used for the two images that no Dockerfile can make where there is no registry: the pods' pause container, and the
base with Python in it. The same input gives the same bytes: no time and no owner of this machine goes in.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Config:
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    user: str = ""


def write(file: Path, name: str, content: Path, config: Config) -> None:
    """`content` is the root folder of the image, or one program that becomes its only file."""
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        layer = Path(scratch, "layer.tar")
        folder, members = (content, ["."]) if content.is_dir() else (content.resolve().parent, [content.name])
        subprocess.run(
            ["tar", "--sort=name", "--mtime=@0", "--numeric-owner", "-C", folder, "-cf", layer, *members], check=True
        )
        with layer.open("rb") as opened:
            digest = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
        about = _json(
            {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "created": EPOCH,
                "config": {
                    "Env": [_PATH, *config.environment],
                    "Entrypoint": list(config.entrypoint) or None,
                    "Cmd": list(config.command) or None,
                    "User": config.user,
                },
                "rootfs": {"type": "layers", "diff_ids": [digest]},
                "history": [{"created": EPOCH, "created_by": "tests/tools/cluster/archive.py"}],
            }
        )
        about_name = hashlib.sha256(about).hexdigest() + ".json"
        manifest = _json([{"Config": about_name, "RepoTags": [name], "Layers": ["layer.tar"]}])
        unfinished = Path(scratch, "archive.tar")
        with tarfile.open(unfinished, "w") as out:
            for member, data in ((about_name, about), ("manifest.json", manifest)):
                header = tarfile.TarInfo(member)
                header.size = len(data)
                out.addfile(header, io.BytesIO(data))
            out.add(layer, "layer.tar", filter=_anonymous)
        unfinished.replace(file)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.mode = 0, 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
