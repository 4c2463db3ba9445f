"""The page at /api: every route, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from node.management.context import Call, Endpoint, Response
from node.version import PRODUCT, PRODUCT_VERSION

_DOCS = "docs/management.md"


def routes(others: Callable[[], Sequence[Endpoint]]) -> tuple[Endpoint, ...]:
    async def page(call: Call) -> Response:
        return Response(html=_page(others()))

    return tuple(Endpoint("GET", path, page, open=True) for path in ("", "index.html"))


def _page(every: Sequence[Endpoint]) -> str:
    methods: dict[str, list[str]] = {}
    for route in every:
        methods.setdefault(route.path, []).append(route.method)
    rows = "\n".join(
        f"<tr><td>{', '.join(sorted(methods[path]))}</td><td>/api/{escape(path)}</td></tr>"
        for path in sorted(methods)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{PRODUCT} management API</title>
<style>body {{ font: 14px sans-serif; margin: 2em }} td {{ padding: 2px 1em 2px 0 }}</style></head>
<body><h1>{PRODUCT} {escape(PRODUCT_VERSION)}: management API</h1>
<p>HTTP Basic, JSON. Names in a path are percent-encoded. {_DOCS} says more.</p>
<table><thead><tr><th>Methods</th><th>Path</th></tr></thead>
<tbody>
{rows}
</tbody></table></body></html>
"""
