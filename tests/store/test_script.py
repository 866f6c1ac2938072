from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from fairlead.store.script import Script, load


def test_sha_is_what_the_server_computes() -> None:
    source = "#!lua\nreturn 1"
    assert Script("one", source).sha.decode() == hashlib.sha1(source.encode()).hexdigest()


def test_scripts_without_the_header_are_refused() -> None:
    with pytest.raises(ValueError, match="script one does not begin with #!lua"):
        Script("one", "return 1")


def test_scripts_are_loaded_from_package_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lua_of_a_room"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "greet.lua").write_text("#!lua\nreturn 'grüß'", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("lua_of_a_room", "greet") == Script("greet", "#!lua\nreturn 'grüß'")
    del sys.modules["lua_of_a_room"]
