"""The layout of the project: nothing breaks the standard library, the small install of an agent, or a fresh clone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.clone import project_files

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for folder in ("gateway", "operator") for path in (ROOT / folder).rglob("*.py"))

HEAVY = (
    "starlette",
    "redis",
    "kopf",
    "kubernetes",
    "rich",
    "uvicorn",
    "uvloop",
    "httptools",
    "httpx2",
    "prometheus_client",
    "opentelemetry",
)
"""What the base install does not have, and what `--help` must not wait for."""

BLOCKED = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code: str, *flags: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FAIRLEAD_"))}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_operator_is_a_folder_and_not_a_module() -> None:
    assert not list((ROOT / "operator").glob("*.py")), "a module named `operator` shadows the standard library"
    done = python("import operator; print(operator.add(1, 2))")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_only_support_is_a_package_of_the_tests() -> None:
    packages = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("__init__.py")}
    assert packages == {"support"}, "importlib mode: a package here collides with the source's"


def test_tests_and_tools_change_no_import_path() -> None:
    """`tests` is on the path (see pyproject.toml), so `support` and the programs are imported by their names."""
    changing = "sys.path" + ".insert"
    assert not [path for path in (ROOT / "tests").rglob("*.py") if changing in path.read_text()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py" and not tree.body:
        return
    assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"


def test_no_file_names_the_machine_it_was_written_on() -> None:
    # Put together here, so that this file does not find itself.
    pattern = re.compile(rb"(?<![\w.~:-])/(" + b"work|ro" + rb"ot)/(?![*])")
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in project_files()
        for match in pattern.finditer(path.read_bytes())
    ]
    assert not found


def test_requirements_are_hashed_and_name_no_host() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert {path.stem for path in files} == {"base", "bench", "build", "dev", "docs", "gateway", "operator", "uv"}
    for path in files:
        text = path.read_text()
        assert "://" not in text, f"{path.name} names a host"
        assert "--index-url" not in text
        assert "--find-links" not in text
        pins = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
        blocks = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
        assert pins
        for pin, block in zip(pins, blocks, strict=True):
            assert "==" in pin, f"{path.name}: {pin} is not pinned"
            assert "--hash=sha256:" in block, f"{path.name}: {pin} has no hash"


def test_requirements_satisfy_pyproject() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, extras = table["project"], table["project"]["optional-dependencies"]
    asked = {
        "base": project["dependencies"],
        "gateway": [*project["dependencies"], *extras["gateway"], *extras["cli"]],
        "operator": [*project["dependencies"], *extras["operator"]],
        "build": table["build-system"]["requires"],
        "dev": [
            *project["dependencies"],
            *extras["gateway"],
            *extras["cli"],
            *extras["operator"],
            *table["dependency-groups"]["dev"],
        ],
    }
    for name, wanted in asked.items():
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        pinned = dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^ ]+)", text))
        for one in map(Requirement, wanted):
            version = pinned.get(canonicalize_name(one.name))
            assert version, f"{name}.txt lacks {one.name}: make requirements"
            assert one.specifier.contains(version), f"{name}.txt has {one.name} {version}: make requirements"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fairlead.cli.main import cli\n"
        "for args in (['--help'], ['exec', '--help'], ['serve', '--help'], ['demo', '--help']):\n"
        "    assert CliRunner().invoke(cli, args).exit_code == 0, args\n"
        f"print(sorted(set(sys.modules) & set({HEAVY!r} + ('msgspec', 'asyncio.base_events'))))"
    )
    done = python(code, "-P")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_node_loads_opentelemetry_only_for_a_collector() -> None:
    code = (
        "import sys\n"
        "import fairlead.cli.serve.node_server\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "import opentelemetry.sdk.metrics, opentelemetry.sdk.trace\n"  # it can still be had
    )
    done = python(code, "-P")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def base_modules() -> list[str]:
    """All of the rooms that an agent's machine loads."""
    package = ROOT / "gateway" / "fairlead"
    paths = [
        *(package / "agent").rglob("*.py"),
        *(package / "wire").rglob("*.py"),
        package / "carrier" / "client.py",
    ]
    names = (path.relative_to(package.parent).with_suffix("").as_posix().replace("/", ".") for path in paths)
    return sorted(name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))


def test_the_base_install_is_enough_for_an_agent() -> None:
    names = base_modules()
    assert {"fairlead.agent", "fairlead.wire", "fairlead.carrier.client"} <= set(names)
    done = python(BLOCKED + "".join(f"import {name}\n" for name in names), "-P")
    assert done.returncode == 0, done.stderr


def test_the_base_install_is_enough_for_the_mock_gateway() -> None:
    """It is the first tool of whoever writes an agent, and that one needs no gateway."""
    play = "from fairlead.cli.main import cli; cli(['mock-gateway', '--port', '0', '--only', 'cancel', '--', 'false'])"
    done = python(BLOCKED + play, "-P")
    assert done.returncode == 1
    assert "the agent's process has ended with 1" in done.stdout, done.stdout + done.stderr


def test_the_import_block_blocks() -> None:
    assert "blocked: starlette" in python(BLOCKED + "import starlette", "-P").stderr
