"""Random trees of folders and links, and random paths: the resolver finds what the kernel would find, inside the
root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.agent.builtin.files.path_resolver import PathResolver, ResolvedPath
from fairlead.agent.errors import CommandError

NAMES = ("a", "b", "c", "f")
PARTS = (*NAMES, "..", ".", "root", "out")
targets = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join)
entries = st.lists(
    st.tuples(
        st.lists(st.sampled_from((*NAMES, "root", "out")), min_size=1, max_size=4),
        st.sampled_from(("folder", "file", "link", "absolute")),
        targets,
    ),
    max_size=14,
)


def build(top: Path, made: list[tuple[list[str], str, str]]) -> None:
    """As much of it as can be."""
    for names, kind, target in made:
        path = top.joinpath(*names)
        try:
            if kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.touch()
            else:
                path.symlink_to(f"{top}/{target}" if kind == "absolute" else target)
        except OSError:
            continue  # something else is there, or the way leads in a circle


@pytest.fixture(scope="module")
def parent() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(os.path.realpath(name))


def find(root: Path, path: str) -> ResolvedPath | str:
    """The place, or the code of the error."""
    try:
        return PathResolver([str(root)], "roots").resolve(path)
    except CommandError as e:
        return e.error_code


@settings(max_examples=400, deadline=None)
@given(made=entries, asked=st.lists(st.sampled_from(PARTS), min_size=1, max_size=6))
def test_a_resolved_path_is_the_real_file_and_inside_the_root(
    parent: Path, made: list[tuple[list[str], str, str]], asked: list[str]
) -> None:
    with TemporaryDirectory(dir=parent) as name:
        top = Path(name)
        root = top / "root"
        root.mkdir()
        build(top, made)
        path = f"{root}/{'/'.join(asked)}"
        inside = f"{os.path.realpath(path)}/".startswith(f"{root}/")
        try:
            status: os.stat_result | None = os.stat(path)
        except OSError:
            status = None
        found = find(root, path)
        if isinstance(found, ResolvedPath):
            folder = os.readlink(f"/proc/self/fd/{found.folder}")
            found.close()
            assert f"{folder}/{found.name}/".startswith(f"{root}/")
            if status is None:
                assert found.status is None
            else:
                assert inside
                assert found.status is not None
                assert os.path.samestat(found.status, status)
        elif status is None:
            assert found in ("path_forbidden", "not_found")
        elif inside:
            assert found == "not_a_file", "only a way back up to a folder has no name to give"
            assert stat.S_ISDIR(status.st_mode)
        else:
            assert found == "path_forbidden"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "out").symlink_to("/etc")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("none", "none/below", "round", "out/passwd", "..", "a" * 300, "x/../y"):
        try:
            PathResolver([str(tmp_path)], "roots").resolve(f"{tmp_path}/{name}").close()
        except CommandError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    roots = PathResolver([str(tmp_path / "current")], "roots")
    roots.resolve(str(tmp_path / "current" / "file")).close()
    roots.resolve(str(tmp_path / "v1" / "file")).close()
    with pytest.raises(CommandError, match="outside"):
        roots.resolve(str(tmp_path / "v2" / "file"))
