"""Finding objects among those that the chart has rendered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] in kinds]


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, metadata and spec of each pod that would run."""
    for one in objects:
        if one["kind"] == "Pod":
            yield one["metadata"]["name"], one["metadata"], one["spec"]
        elif one["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = one["spec"]["template"]
            yield one["metadata"]["name"], template["metadata"], template["spec"]
