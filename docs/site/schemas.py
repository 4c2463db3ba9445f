"""Schemas of bodies, learned from what nodes read and answer (`python -m tests.site.learn`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]

#: Samples of an object, from which on a property that all have is said to be always there.
ALWAYS_FROM = 3
#: Maps that hold what clients put into them.
FREE = frozenset(
    {
        "arguments",
        "definition",
        "effective_policy_definition",
        "headers",
        "meta",
        "metadata",
        "client_properties",
        "deaths",
        "detail",
    }
)
#: What is whatever somebody gave.
ANY = "value"
#: Keys that are names of things, not of properties.
NAME = re.compile(r"n\d+|node-\d+|\d.*|.*[/@. ].*|")


@dataclass
class Shape:
    """What is common to some values."""

    types: set[str] = field(default_factory=set)
    objects: int = 0
    properties: dict[str, Shape] = field(default_factory=dict)
    having: dict[str, int] = field(default_factory=dict)
    named: Shape | None = None  # values of a map by names
    items: Shape | None = None

    def add(self, value: Any, name: str = "") -> None:
        if name == ANY:
            return
        match value:
            case None:
                self.types.add("null")
            case bool():
                self.types.add("boolean")
            case int():
                self.types.add("integer")
            case float():
                self.types.add("number")
            case str():
                self.types.add("string")
            case list():
                self.types.add("array")
                self.items = self.items or Shape()
                for each in value:
                    self.items.add(each)
            case dict():
                self.types.add("object")
                if name in FREE:
                    return
                self.objects += 1
                for key, inner in value.items():
                    self._add_property(key, inner)
            case _:
                raise TypeError(f"no JSON: {value!r}")

    def _add_property(self, key: str, value: Any) -> None:
        if NAME.fullmatch(key):
            self.named = self.named or Shape()
            self.named.add(value)
            return
        self.properties.setdefault(key, Shape()).add(value, key)
        self.having[key] = self.having.get(key, 0) + 1

    def schema(self) -> Schema:
        types = sorted(self.types - ({"integer"} if "number" in self.types else set()))
        found: Schema = {"type": types[0] if len(types) == 1 else types} if types else {}
        if self.items is not None:
            found["items"] = self.items.schema()
        if self.properties:
            found["properties"] = {k: s.schema() for k, s in sorted(self.properties.items())}
            always = sorted(k for k, count in self.having.items() if count == self.objects)
            if self.objects >= ALWAYS_FROM and always:
                found["required"] = always
        if self.named is not None:
            found["additionalProperties"] = self.named.schema()
        return found


class Known:
    """Of all operations, by method and path."""

    def __init__(self) -> None:
        self._reads: dict[str, dict[str, dict[str, Schema]]] = {}
        self._sent: dict[str, Shape] = {}
        self._answers: dict[str, dict[str, Shape | None]] = {}

    def reads(self, route: str, where: str, path: str, schema: Schema) -> None:
        """`where` is body or query; `path` is as `queues[].name`."""
        at = self._reads.setdefault(route, {}).setdefault(where, {}).setdefault(path, {})
        schema = dict(schema)
        # Needed by some calls only: not always.
        needed = schema.pop("required", None)
        if needed is not None:
            at["required"] = needed and at.get("required", True)
        at.update(schema)

    def sent(self, route: str, body: Any) -> None:
        self._sent.setdefault(route, Shape()).add(body)

    def answers(self, route: str, status: int, text: str) -> None:
        if status >= 400:
            return
        by_status = self._answers.setdefault(route, {})
        shape = by_status.setdefault(str(status), None)
        if text:
            shape = shape or Shape()
            shape.add(json.loads(text))
            by_status[str(status)] = shape

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for route in sorted({*self._reads, *self._answers}):
            read = self._reads.get(route, {})
            sent = self._sent.get(route)
            body = _nested(read.get("body", {}), sent)
            if not body and sent is not None and sent.properties:
                body = sent.schema()
                body.pop("required", None)
            found[route] = {
                **({"query": query} if (query := _flat(read.get("query", {}))) else {}),
                **({"body": body} if body else {}),
                "answers": {
                    status: None if shape is None else shape.schema()
                    for status, shape in sorted(self._answers.get(route, {}).items())
                },
            }
        return found


def written(document: dict[str, Any]) -> str:
    """As JSON, with a line for each operation."""
    lines = [
        f"{json.dumps(k)}: {json.dumps(document[k], sort_keys=True)}" for k in sorted(document)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two documents of what is known, as one."""
    found: dict[str, Any] = {}
    for route in sorted({*one, *other}):
        each = [known[route] for known in (one, other) if route in known]
        operation: dict[str, Any] = {}
        for part in ("query", "body", "answers"):
            parts = [known[part] for known in each if part in known]
            if len(parts) == 2:
                merged = either(*parts) if part == "body" else _by_name(*parts)
                operation[part] = merged
            elif parts:
                operation[part] = parts[0]
        found[route] = operation
    return found


