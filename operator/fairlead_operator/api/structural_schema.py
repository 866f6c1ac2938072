"""Converts the Structs of this package into Kubernetes' structural schemas. Pure.

`crd` puts them into the CustomResourceDefinitions, and `inputs.installed_crds` compares them with what the API server
has. A structural schema has no references and no alternatives, so references are inlined and `null` is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead_operator.api.field_types import ApiStruct
from fairlead_operator.api.link_operation import OPERATION_RULES
from fairlead_operator.api.validation import GATEWAY_RULES, ValidationRule

Schema = dict[str, Any]


def schema(struct: type[ApiStruct], *, defaults: bool = True) -> Schema:
    """`struct` as a structural schema. The schema of a status has no defaults, because a property that was not written
    is unknown.
    """
    (top,), components = msgspec.json.schema_components([struct])
    rules = {one.__name__: found for one, found in (*GATEWAY_RULES.items(), *OPERATION_RULES.items())}
    return _inline(top, components, rules, defaults)


def _inline(
    node: Mapping[str, Any],
    components: Mapping[str, Schema],
    rules: Mapping[str, tuple[ValidationRule, ...]],
    defaults: bool,
) -> Schema:
    def inline(inner: Mapping[str, Any]) -> Schema:
        return _inline(inner, components, rules, defaults)

    node = dict(node)
    if "anyOf" in node:  # a field that may be absent: a structural schema has no null
        (kept,) = (one for one in node.pop("anyOf") if one != {"type": "null"})
        return inline({**kept, **{k: v for k, v in node.items() if not (k == "default" and v is None)}})
    out: Schema = {"type": "string"} if "enum" in node else {}
    if "$ref" in node:
        name = node.pop("$ref").rpartition("/")[2]
        out = inline(components[name])
        if name in rules:
            out["x-kubernetes-validations"] = [validation(rule) for rule in rules[name]]
    for key, value in node.items():
        if key == "title" or (key == "required" and not value):
            continue
        if key == "default":
            if defaults:
                # The default is written in full. {} would be filled with the inner defaults, but CEL is evaluated
                # before that.
                out[key] = _without_null(value) if "properties" in out else value
        elif key == "properties":
            out[key] = {name: inline(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            out[key] = inline(value)
        else:
            out[key] = value
    if out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("additionalProperties", None)  # the API server does not accept both
    return out


def _without_null(value: Any) -> Any:
    """A default as Kubernetes accepts it, without the fields that are null."""
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    return value


def validation(rule: ValidationRule) -> Schema:
    """One entry of x-kubernetes-validations."""
    expression = {"messageExpression": rule.message_expression} if rule.message_expression else {}
    return {"rule": rule.rule, "message": rule.message, **expression}
