"""Writes the parts of the chart and of docs/operator.md that have another file as their source.

    python charts/generate.py             writes them; `make chart-docs` runs it
    python charts/generate.py --check     only reports which are out of date; tests/chart/test_generated.py runs it

- The CRDs, and the schema of `gateways.*` in values.schema.json, come from the operator's Structs.
- The tables of README.md come from the comments of values.yaml and from the CRD of LinkGateway.
- The variables that `pod.env` must not set come from the operator's validation.
- The table of scaling rules in docs/operator.md comes from `autoscaler.rules.RULES`.

Everything around them is written by hand. It reads the operator's code and no cluster.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fairlead_operator.api.validation import RESERVED_ENV
from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.crd import crds, gateway_crd

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "fairlead"
FILLED = ("image", "redis", "tokens")
"""The fields that a LinkGateway requires and that the chart fills in."""
CONSTRAINTS = (
    "type", "enum", "pattern", "format", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
)  # fmt: skip

ENV_HEAD = (
    "# Generated from the operator's code by `make chart-docs`: what pod.env must not set, and what to set instead.\n"
)

Schema = dict[str, Any]


def crd_text(definition: Schema) -> str:
    return "# Generated from the operator's code by `make chart-docs`.\n" + yaml.safe_dump(
        definition, sort_keys=False, width=120, allow_unicode=True
    )


def spec_of(definition: Schema) -> Schema:
    spec: Schema = definition["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


def strict(node: Mapping[str, Any]) -> Schema:
    """`node` as plain JSON Schema that refuses unknown keys, which an API server would drop silently."""
    out: Schema = {key: node[key] for key in CONSTRAINTS if key in node}
    if "properties" in node:
        out["additionalProperties"] = False
        out["properties"] = {name: strict(inner) for name, inner in node["properties"].items()}
        if "required" in node:
            out["required"] = node["required"]
    elif isinstance(node.get("additionalProperties"), Mapping):
        out["additionalProperties"] = strict(node["additionalProperties"])
    if "items" in node:
        out["items"] = strict(node["items"])
    if node.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    return out


def schema_text(old: str, spec: Schema) -> str:
    shape = strict(spec)
    shape["type"] = ["object", "null"]  # null removes a LinkGateway that the chart would make
    shape["required"] = [name for name in shape.get("required", ()) if name not in FILLED]
    if not shape["required"]:
        del shape["required"]
    head, mark, _ = old.rpartition('    "linkGateway": ')
    if not mark:
        raise SystemExit("values.schema.json: $defs must end with linkGateway, which is written here")
    body = json.dumps(shape, indent=2, ensure_ascii=False).replace("\n", "\n    ")
    return f"{head}{mark}{body}\n  }}\n}}\n"


def values_rows(text: str) -> Iterator[tuple[str, object, str]]:
    """Path, default and description of each value that has a comment `# -- …`."""
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    description: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r" *# (-- )?(.*)", line):
            if comment[1]:
                description = [comment[2]]
            elif description:
                description.append(comment[2])
            continue
        if not (key := re.match(r"( *)([A-Za-z][A-Za-z0-9]*):", line)):
            description = []
            continue
        indent = len(key[1])
        path = [one for one in path if one[0] < indent] + [(indent, key[2])]
        if description:
            value: Any = values
            for _, name in path:
                value = value[name]
            yield ".".join(name for _, name in path), value, " ".join(description)
        description = []


def spec_rows(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, object, str]]:
    """Path, default and description of each field of the spec; an object comes before its fields."""
    for name, inner in node["properties"].items():
        here = f"{path}{name}"
        description = inner.get("description", "")
        if "enum" in inner:
            description = f"{description} One of {', '.join(inner['enum'])}.".strip()
        if name in FILLED and not path:
            description = f"{description} The chart's own unless given.".strip()
        if "properties" in inner:
            if description:
                yield here, None, description
            yield from spec_rows(inner, f"{here}.")
        else:
            default = inner.get("default")
            if name in node.get("required", ()) and (path or name not in FILLED):
                description = f"{description} Required.".strip()
            yield here, default, description


def table(head: str, rows: Iterator[tuple[str, object, str]]) -> str:
    lines = [f"| {head} | default | meaning |", "|---|---|---|"]
    for path, default, description in rows:
        shown = "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"
        lines.append(f"| `{path}` | {shown} | {description.replace('|', '&#124;')} |")
    return "\n".join(lines)


def rules_table() -> str:
    lines = ["| rule | how many pods it takes to |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{rule.name}` | {rule.purpose} |" for rule in RULES)])


def between(text: str, name: str, inner: str) -> str:
    begin, end = f"<!-- {name}: make chart-docs -->", f"<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"the marks {begin} and {end} must both be there")
    return f"{head}{begin}\n{inner}\n{end}{tail}"


def wanted() -> dict[Path, str]:
    spec = spec_of(gateway_crd())
    readme, schema, guide = CHART / "README.md", CHART / "values.schema.json", ROOT / "docs" / "operator.md"
    text = between(readme.read_text(), "values", table("value", values_rows((CHART / "values.yaml").read_text())))
    return {
        **{CHART / "crds" / f"{one['spec']['names']['plural']}.yaml": crd_text(one) for one in crds()},
        CHART / "files" / "operators-env.yaml": ENV_HEAD + yaml.safe_dump(dict(RESERVED_ENV), width=120),
        schema: schema_text(schema.read_text(), spec),
        readme: between(text, "fields", table("field", spec_rows(spec))),
        guide: between(guide.read_text(), "scaling rules", rules_table()),
    }


def main() -> int:
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)}; run make chart-docs", file=sys.stderr)
        return 1 if stale else 0
    if sys.argv[1:]:
        print("usage: generate.py [--check]", file=sys.stderr)
        return 2
    for path, text in wanted().items():
        if path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
