"""References made from the source have all that there is."""

from __future__ import annotations

import inspect
import re

from docs.site.reference import (
    SUMMARIES,
    cli_page,
    commands,
    http_page,
    native_routes,
    openapi,
)
from node.management.app import ROUTES
from node.protocols.native.http import HttpRoutes
from node.protocols.native.http_history import HistoryRoutes
from tests.architecture.sources import ROOT


def operations() -> set[tuple[str, str]]:
    return {(m.upper(), path) for path, methods in openapi()["paths"].items() for m in methods}


def test_openapi_has_every_route_of_the_management_api_with_a_summary():
    served = {(route.method, f"/api/{route.path}".rstrip("/")) for route in ROUTES}

    assert served == {each for each in operations() if each[1].startswith("/api")}
    for methods in openapi()["paths"].values():
        for operation in methods.values():
            assert len(operation["summary"]) > 3, operation
    names = [o["operationId"] for methods in openapi()["paths"].values() for o in methods.values()]
    assert len(names) == len(set(names))


def test_no_summary_is_of_a_handler_that_there_is_not():
    handlers = [route.handler for route in ROUTES] + [
        *vars(HttpRoutes).values(),
        *vars(HistoryRoutes).values(),
    ]
    known = {
        f"{each.__module__.rpartition('.')[2]}.{each.__name__}"
        for each in handlers
        if inspect.isfunction(each)
    }

    assert set(SUMMARIES) - known == set()


def test_openapi_has_every_path_of_v1_that_the_source_names():
    named: set[str] = set()
    for path in (ROOT / "node").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'"(/v1/[\w/{}]+)"', text))

    served = {route.path for route in native_routes()}
    assert named - served == set()
    assert len(served) >= 10


def test_every_route_and_every_command_is_on_its_page():
    routes, words = http_page(), cli_page()

    assert [path for _, path in operations() if f"`{path}`" not in routes] == []
    assert [each for each, _ in commands() if f"### `{' '.join(each)}` " not in words] == []
    assert len(list(commands())) > 80
