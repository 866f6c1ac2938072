"""The documentation: what it names exists, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from support.clone import project_files

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
FENCE = re.compile(r"(?ms)^```.*?^```[ ]*$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_every_line_of_the_failure_matrix_names_tests_that_exist() -> None:
    lines = (ROOT / "docs" / "delivery.md").read_text().splitlines()
    matrix: list[str] = []
    for start, head in enumerate(lines):
        if head.startswith("| fault ") and head.endswith("| tested by |"):
            matrix += takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    assert len(matrix) >= 60
    for line in matrix:
        named = NAMED.findall(line)
        assert named, line
        for file, test in named:
            found = list((ROOT / "tests").rglob(file))
            assert any(f"def {test}(" in path.read_text() for path in found), f"{file}::{test}"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repository viewers make them."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#{1,6} (.+)$", FENCE.sub("", page.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = 0
        while anchor in found:
            again += 1
            anchor = f"{base}-{again}"
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", project_files("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(there), f"{target}: {there.name} has no such heading"


def test_a_package_index_gets_a_readme_without_links_into_the_repository() -> None:
    command = [sys.executable, "-I", "-m", "hatchling", "metadata", "readme"]
    readme = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "# Fairlead" in readme
    assert "`docs/agent.md`" in readme, "links become the names of their files"
    assert [target for target in LINK.findall(readme) if not target.startswith("https://")] == []


MAP = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
TO_BE_MADE = re.compile(r"(?m)^\d+\. `([^`]+)`, new:")
"""The files that a recipe creates."""


@pytest.mark.parametrize("page", MAP)
def test_every_path_that_the_map_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    made = set(TO_BE_MADE.findall(text))
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)) | set(re.findall(r"(?<=[ =])tests/[\w./-]+", text))
    named |= {name for name in re.findall(r"`([\w-]+)`", text) if (ROOT / name).exists()}
    assert page == "SECURITY.md" or len(named) > 20
    missing = [name for name in sorted(named - made) if not name.startswith(".") and not (ROOT / name).exists()]
    assert missing == []


def test_the_map_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "gateway" / "fairlead"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {"node", "errors", "text"}
    picture = text.split("```mermaid")[2].split("```")[0]
    assert rooms <= set(re.findall(r"\w+", picture)), "the picture of the rooms"


ORDINARY = {
    "programming": """
        acceptance add answer api approval arrays auth background binary body buffer builtin call callbacks caller
        check checks child children class client comparison conditions configuration consistency consume context
        controller copy create cursor decide details document due error errors event events exporter extensions factory
        fairlead feed field file files finish folder formats gauges get head host hosts identifiers ids info installed
        key known latency leader limit line list loading local log logs lua main mark measurement merge metrics models
        name names notify object objects open operation operations option options os other out owner parser path paths
        plain plots port ports problem problems process processes program progress rate raw read reader refresh remove
        replay replies reply report reschedule resolver restart restarts rights route routes run runner running runtime
        schema schemas script scripts secret secrets serve server set setting settings share shared simulated slot
        slots socket sockets start status structural system table take task tasks text thread threads time timeout
        timeouts timing token tokens total totals type types unbind under utilisation validation version watch writer
    """,
    "networks and HTTP": """
        accept access address admin app asgi channel credentials dial endpoint headers hosts http idle ingress
        layers load network openapi proxy response sender transport tunnel upgrade url websocket
    """,
    "operating systems": """
        confinement cpu descendants disk environment escapes exec exit forked pipe pool private proc protected
        sd shell signals stdio supervisor sys terminal
    """,
    "Kubernetes": """
        applier autoscaler autoscalers cluster crd deployment down election executor failure hpa informer kube operator
        pod rbac readiness reconnect resources scale scaling spec tolerance workload zone
    """,
    "telemetry": """
        counters decaying health histogram observability snapshot span spans tracing usage
    """,
    "products and their terms": """
        agones click keda prometheus redis sentinels uvicorn
    """,
    "what a person does": """
        balancer blocking cli connector coordinator cp file forget put query shell ready top transfer why
    """,
}
"""Words of file names that need no entry in the glossary, by the field that a reader knows them from."""


def test_every_word_of_a_file_name_is_in_the_glossary_or_is_ordinary() -> None:
    known = {word for words in ORDINARY.values() for word in words.split()}
    page = (ROOT / "docs" / "glossary.md").read_text()
    for term in re.findall(r"\*\*([^*]+)\*\*", page):
        known |= set(term.lower().split())
    unknown: dict[str, str] = {}
    for package in (ROOT / "gateway" / "fairlead", ROOT / "operator" / "fairlead_operator"):
        for path in [*package.rglob("*.py"), *package.rglob("*.lua")]:
            name = path.parent.name if path.stem == "__init__" else path.stem
            for word in name.strip("_").split("_"):
                if not {word, word.removesuffix("s"), word.removesuffix("es"), word + "s"} & known:
                    unknown[word] = str(path.relative_to(ROOT))
    assert unknown == {}, "explain these words in docs/glossary.md, or choose better names"
