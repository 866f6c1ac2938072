"""Writes the chart's dashboards and alert rules; with --check, only reports which of them are out of date.

    python -I charts/observability [--check]        called by make chart-docs; tests/observability runs the check

Python runs the folder as a program, so its modules import each other by their bare names. The program contacts neither
a cluster nor a Prometheus.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from alerts import rules
from dashboards import DASHBOARDS
from panels import dashboard_json

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "charts" / "fairlead" / "files"
HEAD = "# Generated from charts/observability/alerts.py by `make chart-docs`.\n"


def wanted() -> dict[Path, str]:
    made = {
        FILES / "dashboards" / f"{one.name}.json": json.dumps(dashboard_json(one), indent=1, ensure_ascii=False) + "\n"
        for one in DASHBOARDS
    }
    made[FILES / "rules" / "fairlead.yaml"] = HEAD + yaml.safe_dump(
        rules(), sort_keys=False, width=120, allow_unicode=True
    )
    return made


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print("usage: observability [--check]", file=sys.stderr)
        return 2
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        name = path.relative_to(ROOT)
        if sys.argv[1:]:
            print(f"stale: {name}; run make chart-docs", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted()[path])
        print(f"written: {name}")
    return 1 if stale and sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
