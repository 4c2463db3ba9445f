"""Fields of a JSON object that a client sent: each is what it should be, or it is no good JSON.

Null and a missing field are the same, as they are to who wrote the protocol. Names that are not
known are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from node.protocols.nats.jetstream.errors import ApiError, invalid_json

INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
#: To who wrote the protocol these have no sign, and all others one: its clients could not read what
#: has a number beyond that, nor a list with it.
_UNSIGNED = frozenset({"first_seq", "keep", "opt_start_seq", "rate_limit_bps", "seq", "up_to_seq"})


def load(data: bytes) -> dict[str, Any]:
    """Of a request's body. None at all, or an empty value, is as good as an empty object."""
    if not data.strip():
        return {}
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # half a character, NaN
    except (ValueError, RecursionError) as error:
        raise invalid_json(error) from None
    if found is None or found == "":
        return {}
    if not isinstance(found, dict):
        raise invalid_json("it is no object")
    return cast("dict[str, Any]", found)


def check_pedantic(given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """ApiError: something would be set right that a client said."""
    for name, value in given.items():
        if value and name in config and config[name] != value:
            raise ApiError(400, 10157, f"pedantic mode: {name} would be {config[name]!r}")


def _wrong(name: str, wanted: str) -> ApiError:
    return invalid_json(f"{name} is no {wanted}")


def text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(name, "text")
    return value


def number(given: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    least, most = (0, UINT64_MAX) if name in _UNSIGNED else (-INT64_MAX, INT64_MAX)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(name, "number")
    return value


def flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(name, "boolean")
    return value


def texts(given: Mapping[str, Any], name: str) -> list[str]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(each, str) for each in cast("list[Any]", value)
    ):
        raise _wrong(name, "list of texts")
    return cast("list[str]", value)


def numbers(given: Mapping[str, Any], name: str) -> list[int]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        type(each) is int and abs(each) <= INT64_MAX for each in cast("list[Any]", value)
    ):
        raise _wrong(name, "list of numbers")
    return cast("list[int]", value)


def part(given: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(name, "object")
    return cast("dict[str, Any]", value)


def parts(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(each, dict) for each in cast("list[Any]", value)
    ):
        raise _wrong(name, "list of objects")
    return cast("list[dict[str, Any]]", value)


def metadata(given: Mapping[str, Any]) -> dict[str, str]:
    found = part(given, "metadata") or {}
    if not all(isinstance(each, str) for each in found.values()):
        raise _wrong("metadata", "object of texts")
    return found
