"""What a Grafana dashboard asks Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Grafana's own variables, for a Prometheus that scrapes every second.
BUILT_IN = {
    "__rate_interval": "15s",
    "__interval": "5s",
    "__range": "60s",
    "__all": ".*",
}


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    dashboard: str
    panel: str
    ref: str
    expr: str


def read(file: Path) -> dict[str, Any]:
    """A dashboard as Grafana exports it."""
    return json.loads(file.read_text(encoding="utf-8"))


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of collapsed rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def targets(dashboard: Mapping[str, Any]) -> list[Target]:
    return [
        Target(dashboard["title"], panel.get("title", ""), target["refId"], target["expr"])
        for panel in panels(dashboard)
        for target in panel.get("targets") or ()
        if target.get("expr")
    ]


def filled(expr: str, variables: Mapping[str, str]) -> str:
    """The expression with its variables replaced. KeyError: one is not known."""
    values = {**BUILT_IN, **variables}
    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", lambda name: values[name[1] or name[2]], expr)
