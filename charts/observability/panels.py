"""Panels, rows and dashboards as plain values, and their conversion to the JSON that Grafana reads.

`dashboards` creates the values, `__main__` writes the JSON, and tests/observability sends every query to a real
Prometheus. This module knows no metric: each panel contains its own queries. The JSON names no datasource and no
cluster but uses variables for them, because a dashboard can be imported into any Grafana.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

COLUMNS = 24
"""The number of columns of Grafana's grid."""
HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 39
"""The schema version of Grafana 10; newer versions of Grafana read it, too."""


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    marks: tuple[Query, ...] = field(default=())
    """Annotations: the times that these queries return are marked in every panel."""

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


def dashboard_json(dashboard: Dashboard) -> Json:
    return {
        "uid": f"fairlead-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["fairlead"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [{"type": "dashboards", "title": "Fairlead", "tags": ["fairlead"], "asDropdown": True,
                   "includeVars": True, "keepTime": True}],
        "templating": {"list": [_datasource(), *(_variable(one) for one in dashboard.variables)]},
        "annotations": {"list": [_mark(one) for one in dashboard.marks]},
        "panels": _grid(dashboard.rows),
    }  # fmt: skip


def _datasource() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(one: Variable) -> Json:
    return {
        "name": one.name, "type": "query", "datasource": DATASOURCE, "query": {"query": one.query, "refId": one.name},
        "definition": one.query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _mark(one: Query) -> Json:
    return {
        "name": one.legend, "datasource": DATASOURCE, "enable": True, "expr": one.expr, "iconColor": "blue",
        "titleFormat": one.legend, "step": "60s",
    }  # fmt: skip


def _grid(rows: tuple[Row, ...]) -> list[Json]:
    made: list[Json] = []
    y = 0
    for row in rows:
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})  # fmt: skip
        y += 1
        x = tallest = 0
        for panel in row.panels:
            height = HEIGHTS[panel.kind]
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": height}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
            x += panel.width
            tallest = max(tallest, height)
        y += tallest
    return made


def _panel(panel: Panel) -> Json:
    heat = panel.kind == "heatmap"
    targets = [
        {
            "refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": one.expr,
            "legendFormat": one.legend or "__auto", "exemplar": one.exemplars, "range": True, "instant": False,
            "format": "heatmap" if heat else "time_series",
        }
        for at, one in enumerate(panel.queries)
    ]  # fmt: skip
    options: dict[str, Json] = {
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "values": False}, "graphMode": "area"},
        "timeseries": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}},
        "heatmap": {"calculate": False, "yAxis": {"unit": panel.unit}, "exemplars": {"color": "rgba(255,0,255,0.7)"}},
    }
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never"}
    return {
        "type": panel.kind, "title": panel.title, "description": panel.description, "datasource": DATASOURCE,
        "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options[panel.kind],
    }  # fmt: skip
