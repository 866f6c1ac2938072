"""Prints the CustomResourceDefinitions, whose schemas are those of the Structs in `api`.

python -m fairlead_operator.crd            YAML on stdout: what charts/ and k8s/ contain; a test compares them
python -m fairlead_operator.crd --apply    applies them to the cluster, server-side, as the chart's upgrade job does
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import yaml

from fairlead_operator.api import gateway_spec, link_operation
from fairlead_operator.api.field_types import ApiStruct
from fairlead_operator.api.gateway_spec import GROUP, VERSION, LinkGatewaySpec
from fairlead_operator.api.gateway_status import LinkGatewayStatus
from fairlead_operator.api.link_operation import LinkOperationSpec, LinkOperationStatus
from fairlead_operator.api.structural_schema import Schema, schema, validation
from fairlead_operator.api.validation import ValidationRule

FIELD_MANAGER = "helm"
"""Helm 4 applies the files of crds/ under this name at each install, and refuses fields that another manager has
changed."""

NAME_RULES = (
    ValidationRule(
        "size(self.metadata.name) <= 40",
        "the name must have at most 40 characters: pods and nodes are named after it, and nodes have at most 64",
    ),
    ValidationRule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name must begin with a letter and contain no dots: Services are named after it",
    ),
)

COLUMNS = (
    ("Ready", "integer", ".status.readyReplicas", "Pods that take links"),
    ("Desired", "integer", ".status.desiredReplicas", "Pods that the last decision asks for"),
    ("Links", "integer", ".status.links", "Links of agents"),
    ("Util%", "integer", ".status.utilisationPercent", "Links against the capacity of the ready pods"),
    ("Skew", "string", ".status.skew", "Links of the fullest pod, divided by the mean"),
    ("Phase", "string", ".status.phase", "What the fleet is doing"),
    ("Age", "date", ".metadata.creationTimestamp", "Age"),
)
OPERATION_COLUMNS = (
    ("Gateway", "string", ".spec.gateway.name", "The LinkGateway that it is about"),
    ("Type", "string", ".spec.type", "What to do"),
    ("Pod", "string", ".spec.pod", "The pod to replace"),
    ("Phase", "string", ".status.phase", "How far it is"),
    ("Left", "integer", ".status.linksLeft", "Links that are left on the pods to replace"),
    ("Age", "date", ".metadata.creationTimestamp", "Age"),
)
OPERATION_COLUMNS_WIDE = (("Message", "string", ".status.message", "What is happening, or how it ended"),)
"""Shown only with -o wide, because it is a sentence."""


def crds() -> list[Schema]:
    """All definitions of the API group."""
    return [gateway_crd(), operation_crd()]


def gateway_crd() -> Schema:
    """The definition of LinkGateway."""
    body = {
        "description": "A fleet of gateway pods that is scaled by the links of its agents.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [validation(rule) for rule in NAME_RULES],
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
        "description": "One request to one fleet of gateway pods, and how it ended.",
        "type": "object",
        "required": ["spec"],
        "properties": _properties(LinkOperationSpec, LinkOperationStatus),
    }
    columns = [*_columns(OPERATION_COLUMNS), *_columns(OPERATION_COLUMNS_WIDE, priority=1)]
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


def _properties(spec: type[ApiStruct], status: type[ApiStruct]) -> Schema:
    return {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": schema(spec),
        "status": schema(status, defaults=False),
    }


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
