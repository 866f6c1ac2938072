"""Prints the CustomResourceDefinitions that the Structs of `spec`, `state` and `operation` amount to.

    python -m fairlead_operator.crd            YAML on stdout: what charts/ and k8s/ hold, and a test compares
    python -m fairlead_operator.crd --apply    applies them to the cluster, server-side (the chart's upgrade job)

Structural schemas know no references and no alternatives, so what msgspec prints is inlined, and `null` is dropped.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from fairlead_operator.api import gateway_spec, link_operation, validation
from fairlead_operator.api.gateway_spec import GROUP, VERSION, LinkGatewaySpec
from fairlead_operator.api.gateway_status import LinkGatewayStatus
from fairlead_operator.api.link_operation import LinkOperationSpec, LinkOperationStatus
from fairlead_operator.api.validation import Rule

Schema = dict[str, Any]
FIELD_MANAGER = "helm"
"""Helm 4 applies the files of crds/ under this name at each install, and refuses what another manager has changed."""

NAME = (
    Rule(
        "size(self.metadata.name) <= 40",
        "the name must have at most 40 characters: with what Kubernetes appends it names nodes, which have 64",
    ),
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name must begin with a letter and have no dots: Services are named after it",
    ),
)

COLUMNS = (
    ("Ready", "integer", ".status.readyReplicas", "Pods that take links"),
    ("Desired", "integer", ".status.desiredReplicas", "Pods that are wanted"),
    ("Links", "integer", ".status.links", "Links of agents"),
    ("Util%", "integer", ".status.utilisationPercent", "Links against the capacity of the ready pods"),
    ("Skew", "string", ".status.skew", "The fullest pod against the mean"),
    ("Phase", "string", ".status.phase", "What goes on"),
    ("Age", "date", ".metadata.creationTimestamp", "Age"),
)
OPERATION_COLUMNS = (
    ("Gateway", "string", ".spec.gateway.name", "The LinkGateway that it is about"),
    ("Type", "string", ".spec.type", "What is to be done"),
    ("Pod", "string", ".spec.pod", "The pod that goes"),
    ("Phase", "string", ".status.phase", "How far it is"),
    ("Left", "integer", ".status.linksLeft", "Links on the pods that go"),
    ("Age", "date", ".metadata.creationTimestamp", "Age"),
)
OPERATION_WIDE = (("Message", "string", ".status.message", "What goes on"),)
"""For -o wide: it is a sentence."""


def crds() -> list[Schema]:
    """All definitions of the group."""
    return [gateway_crd(), operation_crd()]


def gateway_crd() -> Schema:
    """The definition of LinkGateway."""
    body = {
        "description": "A fleet of gateway pods that scales on the links of its agents.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [_validation(rule) for rule in NAME],
        "properties": _properties(LinkGatewaySpec, LinkGatewayStatus),
    }
    scale = {
        "specReplicasPath": ".spec.scaling.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _definition(
        gateway_spec.KIND, gateway_spec.PLURAL, "lgw", _columns(COLUMNS), body, {"status": {}, "scale": scale}
    )


def operation_crd() -> Schema:
    """The definition of LinkOperation."""
    body = {
        "description": "One request to one fleet of gateway pods, and what became of it.",
        "type": "object",
        "required": ["spec"],
        "properties": _properties(LinkOperationSpec, LinkOperationStatus),
    }
    columns = [*_columns(OPERATION_COLUMNS), *_columns(OPERATION_WIDE, priority=1)]
    return _definition(link_operation.KIND, link_operation.PLURAL, "lop", columns, body, {"status": {}})


def _definition(
    kind: str, plural: str, short: str, columns: list[Schema], body: Schema, subresources: Schema
) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["fairlead"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": body},
                }
            ],
        },
    }


def _columns(columns: Iterable[tuple[str, str, str, str]], **more: int) -> list[Schema]:
    return [
        {"name": name, "type": kind, "jsonPath": path, "description": text, **more}
        for name, kind, path, text in columns
    ]


def _properties(asked: type[msgspec.Struct], told: type[msgspec.Struct]) -> Schema:
    return {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": schema(asked),
        "status": schema(told, defaults=False),
    }


def schema(shape: type[msgspec.Struct], *, defaults: bool = True) -> Schema:
    """`shape` as a structural schema. A status has no defaults: what was not written is not known."""
    (top,), parts = msgspec.json.schema_components([shape])
    said = {one.__name__: made for one, made in (*validation.RULES.items(), *link_operation.RULES.items())}
    return _inline(top, parts, said, defaults)


def _inline(
    node: Mapping[str, Any], parts: Mapping[str, Schema], said: Mapping[str, tuple[Rule, ...]], defaults: bool
) -> Schema:
    def go(inner: Mapping[str, Any]) -> Schema:
        return _inline(inner, parts, said, defaults)

    node = dict(node)
    if "anyOf" in node:  # of a field that may be absent: Kubernetes has no null
        (kept,) = (one for one in node.pop("anyOf") if one != {"type": "null"})
        node = {**kept, **{k: v for k, v in node.items() if not (k == "default" and v is None)}}
        return go(node)
    out: Schema = {"type": "string"} if "enum" in node else {}
    if "$ref" in node:
        name = node.pop("$ref").rpartition("/")[2]
        out = go(parts[name])
        if name in said:
            out["x-kubernetes-validations"] = [_validation(rule) for rule in said[name]]
    for key, value in node.items():
        if key == "title":
            continue
        if key == "default":
            if defaults:
                # Whole, though {} would be filled by the defaults inside: CEL looks at it before that.
                out[key] = _without_null(value) if "properties" in out else value
        elif key == "properties":
            out[key] = {name: go(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            out[key] = go(value)
        elif key == "required":
            if value:
                out[key] = value
        else:
            out[key] = value
    if out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("additionalProperties", None)  # both at once are refused
    return out


def _without_null(value: Any) -> Any:
    """A default of ours as Kubernetes takes it: what is not there is not said to be null."""
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    return value


def _validation(rule: Rule) -> Schema:
    said = {"rule": rule.holds, "message": rule.message}
    return {**said, "messageExpression": rule.told} if rule.told else said


def main() -> int:
    if sys.argv[1:] == ["--apply"]:
        from fairlead_operator.kube.cluster import apply_crds

        return asyncio.run(apply_crds(crds(), FIELD_MANAGER))
    if sys.argv[1:]:
        print("usage: python -m fairlead_operator.crd [--apply]", file=sys.stderr)
        return 2
    yaml.safe_dump_all(crds(), sys.stdout, sort_keys=False, width=120, allow_unicode=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
