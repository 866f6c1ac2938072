"""The files that a node reads again: what is no regular file stops nothing, and every replacement is noticed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.authorization.policy_watch import PolicyWatch
from fairlead.authorization.users import Users
from fairlead.configuration.watched_file import file_signature
from fairlead.errors import ConfigError
from fairlead.routing.agents.issuer_key import IssuerKeyFile

READERS: dict[str, Callable[[Path], object]] = {
    "roles": lambda path: PolicyWatch(path).load(),
    "issuers": lambda path: Users(path).load(),
    "issuer_key": lambda path: IssuerKeyFile(path, "fleet"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for wrong in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "missing"):
        with pytest.raises(ConfigError, match=r"no regular file|cannot be read"):
            read(wrong)


def test_a_replacement_of_the_same_age_and_size_is_noticed(tmp_path: Path) -> None:
    """As a deployment makes it that sets all times to the same moment."""
    path, other = tmp_path / "file", tmp_path / "other"
    seen = set()
    for file, text in ((path, "one"), (other, "two")):
        file.write_text(text)
        os.utime(file, (0, 0))
        seen.add(file_signature(path))
        file.replace(path)
        seen.add(file_signature(path))
    path.write_text("2nd")
    os.utime(path, (0, 0))
    seen.add(file_signature(path))
    assert len(seen) >= 3
    path.unlink()
    assert file_signature(path) is None
