"""What the entries of the administrative tables may say: one table of fields for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cluster.machine.checks import (
    COUNT_MAX,
    BadValue,
    boolean,
    integer,
    is_plain,
    is_short_text,
    one_of,
    shown,
    text,
)
from cluster.machine.policies import (
    SETTINGS_SINCE,
    STREAMS,
    PolicyTable,
    regex,
    wrong_definition,
)
from cluster.machine.versions import MACHINE_VERSION, STREAM_POLICIES_SINCE

DESCRIPTION_BYTES_MAX = 4_096
PASSWORD_HASH_BYTES_MAX = 1_024
TAGS_MAX = 64
PRIORITY_MAX = 2**31 - 1

HASHING_ALGORITHMS = ("scrypt", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512")

#: Of a vhost: it is not dropped.
PROTECTED = "protected_from_deletion"
#: Of a parameter: who put it, as whom it acts in this cluster.
USER = "user"
#: Of a parameter: of its own, as long as it says the same.
ID = "id"
#: Of a user: public keys, by which NATS's clients log in.
NKEYS = "nkeys"

_REQUIRED: Any = object()
_LEFT_OUT: Any = object()


@dataclass(frozen=True, slots=True)
class _Field:
    check: Callable[[Any], Any]
    default: Any = _REQUIRED


@dataclass(frozen=True, slots=True)
class _EntryKind:
    """`key`: what its parts are. `may_be_empty`: those of them that can be ''."""

    key: tuple[str, ...]
    fields: Mapping[str, _Field]
    may_be_empty: frozenset[str] = frozenset()
    since: Mapping[str, int] = field(default_factory=dict[str, int])  # fields of later versions
    settings_since: Mapping[str, int] = field(default_factory=dict[str, int])  # in a definition


def _texts(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        words = list(cast("Sequence[Any]", value))
        if len(words) <= TAGS_MAX and all(isinstance(e, str) and is_short_text(e) for e in words):
            return words
    raise BadValue(f"a list of at most {TAGS_MAX} texts of at most 255 bytes")


def _queue_type(value: Any) -> str | None:
    return None if value is None else one_of("quorum", "classic")(value)


def _definition(table: PolicyTable) -> Callable[[Any], Mapping[str, Any]]:
    def check(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise BadValue("a map of settings")
        definition = cast("dict[Any, Any]", value)
        wrong = wrong_definition(definition, table)
        if wrong is not None:
            raise BadValue(f"a map of settings: {wrong}")
        return dict(definition)

    return check


def _plain(value: Any) -> Any:
    if not is_plain(value):
        raise BadValue("numbers, text, bytes, lists and maps, 64 KiB in all")
    return value


def _policy(table: PolicyTable) -> _EntryKind:
    targets = ["all", "queues", "quorum_queues", "classic_queues", STREAMS]
    targets += ["exchanges"] if table == "policies" else []
    fields = {
        "pattern": _Field(regex),
        "apply_to": _Field(one_of(*targets), "all"),
        "priority": _Field(integer(-PRIORITY_MAX, PRIORITY_MAX), 0),
        "definition": _Field(_definition(table)),
    }
    return _EntryKind(("vhost", "name"), fields, settings_since=SETTINGS_SINCE)


def _limits(owner: str, *names: str, since: Mapping[str, int] | None = None) -> _EntryKind:
    """-1: no limit. `since`: names that a later machine version brought."""
    since = since or {}
    limit = _Field(integer(-1, COUNT_MAX), _LEFT_OUT)
    return _EntryKind((owner,), dict.fromkeys([*names, *since], limit), since=since)


_KINDS: dict[str, _EntryKind] = {
    "vhosts": _EntryKind(
        ("vhost",),
        {
            "description": _Field(text(empty=True, bytes_max=DESCRIPTION_BYTES_MAX), ""),
            "tags": _Field(_texts, ()),
            "default_queue_type": _Field(_queue_type, None),
            PROTECTED: _Field(boolean, _LEFT_OUT),
        },
        since={PROTECTED: 3},
    ),
    "users": _EntryKind(
        ("user",),
        {
            "password_hash": _Field(text(empty=True, bytes_max=PASSWORD_HASH_BYTES_MAX), ""),
            "hashing_algorithm": _Field(one_of(*HASHING_ALGORITHMS), HASHING_ALGORITHMS[0]),
            "tags": _Field(_texts, ()),
            NKEYS: _Field(_texts, _LEFT_OUT),
        },
        since={NKEYS: 5},
    ),
    "permissions": _EntryKind(
        ("user", "vhost"), dict.fromkeys(("configure", "write", "read"), _Field(regex))
    ),
    "topic_permissions": _EntryKind(
        ("user", "vhost", "exchange"),
        dict.fromkeys(("write", "read"), _Field(regex)),
        frozenset({"exchange"}),
    ),
    "policies": _policy("policies"),
    "operator_policies": _policy("operator_policies"),
    "vhost_limits": _limits(
        "vhost", "max-connections", "max-queues", since={"max-bytes": 2, "max-queue-bytes": 2}
    ),
    "user_limits": _limits("user", "max-connections", "max-channels"),
    "parameters": _EntryKind(
        ("component", "vhost", "name"),
        {
            "value": _Field(_plain),
            **dict.fromkeys((USER, ID), _Field(text(empty=False), _LEFT_OUT)),
        },
        frozenset({"component", "vhost"}),
        since={USER: 5, ID: 5},
    ),
}

TABLES = tuple(_KINDS)


def checked_key(table: str, key: Sequence[Any]) -> dict[str, str]:
    """The parts of the key by what they are: BadValue when that cannot be a key of this table."""
    kind = _KINDS.get(table)
    if kind is None:
        raise BadValue(f"no table {shown(table)}; there are {', '.join(TABLES)}")
    if len(key) != len(kind.key):
        raise BadValue(f"a key of {table} is {', '.join(kind.key)}")
    for part, value in zip(kind.key, key, strict=True):
        try:
            text(empty=part in kind.may_be_empty)(value)
        except BadValue as error:
            raise BadValue(f"the {part} must be {error}") from None
    return dict(zip(kind.key, key, strict=True))


def checked_value(
    table: str, value: Mapping[Any, Any], version: int = MACHINE_VERSION
) -> dict[str, Any]:
    """The value with every field that it may leave out: BadValue when it cannot be, at this
    version of the catalog's machine.
    """
    kind = _KINDS[table]
    fields = {n: each for n, each in kind.fields.items() if kind.since.get(n, 1) <= version}
    for name in value:
        if name not in fields:
            raise BadValue(f"{table} hold {', '.join(fields)}; not {shown(name)}")
    result: dict[str, Any] = {}
    for name, each in fields.items():
        if name not in value and each.default is not _REQUIRED:
            if each.default is not _LEFT_OUT:
                result[name] = [] if each.default == () else each.default
            continue
        try:
            result[name] = each.check(value.get(name))
        except BadValue as error:
            raise BadValue(f"{name} must be {error}") from None
    for name, since in kind.settings_since.items():
        if since > version and name in result["definition"]:
            raise BadValue(f"{name} is not known before all nodes run machine version {since}")
    if result.get("apply_to") == STREAMS and version < STREAM_POLICIES_SINCE:
        needed = f"all nodes run machine version {STREAM_POLICIES_SINCE}"
        raise BadValue(f"apply_to {STREAMS} is not known before {needed}")
    return result


def keys_of(
    entries: Mapping[tuple[str, ...], Any], table: str, part: str, name: str
) -> list[tuple[str, ...]]:
    """The keys in this table that speak of a vhost, or of a user, of this name."""
    parts = _KINDS[table].key
    if part not in parts:
        return []
    place = parts.index(part)
    return [key for key in entries if key[place] == name]
