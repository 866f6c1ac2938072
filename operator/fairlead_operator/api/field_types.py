"""The base of all Structs of the custom resources, and the types of their fields. Pure.

Fields that Kubernetes itself defines are checked as Kubernetes checks them if a pattern can do so. Others are not
checked here: the API server checks them when they are applied.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta, Struct

FREE = {"x-kubernetes-preserve-unknown-fields": True}
"""An object that is passed on as it is: Kubernetes checks it, and a copy of its schema would go out of date."""
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""The pattern of a quantity as k8s.io/apimachinery/pkg/api/resource reads it, without a sign."""
COUNT_OR_PERCENT = r"^([0-9]+|[0-9]{1,3}%)$"
HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""The pattern of a host that an Ingress accepts."""


class ApiStruct(Struct, frozen=True, rename="camel"):
    """A part of a custom resource, with names in snake case here and in camel case in the cluster."""


Name = Annotated[str, Meta(min_length=1, max_length=253)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Free = Annotated[dict[str, Any], Meta(extra_json_schema=FREE)]
StringMap = dict[str, str]
Host = Annotated[str, Meta(max_length=253, pattern=HOST)]
Quantity = Annotated[Any, Meta(extra_json_schema={"x-kubernetes-int-or-string": True, "pattern": QUANTITY})]
CountOrPercent = Annotated[
    Any, Meta(extra_json_schema={"x-kubernetes-int-or-string": True, "pattern": COUNT_OR_PERCENT})
]


def is_quantity(value: object) -> bool:
    return _matches(QUANTITY, value)


def is_count_or_percent(value: object) -> bool:
    return _matches(COUNT_OR_PERCENT, value)


def _matches(pattern: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    return re.search(pattern, str(value)) is not None
