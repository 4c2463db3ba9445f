"""Bodies of requests. Tools send booleans and numbers as text as well as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from node.management.errors import bad_request
from node.messages.plain_values import loads

_MISSING: Any = object()


class Body:
    """The JSON object that came with a request; an empty body is an empty one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def parse(cls, raw: bytes) -> Body:
        if not raw.strip():
            return cls({})
        try:
            values = loads(raw)
        except json.JSONDecodeError:
            raise bad_request("not_json") from None
        except ValueError as error:
            raise bad_request(f"not_json: {error}") from None
        if not isinstance(values, dict):
            raise bad_request("not_json: an object is needed")
        return cls(cast("dict[str, Any]", values))

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise bad_request(f"[{{key_missing,{name}}}]")
        return default

    def text(self, name: str, default: str = _MISSING) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise bad_request(f"{name} must be text")
        return value

    def boolean(self, name: str, default: bool = _MISSING) -> bool:
        return as_boolean(name, self._value(name, default))

    def integer(self, name: str, default: int = _MISSING) -> int:
        return as_integer(name, self._value(name, default))

    def mapping(self, name: str, default: Mapping[str, Any] = _MISSING) -> dict[str, Any]:
        value = self._value(name, default)
        if isinstance(value, list) and not value:
            return {}  # how some libraries write an empty map
        if not isinstance(value, Mapping):
            raise bad_request(f"{name} must be an object")
        return dict(cast("Mapping[str, Any]", value))

    def words(self, name: str, default: Sequence[str] = _MISSING) -> list[str]:
        """A list of texts, or one text with commas."""
        value = self._value(name, default)
        if isinstance(value, str):
            return [word for each in value.split(",") if (word := each.strip())]
        words: list[Any] = (
            list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [None]
        )
        if not all(isinstance(word, str) for word in words):
            raise bad_request(f"{name} must be a list of texts, or a text with commas")
        return words

    def objects(self, name: str) -> list[Body]:
        """A list of objects; none when it is missing."""
        value = self._value(name, [])
        each: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(one, dict) for one in each):
            raise bad_request(f"{name} must be a list of objects")
        return [Body(one) for one in each]


def as_boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise bad_request(f'["not_boolean",{json.dumps(value, default=str)[:40]}] for {name}')


def as_integer(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    digits = value[1:] if isinstance(value, str) and value.startswith("-") else value
    if isinstance(digits, str) and digits.isascii() and digits.isdecimal() and len(digits) <= 18:
        return int(cast("str", value))
    raise bad_request(f"{name} must be a whole number")
