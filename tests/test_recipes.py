"""The recipes of CONTRIBUTING.md, played as a newcomer would: each names the files to change and the commands to run.

What must be true of a recipe: the sample change touches the files that it names and no other, its commands then pass,
and they fail when a part that the tools hold is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clone import ROOT, bring_bytecode, clean_environment, clone_into

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A sample change. An edit is (file, what stands there once, what stands there then); "" makes a new file."""

    heading: str
    edits: tuple[tuple[str, str, str], ...]
    held: str
    """A file whose part of the change the commands ask for."""
    generated: tuple[str, ...] = ()
    shows: str = ""
    """What the commands print."""


METHOD = Recipe(
    "A built-in method",
    (
        (
            "gateway/fairlead/agent/builtin/sys_load.py",
            "",
            '''"""`sys.load`: how busy this machine is."""

from __future__ import annotations

import os

from fairlead.agent.errors import CommandError


async def system_load() -> dict[str, float]:
    """The load averages of 1, 5 and 15 minutes. Raises CommandError `load_unknown`."""
    try:
        one, five, fifteen = os.getloadavg()
    except OSError as e:
        raise CommandError("load_unknown", f"this machine does not report its load: {e}") from e
    return {"one": one, "five": five, "fifteen": fifteen}
''',
        ),
        (
            "gateway/fairlead/agent/builtin/methods.py",
            "from fairlead.agent.builtin.sys_info import system_info\n",
            "from fairlead.agent.builtin.sys_info import system_info\n"
            "from fairlead.agent.builtin.sys_load import system_load\n",
        ),
        (
            "gateway/fairlead/agent/builtin/methods.py",
            '    "sys.info": lambda context: system_info,\n',
            '    "sys.info": lambda context: system_info,\n    "sys.load": lambda context: system_load,\n',
        ),
        (
            "gateway/fairlead/methods/library.py",
            '    Method("sys.info", "Describe the host.", "reads", result=HostInfo),\n',
            '    Method("sys.info", "Describe the host.", "reads", result=HostInfo),\n'
            '    Method("sys.load", "Tell how busy the host is.", "reads", result=HostLoad),\n',
        ),
        (
            "gateway/fairlead/methods/library.py",
            "_ALL: Final = (\n",
            """class HostLoad(ResultMembers):
    one: Annotated[float, Meta(description="the average of 1 minute")]
    five: float
    fifteen: float


_ALL: Final = (
""",
        ),
        ("docs/agent.md", "### `sys.info`\n", "### `sys.load`\n\nNo arguments; the load averages.\n\n### `sys.info`\n"),
        (
            "docs/agent.md",
            "| `sys.info` | ",
            "| `sys.load` | learn how busy the machine is | nothing | |\n| `sys.info` | ",
        ),
        (
            "docs/agent.md",
            "| `unsupported` | ",
            "| `load_unknown` | sys.load | the machine does not report its load |\n| `unsupported` | ",
        ),
        (
            "tests/agent/test_sys_load.py",
            "",
            '''"""`sys.load`, through a link."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairlead.agent.builtin import builtin_agent

from support.agent.scripted_gateway import Gateway


async def test_the_load_is_told(gateway: Gateway, serve: Callable[..., Any]) -> None:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    link = await gateway.linked()
    await link.command("0" * 36, "sys.load")
    end = await link.end("0" * 36)
    assert end.state == "ok"
    assert sorted(json.loads(end.payload)) == ["fifteen", "five", "one"]
''',
        ),
        (
            "tests/agent/test_shell.py",
            "service.status, sys.info; disabled",
            "service.status, sys.info, sys.load; disabled",
        ),
    ),
    held="docs/agent.md",
)

