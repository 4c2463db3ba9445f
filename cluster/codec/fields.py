"""How one dataclass becomes a list of fields and back, worked out once per class.

The rules that keep old logs readable: fields are only ever added at the end and with a default; a
missing trailing field takes its default, a surplus one is ignored.

A field that a later machine version brought is left out while it is at its default, so that what
older releases can run is also written as they would.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, NewType, TypeVar

from cluster.codec.errors import CodecError

T = TypeVar("T")
Convert = Callable[[Any], Any]
Kinds = frozenset[type] | None


def pairs(value: Any) -> tuple[tuple[int, int], ...]:
    """Ranges as the machine wants them."""
    result = tuple([(first, last) for first, last in value])
    for first, last in result:
        if type(first) is not int or type(last) is not int:
            raise TypeError(f"a range holds {first!r} and {last!r}, not two integers")
    return result


class Layout:
    """The fields of one class, in order, with their types as CBOR gives them."""

    def __init__(
        self,
        kind: type[Any],
        *,
        load: dict[str, Convert] | None = None,
        dump: dict[str, Convert] | None = None,
        since: int = 1,
        fields_since: dict[str, int] | None = None,
    ) -> None:
        """`since`: the machine version that brought the class; `fields_since`: single fields."""
        fields = dataclasses.fields(kind)
        hints = typing.get_type_hints(kind)
        self.kind: Callable[..., Any] = kind
        self.name = kind.__name__
        self.names = tuple(field.name for field in fields)
        self.required = sum(_has_no_default(field) for field in fields)
        load = load or {}
        dump = dump or {}
        self._load = tuple((n, load[name]) for n, name in enumerate(self.names) if name in load)
        self._dump = tuple((n, dump[name]) for n, name in enumerate(self.names) if name in dump)
        checks = [
            (n, None if name in load else _kinds_of(hints[name]))
            for n, name in enumerate(self.names)
        ]
        self._checks = tuple((n, kinds) for n, kinds in checks if kinds is not None)
        self.since = since
        later = fields_since or {}
        assert later.keys() <= set(self.names), f"{self.name} lacks a field of {later}"
        newer = [field for field in fields if field.name in later]
        assert fields[len(fields) - len(newer) :] == tuple(newer), "new fields go at the end"
        self._newer = tuple((field.name, _default_of(field), later[field.name]) for field in newer)

    @property
    def gated(self) -> bool:
        """Not all of it may be written under the first machine version."""
        return self.since > 1 or bool(self._newer)

    def version_needed(self, value: Any) -> int:
        """The machine version that brought this class and those of its fields that are used."""
        version = self.since
        for name, default, since in self._newer:
            if getattr(value, name) != default:
                version = max(version, since)
        return version

    def dump(self, value: Any) -> list[Any]:
        """The field values, in order."""
        fields = [getattr(value, name) for name in self.names]
        for position, convert in self._dump:
            fields[position] = convert(fields[position])
        for name, default, _ in reversed(self._newer):
            if getattr(value, name) != default:
                break
            fields.pop()
        return fields

    def load(self, fields: Sequence[Any]) -> Any:
        """The value of these fields; CodecError when they do not fit."""
        count = len(fields)
        if count < self.required:
            raise CodecError(f"{self.name} needs {self.required} fields, got {count}")
        known = len(self.names)
        if count > known:
            fields = fields[:known]
            count = known
        for position, kinds in self._checks:
            if position >= count:
                break
            if type(fields[position]) not in kinds:
                found = type(fields[position]).__name__
                raise CodecError(f"{self.name}.{self.names[position]} cannot be {found}")
        if self._load:
            fields = list(fields)
            for position, convert in self._load:
                if position < count:
                    try:
                        fields[position] = convert(fields[position])
                    except (TypeError, ValueError, LookupError, AttributeError) as error:
                        name = self.names[position]
                        raise CodecError(f"{self.name}.{name} is malformed: {error}") from error
        return self.kind(*fields)

    def dump_map(self, value: Any) -> dict[str, Any]:
        later = {name: default for name, default, _ in self._newer}
        named = {name: getattr(value, name) for name in self.names}
        return {n: v for n, v in named.items() if n not in later or v != later[n]}

    def load_map(self, fields: Any) -> Any:
        """Like `load`, of a map by name; unknown names are of a later version and ignored."""
        if not isinstance(fields, dict):
            raise CodecError(f"{self.name} must be a map")
        named = typing.cast("dict[Any, Any]", fields)
        for position, kinds in self._checks:
            name = self.names[position]
            if name in named and type(named[name]) not in kinds:
                raise CodecError(f"{self.name}.{name} cannot be {type(named[name]).__name__}")
        return self.kind(**{name: named[name] for name in self.names if name in named})


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    assert field.default is not dataclasses.MISSING, f"{field.name} is new and needs a default"
    return field.default


def _kinds_of(hint: Any) -> Kinds:
    """The exact types that CBOR may give for this annotation; None: anything."""
    if hint is Any:
        return None
    if isinstance(hint, NewType):
        return _kinds_of(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        kinds: set[type] = set()
        for option in typing.get_args(hint):
            inner = _kinds_of(option)
            if inner is None:
                return None
            kinds |= inner
        return frozenset(kinds)
    if origin is Literal:
        return frozenset({str})  # the closed sets of words
    if origin is dict:
        return frozenset({dict})
    if origin is not None:  # Sequence[...]: in memory a tuple, from CBOR a list
        return frozenset({list, tuple})
    return frozenset({hint})