def _by_name(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of schemas by name: of properties, or of answers by status."""
    return {
        name: either(one.get(name), other.get(name)) for name in sorted({*one, *other}, key=str)
    }


def either(one: Schema | None, other: Schema | None) -> Schema | None:
    """What a value that is one or the other looks like."""
    if not one or not other:
        return one or other or {} if one is not None or other is not None else None
    both: Schema = {**other, **one}
    types = {*_listed(one.get("type", [])), *_listed(other.get("type", []))}
    types -= {"integer"} if "number" in types else set()
    if types:
        both["type"] = next(iter(types)) if len(types) == 1 else sorted(types)
    for part in ("items", "additionalProperties"):
        if part in one and part in other:
            both[part] = either(one[part], other[part])
    if "properties" in both:
        # An object that was never seen says nothing of what is always there.
        seen = [each for each in (one, other) if "properties" in each]
        both.pop("required", None)
        if always := set.intersection(*[set(each.get("required", ())) for each in seen]):
            both["required"] = sorted(always)
        if len(seen) == 2:
            both["properties"] = _by_name(one["properties"], other["properties"])
    return both


def _listed(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def published(schema: Schema) -> Schema:
    """Without what is known to be null only: what else it may be did not occur."""
    if schema.get("type") == "null":
        return {}
    found = dict(schema)
    for part in ("items", "additionalProperties"):
        if part in schema:
            found[part] = published(schema[part])
    if "properties" in schema:
        found["properties"] = {k: published(each) for k, each in schema["properties"].items()}
    return found


def _flat(fields: dict[str, Schema]) -> dict[str, Schema]:
    return {
        name: {"type": "string"} | {k: v for k, v in schema.items() if k != "required"}
        for name, schema in sorted(fields.items())
    }


def _nested(fields: dict[str, Schema], sent: Shape | None) -> Schema:
    """Fields of lists of objects below their lists. What some requests did well without is not
    needed, though others are read for it.
    """
    if not fields:
        return {}
    properties: dict[str, Schema] = {}
    needed: list[str] = []
    inner: dict[str, dict[str, Schema]] = {}
    for path, schema in fields.items():
        name, dot, rest = path.partition("[].")
        if dot:
            inner.setdefault(name, {})[rest] = schema
            continue
        schema = dict(schema)
        known = sent is not None and sent.having.get(name, 0) == sent.objects
        if schema.pop("required", False) and known:
            needed.append(name)
        match schema.get("type"):
            case "words":
                schema |= {"type": ["array", "string"], "items": {"type": "string"}}
            case "objects":
                schema |= {"type": "array", "items": {"type": "object"}}
            case _:
                pass
        properties[name] = schema
    for name, below in inner.items():
        of_list = None if sent is None else sent.properties.get(name)
        properties[name] = {
            "type": "array",
            "items": _nested(below, None if of_list is None else of_list.items),
        }
    found: Schema = {"type": "object", "properties": dict(sorted(properties.items()))}
    return found | ({"required": sorted(needed)} if needed else {})
