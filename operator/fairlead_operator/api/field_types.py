"""The types of single fields that the Structs of `spec` and `podspec` are made of. Pure.

What Kubernetes defines is checked as Kubernetes does it where a pattern can say so, and else let through as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

FREE = {"x-kubernetes-preserve-unknown-fields": True}
"""Goes into an object as it is: Kubernetes checks it, a copy of its schema here would only grow old."""
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""As k8s.io/apimachinery/pkg/api/resource reads it, without a sign."""
COUNT_OR_PERCENT = r"^([0-9]+|[0-9]{1,3}%)$"
HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""What an Ingress takes as a host."""

Name = Annotated[str, Meta(min_length=1, max_length=253)]
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