SCALING_RULE = Recipe(
    "A scaling rule",
    (
        (
            "operator/fairlead_operator/autoscaler/rules/commands.py",
            "",
            '''"""The rule `commands`: no pod runs more commands than it was measured with. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot

COMMANDS_PER_POD = 1000
"""Commands that run on the links of one pod."""


class CommandsRule(ScalingRule):
    name = "commands"
    purpose = "run all commands that are in flight, 1,000 on each pod"

    def required_pods(self, snapshot: Snapshot) -> int:
        return math.ceil(sum(pod.commands for pod in snapshot.fleet.pods if pod.fresh) / COMMANDS_PER_POD)
''',
        ),
        (
            "operator/fairlead_operator/autoscaler/rules/__init__.py",
            "from fairlead_operator.autoscaler.rules.cpu",
            "from fairlead_operator.autoscaler.rules.commands import CommandsRule\n"
            "from fairlead_operator.autoscaler.rules.cpu",
        ),
        (
            "operator/fairlead_operator/autoscaler/rules/__init__.py",
            "    ReconnectRule(),\n",
            "    ReconnectRule(),\n    CommandsRule(),\n",
        ),
        (
            "tests/operator/test_scaling_rules.py",
            "from fairlead_operator.autoscaler.rules.cpu",
            "from fairlead_operator.autoscaler.rules.commands import CommandsRule\n"
            "from fairlead_operator.autoscaler.rules.cpu",
        ),
        (
            "tests/operator/test_scaling_rules.py",
            "def test_utilisation_looks_ahead_by_the_lead_time() -> None:\n",
            """def test_commands_are_spread_over_the_pods() -> None:
    pods = tuple(PodObservation(f"p{i}", age=1.0, capacity=1000, commands=600) for i in range(2))
    fleet = FleetObservation(2, pods)
    busy = take_snapshot(fleet, History().observe(fleet, 0.0), SPEC, 0.0)
    assert CommandsRule().required_pods(busy) == 2
    assert CommandsRule().required_pods(snapshot(900)) == 0


def test_utilisation_looks_ahead_by_the_lead_time() -> None:
""",
        ),
    ),
    held="operator/fairlead_operator/autoscaler/rules/__init__.py",
    generated=("docs/operator.md",),
)

CLOSE_CODE = Recipe(
    "A close code",
    (
        (
            "gateway/fairlead/wire/close_codes.py",
            '    SUPERSEDED = 4007, CloseKind.REPLACED, "superseded by a newer attempt of the same process"\n',
            '    REBALANCED = 4005, CloseKind.MOVED, "another node has more room: reconnect"\n'
            '    SUPERSEDED = 4007, CloseKind.REPLACED, "superseded by a newer attempt of the same process"\n',
        ),
        (
            "docs/protocol.md",
            "| 4007 | superseded |",
            "| 4005 | rebalanced | gateway | another node has more room | yes |\n| 4007 | superseded |",
        ),
        (
            "tests/wire/test_close_codes.py",
            "{1000, 1001, 1012, 4000, 4004, 4006, 4007, 4507}",
            "{1000, 1001, 1012, 4000, 4004, 4005, 4006, 4007, 4507}",
        ),
    ),
    held="docs/protocol.md",
)

SETTING = Recipe(
    "A setting",
    (
        (
            "gateway/fairlead/settings/table.py",
            '    "accept_rate": number(',
            '    "claims_at_once": whole_number(1, 10_000, "Maximum number of registrations at the same time"),\n'
            '    "accept_rate": number(',
        ),
        (
            "gateway/fairlead/settings/settings.py",
            "    drain_rate: float = 200.0\n",
            "    claims_at_once: int = 128\n    drain_rate: float = 200.0\n",
        ),
        (
            "docs/operations.md",
            "## Health\n",
            "## Registrations\n\nAt most `claims_at_once` agents register at the same time.\n\n## Health\n",
        ),
    ),
    held="gateway/fairlead/settings/settings.py",
    shows="--claims-at-once",
)

