"""`python -m helm.dashboard` writes the Grafana dashboard that the chart ships."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from helm.panels import ROWS, Panel

FILE = Path(__file__).parent / "quorate/files/dashboards/quorate.json"
COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def drawn(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.red is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 5, "showPoints": "never"}
        options["tooltip"] = {"mode": "multi", "sort": "desc"}
    elif panel.kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": panel.unit}}
        options["color"] = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": DATASOURCE,
        "gridPos": {"h": HEIGHTS[panel.kind], "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            }
            for place, (legend, expr) in enumerate(panel.queries)
        ],
    }


def laid_out() -> Iterator[dict[str, Any]]:
    """Rows below each other, panels from left to right, each row of panels of one height."""
    numbers = count(1)
    y = 0
    for title, panels in ROWS.items():
        yield {
            "id": next(numbers),
            "title": title,
            "type": "row",
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": [],
        }
        y += 1
        x = height = 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            yield drawn(panel, next(numbers), x, y)
            x += panel.width
            height = max(height, HEIGHTS[panel.kind])
        y += height


def variable(name: str, label: str, query: str, *, many: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".*" if many else None,
        "current": {"text": "All", "value": "$__all"} if many else {},
    }


def dashboard() -> dict[str, Any]:
    here = 'rabbitmq_identity_info{namespace="$namespace"'
    return {
        "uid": "quorate",
        "title": "Quorate",
        "description": "Nodes, groups, queues, latencies, disks and dead letters of one cluster.",
        "tags": ["quorate"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                variable(
                    "namespace", "Namespace", "label_values(rabbitmq_identity_info, namespace)"
                ),
                variable("cluster", "Cluster", f"label_values({here}}}, rabbitmq_cluster)"),
                variable(
                    "node",
                    "Node",
                    f'label_values({here}, rabbitmq_cluster="$cluster"}}, rabbitmq_node)',
                    many=True,
                ),
            ]
        },
        "panels": list(laid_out()),
    }


def written() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(written(), encoding="utf-8")
