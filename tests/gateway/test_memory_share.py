"""The share of the memory limit, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.routing.membership.memory_share import memory_share


def control_group(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)
    return folder


def test_share_is_the_working_set_over_the_limit(tmp_path: Path) -> None:
    statistics = "anon 300\ninactive_file 100\nactive_file 50\n"
    assert memory_share(control_group(tmp_path, max="1000\n", current="600\n", stat=statistics)) == 0.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"max": "max\n", "current": "600\n", "stat": "inactive_file 0\n"},
        {"max": "0\n", "current": "600\n", "stat": "inactive_file 0\n"},
        {"max": "1000\n", "current": "600\n", "stat": "one two three\n"},
        {"max": "1000\n", "current": "100\n", "stat": "inactive_file 200\n"},
    ],
    ids=["no files", "no limit", "zero", "nonsense", "more inactive than used"],
)
def test_share_is_zero_when_it_is_not_known(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory_share(control_group(tmp_path, **files)) == 0.0