METRIC = Recipe(
    "A metric with its panel and its alert",
    (
        (
            "gateway/fairlead/telemetry/metrics.py",
            "        self.credentials_refused = Counter(",
            "        self.unwelcomed = Counter(\n"
            '            "fairlead_links_unwelcomed_total", "Links that ended before their welcome", registry=r\n'
            "        )\n"
            "        self.credentials_refused = Counter(",
        ),
        (
            "docs/telemetry.md",
            "| `fairlead_handshakes_rejected_total{reason}` |",
            "| `fairlead_links_unwelcomed_total` | counter | links that ended before their welcome |\n"
            "| `fairlead_handshakes_rejected_total{reason}` |",
        ),
        (
            "charts/observability/dashboards.py",
            '            Panel("Upgrades refused", ',
            '            Panel("Links without welcome", "ops", "Links that ended before their welcome.",\n'
            '                  (rate("fairlead_links_unwelcomed_total", FLEET, "pod"),)),\n'
            '            Panel("Upgrades refused", ',
        ),
        (
            "charts/observability/alerts.py",
            '    Alert("FairleadSpansDropped", ',
            "    # One a second: an agent whose hello is refused comes back every minute or so.\n"
            '    Alert("FairleadLinksUnwelcomed", "warning", "10m",\n'
            '          f"sum {BY} (rate(fairlead_links_unwelcomed_total[5m])) > 1",\n'
            '          f"{WHERE}: links end before their welcome"),\n'
            '    Alert("FairleadSpansDropped", ',
        ),
        (
            "docs/runbooks/FairleadLinksUnwelcomed.md",
            "",
            """# FairleadLinksUnwelcomed

**Symptom.** Agents connect and are not online.

**Meaning.** More than one link a second ends before the gateway has welcomed its agent.

**First.**

```sh
fairlead agents ls
kubectl -n $NAMESPACE describe linkgateway $GATEWAY
kubectl -n $NAMESPACE get events --sort-by=.lastTimestamp
```

**Then.** Look for the close codes in the log of the nodes.
""",
        ),
        (
            "docs/runbooks/README.md",
            "| [FairleadSpansDropped]",
            "| [FairleadLinksUnwelcomed](FairleadLinksUnwelcomed.md) | warning | links end before their welcome |\n"
            "| [FairleadSpansDropped]",
        ),
        (
            "tests/observability/test_alerts.py",
            '    "FairleadSpansDropped": Case(',
            '    "FairleadLinksUnwelcomed": Case(\n'
            '        "20m",\n'
            '        {"fairlead_links_unwelcomed_total{ID}": "0+120x30"},\n'
            '        ({"fairlead_links_unwelcomed_total{ID}": "0+30x30"},),\n'
            "    ),\n"
            '    "FairleadSpansDropped": Case(',
        ),
    ),
    held="docs/telemetry.md",
    generated=("charts/fairlead/files/dashboards/overview.json", "charts/fairlead/files/rules/fairlead.yaml"),
)

RECIPES = {recipe.heading: recipe for recipe in (METHOD, SCALING_RULE, CLOSE_CODE, SETTING, METRIC)}


def _section(heading: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes\n", 1)[1]
    return text.split(f"### {heading}\n", 1)[1].split("\n### ")[0]


def _named(section: str) -> set[str]:
    """The files that the steps of a recipe begin with, and those that a step says are written by make."""
    steps = re.findall(r"(?ms)^\d+\. (.*?)(?=^\d+\. |^\n)", section)
    named: set[str] = set()
    for step in steps:
        if begins := re.match(r"`((?:[\w.-]+/)+[\w.-]+)`(?:, new)?:", step):
            named.add(begins.group(1))
        elif step.startswith("`make "):
            named |= set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+)`", step))
    return named


def test_every_recipe_is_tested() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes\n", 1)[1]
    assert set(re.findall(r"(?m)^### (.+)$", text)) == set(RECIPES)


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_names_every_file_of_the_change_and_its_commands_pass(heading: str, tmp_path: Path) -> None:
    recipe, section = RECIPES[heading], _section(heading)
    assert _named(section) == {file for file, _, _ in recipe.edits} | set(recipe.generated)
    clone_into(tmp_path)
    _run(tmp_path, "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm start")
    _run(tmp_path, f"{sys.executable} -I requirements/install.py dev")
    bring_bytecode(tmp_path)
    for file, old, new in recipe.edits:
        path = tmp_path / file
        if old:
            text = path.read_text()
            assert text.count(old) == 1, f"{file} has changed: {old!r} stands there {text.count(old)} times"
            path.write_text(text.replace(old, new))
        else:
            path.write_text(new)
    python = [file for file, _, _ in recipe.edits if file.endswith(".py")]
    _run(tmp_path, f".venv/bin/ruff check {' '.join(python)}")
    _run(tmp_path, f".venv/bin/ruff format --check {' '.join(python)}")
    output = _run_all(tmp_path, section)
    assert recipe.shows in output
    touched = set(_run(tmp_path, "git add -A && git diff --cached --name-only").split())
    assert touched == _named(section), "a file was written that the recipe does not name"

    _run(tmp_path, f"git checkout -q HEAD -- {recipe.held}")
    with pytest.raises(AssertionError, match=r"\d failed"):
        _run_all(tmp_path, section, PYTEST_ADDOPTS="--exitfirst")


def _run_all(folder: Path, section: str, **variables: str) -> str:
    (block,) = re.findall(r"(?ms)^```sh\n(.*?)^```", section)
    return "".join(_run(folder, command, **variables) for command in block.splitlines())


def _run(folder: Path, command: str, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        # CI=1 asks for programs that this clone has not built.
        env={name: value for name, value in clean_environment().items() if name != "CI"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout
