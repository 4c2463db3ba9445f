"""The audit log, as far as the nodes remember it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from node.management.context import Call, Endpoint
from node.management.paging import listed

Json = dict[str, Any]


async def list_lines(call: Call) -> Any:
    """The newest first; `name` looks for who did it, what it was, and to what."""

    async def shown(lines: Sequence[Json]) -> list[Json]:
        return list(lines)

    lines, query = await call.observer.audit_lines(), call.list_query
    if not query.sort:
        query = replace(query, sort=("time",), reverse=not query.reverse)
    return await listed(query, lines, _searched, shown)


def _searched(line: Json) -> str:
    return " ".join(str(line[key]) for key in ("who", "what", "target", "outcome"))


ROUTES = (Endpoint("GET", "audit", list_lines, "administrator"),)
