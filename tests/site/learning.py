"""What nodes read of requests, and what they answer, as the tests of their APIs go by: a plugin of
pytest, for `python -m tests.site.learn`.

Fields of requests are those that a handler reads, with the type, the default and the bounds that it
reads them with. Answers are what it gives, before they are sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.site.schemas import Known, joined, written
from node.management import app, values
from node.management.context import Call, Endpoint, Response
from node.messages.plain_values import as_json
from node.protocols.native import http, http_answers, http_history

#: Where to write what is known, when the tests are over.
FILE = "QUORATE_LEARNED"
KINDS = {
    "text": "string",
    "boolean": "boolean",
    "integer": "integer",
    "mapping": "object",
    "words": "words",
    "objects": "objects",
}

known = Known()
_route: ContextVar[str | None] = ContextVar("route", default=None)


def reads(where: str, path: str, **schema: Any) -> None:
    if (route := _route.get()) is not None:
        known.reads(route, where, path, schema)


class Traced(dict[str, Any]):
    """A query, or the map in a body, that says what is asked of it."""

    def __init__(self, where: str, given: Any) -> None:
        super().__init__(given)
        self._where = where

    def __contains__(self, name: object) -> bool:
        reads(self._where, str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        reads(self._where, name, **_of_default(default))
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        reads(self._where, name)
        return super().__getitem__(name)


def _of_default(default: Any) -> dict[str, Any]:
    types = {bool: "boolean", int: "integer", dict: "object", str: "string"}
    if type(default) in types and default != "":
        return {"type": types[type(default)], "default": default}
    return {}


def _listen_to_bodies() -> None:
    for name, kind in KINDS.items():
        read = getattr(values.Body, name)

        def reading(
            self: Any, field: str, *default: Any, read: Any = read, kind: str = kind
        ) -> Any:
            at = getattr(self, "learned_at", None)
            if at is not None:
                given = default[0] if default else values._MISSING
                more: dict[str, Any] = {"required": not default and kind != "objects"}
                if type(given) in (str, int, bool) and given != "":
                    more["default"] = given
                reads("body", f"{at}{field}", type=kind, **more)
            found = read(self, field, *default)
            if kind == "objects" and at is not None:
                for each in found:
                    each.learned_at = f"{at}{field}[]."
            return found

        setattr(values.Body, name, reading)
    has = values.Body.__contains__

    def asks(self: Any, field: object) -> bool:
        if (at := getattr(self, "learned_at", None)) is not None:
            reads("body", f"{at}{field}")
        return has(self, field)

    values.Body.__contains__ = asks
    flag = Call.flag

    def flagged(self: Call, name: str) -> bool:
        reads("query", name, type="boolean")
        return flag(self, name)

    Call.flag = flagged


def _listen_to_management() -> None:
    add = app.ManagementRoutes._add

    def listening(self: Any, route: Endpoint) -> None:
        key = f"{route.method} {f'/api/{route.path}'.rstrip('/')}"

        async def handler(call: Call) -> Any:
            mark = _route.set(key)
            try:
                call.body.learned_at = ""
                found = await route.handler(replace(call, query=Traced("query", call.query)))
            finally:
                _route.reset(mark)
            answer = found if isinstance(found, Response) else Response(200, found)
            if answer.html is None and answer.stream is None and "columns" not in call.query:
                text = "" if answer.value is None else as_json(answer.value, app._as_json)
                known.sent(key, call.body.values)
                known.answers(key, answer.status, text)
            return found

        add(self, replace(route, handler=handler))

    app.ManagementRoutes._add = listening


def _listen_to_native() -> None:
    guarded = http.HttpRoutes.guarded

    def listening(self: Any, handler: Any, operation: Any = None) -> Any:
        async def listened(request: Any) -> Any:
            path = request.match_info.route.resource.canonical
            mark = _route.set(f"{request.method} {path}")
            try:
                return await handler(request)
            finally:
                _route.reset(mark)

        return guarded(self, listened, operation)

    http.HttpRoutes.guarded = listening
    fields, number, flag = http._fields, http._number, http._flag
    text, ranges, bodies = http._text_or_none, http.ranges_of, http.bodies_of

    def where(name: str) -> str:
        route = _route.get() or ""
        return "body" if route.startswith(("POST", "PUT")) and "-" not in name else "query"

    def numbers(value: Any, name: str, low: int, high: int) -> int:
        if "-" not in name:
            reads(where(name), name, type="integer", minimum=low, maximum=high)
        return number(value, name, low, high)

    def flags(request: Any, name: str) -> bool:
        reads("query", name, type="boolean", default=False)
        return flag(request, name)

    http._fields = lambda request, data: Traced("body", fields(request, data))
    http._number = numbers
    http._flag = flags
    http._text_or_none = _saying(text, type="string")
    pair = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    http.ranges_of = _saying(ranges, type="array", items=pair)
    http.bodies_of = _saying(bodies, type="array", items={})
    for module in (http, http_history):
        module.answer = _answering(module.answer)


def _saying(read: Callable[..., Any], **schema: Any) -> Callable[..., Any]:
    def reading(value: Any, name: str) -> Any:
        reads("body", name, **schema)
        return read(value, name)

    return reading


def _answering(answer: Callable[..., Any]) -> Callable[..., Any]:
    def answering(request: Any, value: Any, *, status: int = 200, **more: Any) -> Any:
        if (route := _route.get()) is not None:
            known.answers(route, status, as_json(http_answers._plain(value), str))
        return answer(request, value, status=status, **more)

    return answering


def pytest_configure(config: pytest.Config) -> None:
    _listen_to_bodies()
    _listen_to_management()
    _listen_to_native()


def pytest_unconfigure(config: pytest.Config) -> None:
    if file := os.environ.get(FILE):
        path, found = Path(file), known.document()
        if path.exists():
            found = joined(found, json.loads(path.read_text(encoding="utf-8")))
        path.write_text(written(found), encoding="utf-8")
