"""What a parameter of a link says, field by field: each is checked, and a wrong one is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.checks import is_finite, is_plain, is_short_text, shown
from node.errors import Refused

URIS_MAX = 64
URI_BYTES_MAX = 4_096
PREFETCH_MAX = 65_535
DELAY_S_MAX = 86_400
COUNT_MAX = 2**63 - 1
#: Between two tries of a link that failed, unless its definition says otherwise.
RECONNECT_S = 5.0

AMQP_SCHEMES = ("amqp", "amqps")
ACK_MODES = ("on-confirm", "on-publish", "no-ack")

_MISSING: Any = object()


def wrong(field: str, allowed: str) -> Refused:
    return Refused("bad_argument", f"Validation failed\n\n{field} must be {allowed}")


class Fields:
    """Reads a definition; `end` refuses what nobody has read. Raises Refused."""

    def __init__(self, what: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise wrong(f"the value of a {what}", "an object")
        self._what = what
        self._values = cast("Mapping[str, Any]", value)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def _value(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise Refused("bad_argument", f'Validation failed\n\nKey "{name}" not found')
        return default

    def text(self, name: str, default: str = _MISSING) -> str:
        """A name, at most as long as AMQP carries it."""
        value = self._value(name, default)
        if not isinstance(value, str) or not is_short_text(value):
            raise wrong(name, "text of at most 255 bytes")
        return value

    def choice(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self._value(name, default)
        if value not in words:
            raise wrong(name, f"one of {', '.join(words)}, not {shown(value)}")
        return value

    def integer(self, name: str, low: int, high: int, default: int = _MISSING) -> int:
        value = self._value(name, default)
        if type(value) is not int or not low <= value <= high:
            raise wrong(name, f"a whole number from {low} to {high}, not {shown(value)}")
        return value

    def raw(self, name: str) -> Any:
        """As it is said, unchecked."""
        return self._values.get(name)

    def count_or(self, name: str, words: tuple[str, ...], default: str) -> str | int:
        value = self._value(name, default)
        if value in words or (type(value) is int and 0 <= value <= COUNT_MAX):
            return cast("str | int", value)
        raise wrong(name, f"{', '.join(words)} or a number, not {shown(value)}")

    def seconds(self, name: str, default: float) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float) or not 0 <= value <= DELAY_S_MAX:
            raise wrong(name, f"a number of seconds up to {DELAY_S_MAX}, not {shown(value)}")
        return float(value)

    def milliseconds(self, name: str) -> int | None:
        """None: it is not said."""
        value = self._value(name, None)
        return None if value is None else self.integer(name, 0, SPAN_MS_MAX)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if type(value) is not bool:
            raise wrong(name, f"true or false, not {shown(value)}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._value(name, {})
        if value == []:  # how some libraries write an empty map
            return {}
        if not isinstance(value, dict) or not is_plain(value) or not is_finite(value):
            raise wrong(name, "an object")
        return dict(cast("dict[str, Any]", value))

    def uris(self, name: str, schemes: tuple[str, ...] = AMQP_SCHEMES) -> tuple[str, ...]:
        """One, or several of which any will do."""
        value = self._value(name, _MISSING)
        given: list[Any] = (
            list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]
        )
        if not 1 <= len(given) <= URIS_MAX:
            raise wrong(name, f"a URI, or a list of 1 to {URIS_MAX}")
        return tuple(_checked_uri(name, each, schemes) for each in given)

    def only_one(self, *names: str) -> str | None:
        """Which of these is said; None: none."""
        said = [name for name in names if name in self]
        if len(said) > 1:
            raise Refused(
                "bad_argument", f"Validation failed\n\nCannot specify {' and '.join(said)}"
            )
        return said[0] if said else None

    def end(self) -> None:
        unknown = sorted(name for name in self._values if name not in self._read)
        if unknown:
            names = ", ".join(shown(name) for name in unknown)
            raise Refused(
                "bad_argument", f"Validation failed\n\na {self._what} has no field {names}"
            )


def _checked_uri(name: str, value: Any, schemes: tuple[str, ...]) -> str:
    allowed = f"a URI with {' or '.join(f'{each}://' for each in schemes)}"
    if not isinstance(value, str) or not value.isprintable() or len(value) > URI_BYTES_MAX:
        raise wrong(name, allowed)
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise wrong(name, f"{allowed}, not {shown(without_password(value))}") from None
    if parts.scheme not in schemes:
        raise wrong(name, f"{allowed}, not {shown(without_password(value))}")
    return value


@dataclass(frozen=True, slots=True)
class Place:
    """What a URI of AMQP names. No host: this cluster, as the user who made the parameter."""

    host: str
    vhost: str | None  # None: that of the parameter, in this cluster; else the default one


def place_of(uri: str) -> Place:
    parts = urlsplit(uri)
    path = parts.path.removeprefix("/")
    return Place(parts.hostname or "", unquote(path) if path else None)


def is_local(uri: str) -> bool:
    return urlsplit(uri).scheme in AMQP_SCHEMES and not place_of(uri).host


def without_password(uri: str) -> str:
    """For logs and lists, also of what is no right URI."""
    head, at, tail = uri.rpartition("@")
    place = (tail if at else uri).partition("?")[0]
    scheme, slashes, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{place}" if slashes else place
