"""Commands and replies as bytes: the one place that says which number each command has.

An entry is `[version, now_ms, [command, ...]]`, a command `[tag, field, ...]`. Numbers are for
ever: a command that is retired keeps its number unused. The version is that of the machine under
which the entry was written; a replica that cannot run it stops before the entry. A command that is
unknown nevertheless, or whose fields do not fit, decodes to `Unknown`, which every replica refuses
alike: a log entry cannot be un-happened, so reading one never fails over what is in its commands.
Only bytes that are no entry at all raise CodecError.

A command or a field that came with a later machine version says so here: `since`, `fields_since`.
It can be proposed from that version of the group on, and is refused before: `version_needed`.

How a class becomes a list of fields and back is worked out once per class (`Layout`). Fields are
only ever added at the end and with a default; a missing trailing field takes its default, a surplus
one is ignored. A field that a later machine version brought is left out while it is at its default,
so that what older releases can run is also written as they would. A field that older machines are
right to pass over is `PASSED_OVER`: it is proposed to any group, and the machine looks at it from
the version on that brought it.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, NewType, cast

from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.machine import commands, replies
from cluster.machine.arguments import (
    GROUP_KEY,
    GROUP_KEY_SINCE,
    SLO_OLDEST_AGE,
    SLO_SINCE,
    STREAM_CONFIG,
)
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.commands import (
    BodyPart,
    Command,
    Enqueue,
    HandedTo,
    QueueConfig,
    Step,
    Transaction,
    TransactionPart,
)
from cluster.machine.marks import keys_of
from cluster.machine.policies import SETTINGS_SINCE, STREAMS
from cluster.machine.replies import Chunk, Reply, StreamChunk
from cluster.machine.stream.settings import CONSUMER_FIELDS_SINCE, STREAM_FIELDS_SINCE
from cluster.machine.versions import ERAS_SINCE, RESOLVES_SINCE, STREAM_POLICIES_SINCE
from cluster.types import Body, BodyRef, GroupId, LargeBody, QueueId, value

Convert = Callable[[Any], Any]
Kinds = frozenset[type] | None


def _rows(*kinds: type[Any]) -> Callable[[Any], tuple[tuple[Any, ...], ...]]:
    def load(value: Any) -> tuple[tuple[Any, ...], ...]:
        result: tuple[tuple[Any, ...], ...] = tuple([tuple(row) for row in value])
        for row in result:
            if tuple(map(type, row)) != kinds:
                raise TypeError(f"{row!r} is not of {[kind.__name__ for kind in kinds]}")
        return result

    return load


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
        # What holds whatever somebody said; the rest is as deep as its class makes it.
        self._nests = tuple(
            n
            for n, kinds in checks
            if self.names[n] not in load and (kinds is None or dict in kinds)
        )
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
        for position in self._nests:
            _check_depth(fields[position])
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
        for position in self._nests:
            _check_depth(named[self.names[position]])
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


def _check_depth(value: Any) -> None:
    """CodecError: it could be written, and nobody could read it."""
    layer: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        holders = [each for each in layer if type(each) in _NESTING]
        layer = [
            inner
            for each in holders
            for inner in cast("list[Any]", each.values() if type(each) is dict else each)
        ]
        if not layer:
            return
    raise CodecError(f"a value is nested deeper than {DEPTH_MAX}")


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


#: So deep may be what a field of a command holds. The decoder takes 400 levels, of all that is
#: around it, too.
DEPTH_MAX = 256
_NESTING = frozenset({dict, list, tuple})

VERSION_CURRENT = 1
#: The machine version that brought bodies in parts.
LARGE_SINCE = 3
#: And streams.
STREAMS_SINCE = 4
#: And batches that a stream stores whole or not at all.
ATOMIC_SINCE = 5
#: Of deliveries that are given up.
REASONS_SINCE = 5
#: And of those that were sent to nobody.
UNSENT_SINCE = 5
#: And changes of consumers that leave the rest of their settings.
CHANGES_SINCE = 5
#: And batches that come from another stream.
ORIGINS_SINCE = 5
#: And single messages that are taken out of their queue, or delayed otherwise.
SURGERY_SINCE = 5
#: Since this one a queue may be deleted only when its consumers have settled all of it.
SETTLED_SINCE = 5
#: Consumers and ids of a stream's backup.
RESTORES_SINCE = 5
#: Since this one a change or a removal says which queue of that name is meant, and as what.
MEANT_SINCE = 5
#: What a field needs that may also be written for releases that do not know it.
PASSED_OVER = 1
#: CBOR: the first byte of every entry, and what stands before a number over 23.
LIST_OF_3 = 0x83
BYTE_FOLLOWS = 24
EIGHT_FOLLOW = 27
LIST_OF_1 = 0x81
#: The upper bits of the first byte.
NUMBER_KIND, LIST_KIND = 0, 4
#: The type without what a checker would conclude: that nothing is known of the elements.
LIST: Any = list


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command of a later version, or a damaged one. The machine refuses it: UNKNOWN_COMMAND."""

    tag: int
    fields: Sequence[Any]


AnyCommand = Command | Unknown


@value
class Entry:
    """One Raft entry: what was proposed together, at one instant of the leader's clock."""

    version: int
    now_ms: int
    commands: Sequence[AnyCommand]


def _triples(packed: Any) -> tuple[tuple[int, int, int], ...]:
    found = tuple([(first, last, token) for first, last, token in packed])
    if not all(type(number) is int for triple in found for number in triple):
        raise TypeError("deliveries are three integers each")
    return found


def _load_arriving(packed: Any) -> tuple[tuple[int, list[int], Any], ...]:
    found = tuple([(queue, list(sizes), attrs) for queue, sizes, attrs in packed])
    if not all(type(number) is int for queue, sizes, _ in found for number in (queue, *sizes)):
        raise TypeError("queues and sizes are integers")
    return found


def _triple(packed: Any) -> tuple[int, int, int]:
    return _triples([packed])[0]


def _pair(packed: Any) -> tuple[int, int]:
    return pairs([packed])[0]


def _integers(packed: Any) -> tuple[int, ...]:
    found = tuple(packed)
    if not all(type(number) is int for number in found):
        raise TypeError("sequences are integers")
    return found


def _load_handed(packed: Any) -> tuple[HandedTo, ...] | None:
    if packed is None:
        return None
    handed = [
        HandedTo(queue, consumer, mark, _triples(beyond))
        for queue, consumer, mark, beyond in packed
    ]
    if not all(type(number) is int for each in handed for number in each[:3]):
        raise TypeError("queue, consumer and mark are integers")
    return tuple(handed)


#: New settings of queues go into `fields_since` with the machine version that brought them.
_CONFIG = Layout(
    QueueConfig,
    fields_since={
        "stream": STREAMS_SINCE,
        "slo_oldest_age_ms": SLO_SINCE,
        "group_key": GROUP_KEY_SINCE,
    },
)
_HANDED = {"handed": _load_handed}
_RANGES = {"ranges": pairs}


def _load_safe_in(packed: Any) -> commands.SafeIn:
    found = tuple([(first, last, tuple(queues)) for first, last, queues in packed])
    for first, last, queues in found:
        if not all(type(number) is int for number in (first, last, *queues)):
            raise TypeError("numbers and queues are integers")
    return found


_CONFIG_LOAD = {"config": _CONFIG.load_map, "as_of": _pair}
_CONFIG_DUMP = {"config": _CONFIG.dump_map}


def _load_large(packed: Any) -> dict[int, tuple[str, tuple[tuple[int, int, int], ...]]] | None:
    """See `Enqueue.large`."""
    if packed is None:
        return None
    found = {place: (upload, _triples(parts)) for place, (upload, parts) in packed.items()}
    if not all(type(place) is int and type(each[0]) is str for place, each in found.items()):
        raise TypeError("a large body is an upload and its parts, by its place in the batch")
    return found


_ORIGIN = Layout(
    commands.Origin,
    load={"sequences": pairs, "times_ms": _integers},
    fields_since={"since": ORIGINS_SINCE},
)


def _load_origin(packed: Any) -> commands.Origin | None:
    return None if packed is None else _ORIGIN.load(packed)


def _dump_steps(steps: Sequence[AnyCommand]) -> list[Any]:
    return [pack_command(step) for step in steps]


def _load_steps(packed: Any) -> list[Any]:
    """Steps of a transaction, all of them well formed: else the whole command is Unknown."""
    steps = [unpack_command(fields) for fields in packed]
    if not all(isinstance(step, Step) for step in steps):
        raise TypeError("not a step of a transaction")
    return steps


def _dump_others(others: Any) -> list[Any]:
    return [[group, _dump_steps(steps)] for group, steps in others]


def _load_others(packed: Any) -> list[tuple[GroupId, list[Any]]]:
    return [(GroupId(operator.index(group)), _load_steps(steps)) for group, steps in packed]


def _load_changes(packed: Any) -> list[Any]:
    """Likewise of a change of the catalog."""
    steps = [unpack_command(fields) for fields in packed]
    if not all(isinstance(step, CatalogStep) for step in steps):
        raise TypeError("not a step of a change of the catalog")
    return steps


_STEPS_LOAD = {"steps": _load_steps}
_STEPS_DUMP = {"steps": _dump_steps}

_COMMANDS: dict[int, Layout] = {
    1: Layout(
        commands.CreateQueue,
        load=_CONFIG_LOAD,
        dump=_CONFIG_DUMP,
        fields_since={"as_of": PASSED_OVER, "new": PASSED_OVER},
    ),
    2: Layout(
        commands.UpdateQueue,
        load=_CONFIG_LOAD,
        dump=_CONFIG_DUMP,
        fields_since={"as_of": PASSED_OVER},
    ),
    3: Layout(
        commands.DeleteQueue,
        load={"as_of": _pair},
        fields_since={"if_settled": SETTLED_SINCE, "fence": PASSED_OVER, "as_of": PASSED_OVER},
    ),
    4: Layout(commands.OpenSession),
    5: Layout(commands.DetachSession, load=_HANDED, fields_since={"handed": 2}),
    6: Layout(commands.CloseSession, load=_HANDED, fields_since={"handed": 2}),
    7: Layout(commands.NodeDown),
    8: Layout(commands.NodeUp),
    9: Layout(
        commands.Enqueue,
        load={"large": _load_large, "origin": _load_origin},
        fields_since={"large": LARGE_SINCE, "atomic": ATOMIC_SINCE, "origin": ORIGINS_SINCE},
    ),
    10: Layout(commands.Subscribe),
    11: Layout(commands.Cancel),
    12: Layout(commands.SetCredit),
    13: Layout(commands.Settle, load=_RANGES),
    14: Layout(commands.Return, load=_RANGES, fields_since={"unsent": 2}),
    15: Layout(commands.Discard, load=_RANGES),
    16: Layout(commands.Extend, load=_RANGES),
    17: Layout(commands.Get, load={"positions": pairs}, fields_since={"positions": SURGERY_SINCE}),
    18: Layout(
        commands.Purge,
        fields_since=dict.fromkeys(("subject", "below", "keep"), STREAMS_SINCE),
    ),
    19: Layout(commands.Pause),
    20: Layout(commands.DeadLettersMoved),
    21: Layout(commands.Tick),
    22: Layout(commands.Barrier),
    23: Layout(commands.UpgradeMachine),
    24: Layout(commands.Handed, load={"deliveries": _triples}, since=2),
    25: Layout(commands.BodyPart, since=LARGE_SINCE),
    26: Layout(commands.DeleteMessage, since=STREAMS_SINCE),
    27: Layout(
        commands.PutConsumer, since=STREAMS_SINCE, fields_since={"begin": 5, "only": CHANGES_SINCE}
    ),
    28: Layout(commands.DropConsumer, since=STREAMS_SINCE),
    29: Layout(commands.Fetch, load={"requests": _triples}, since=STREAMS_SINCE),
    30: Layout(
        commands.Acknowledge,
        load={
            "done": pairs,
            "again": pairs,
            "working": _integers,
            "never": _integers,
            "reasons": _rows(int, str),
            "unsent": _rows(int, int, int, int),
        },
        since=STREAMS_SINCE,
        fields_since={"reasons": REASONS_SINCE, "unsent": UNSENT_SINCE},
    ),
    32: Layout(
        commands.Transaction,
        load={**_STEPS_LOAD, "others": _load_others},
        dump={**_STEPS_DUMP, "others": _dump_others},
    ),
    33: Layout(commands.TransactionPart, load=_STEPS_LOAD, dump=_STEPS_DUMP),
    34: Layout(commands.TransactionDone),
    35: Layout(
        commands.Reserve,
        load={"wants": _triples, "batches": _load_arriving},
        since=3,
        fields_since={"batches": PASSED_OVER, "source": PASSED_OVER},
    ),
    36: Layout(commands.Withdraw, load=_RANGES, since=SURGERY_SINCE),
    37: Layout(commands.Retime, load=_RANGES, since=SURGERY_SINCE),
    38: Layout(
        commands.RestoreConsumer,
        load={
            "delivered": _triple,
            "floor": _triple,
            "held": _rows(int, int, int, int),
            "picked": pairs,
            "exhausted": pairs,
        },
        since=RESTORES_SINCE,
    ),
    39: Layout(commands.RestoreIds, load={"ids": _rows(str, int, int)}, since=RESTORES_SINCE),
    40: Layout(commands.ResolveTransaction, since=RESOLVES_SINCE),
    41: Layout(
        commands.PutOffDeadLetters,
        load={**_RANGES, "safe_in": _load_safe_in},
        since=5,
        fields_since={"safe_in": 5},
    ),
    42: Layout(commands.SendDeadLetters, load=_RANGES, since=5),
    # the catalog
    64: Layout(commands.RegisterNode),
    65: Layout(commands.CreateGroup),
    66: Layout(commands.DeclareQueue, fields_since={"queue": PASSED_OVER}),
    67: Layout(commands.RemoveQueue, fields_since={"arguments": MEANT_SINCE}),
    68: Layout(commands.ForgetNode),
    69: Layout(commands.ForgetVolatile),
    70: Layout(commands.DeclareExchange),
    71: Layout(commands.DeleteExchange),
    72: Layout(commands.Bind),
    73: Layout(commands.Unbind),
    74: Layout(commands.PutEntry),
    75: Layout(commands.DropEntry),
    76: Layout(commands.AddNode),
    77: Layout(commands.RemoveNode),
    78: Layout(commands.NodeGone),
    79: Layout(commands.MoveGroup),
    80: Layout(commands.GroupHeld, fields_since={"era": ERAS_SINCE, "lost": ERAS_SINCE}),
    81: Layout(commands.ChangeCatalog, load={"steps": _load_changes}, dump=_STEPS_DUMP, since=3),
    82: Layout(commands.ChangeQueue, since=STREAMS_SINCE, fields_since={"queue": MEANT_SINCE}),
}


def _load_body_ref(fields: Any) -> BodyRef:
    index, offset, count = fields
    return BodyRef(index, offset, count)


_CHUNK = Layout(Chunk, load={"bodies": _load_body_ref})


def _dump_chunks(chunks: Any) -> list[Any]:
    return [_CHUNK.dump(chunk) for chunk in chunks]


def _load_chunks(chunks: Any) -> list[Chunk]:
    return [_CHUNK.load(fields) for fields in chunks]


_STREAM_CHUNK = Layout(StreamChunk, load={"bodies": _load_body_ref})


def _dump_batches(batches: Any) -> list[Any]:
    return [
        [number, [_STREAM_CHUNK.dump(chunk) for chunk in chunks], note]
        for number, chunks, note in batches
    ]


def _load_batches(batches: Any) -> list[tuple[int, list[StreamChunk], str]]:
    return [
        (number, [_STREAM_CHUNK.load(fields) for fields in chunks], note)
        for number, chunks, note in batches
    ]


_REPLIES: dict[int, Layout] = {
    1: Layout(replies.Ok),
    2: Layout(replies.Refused),
    3: Layout(replies.Enqueued, load={"refused": pairs}, fields_since={"answers": STREAMS_SINCE}),
    4: Layout(replies.Subscribed),
    5: Layout(replies.Got, load={"chunks": _load_chunks}, dump={"chunks": _dump_chunks}),
    6: Layout(replies.Declared),
    7: Layout(replies.PartKept),
    8: Layout(replies.Fetched, load={"batches": _load_batches}, dump={"batches": _dump_batches}),
    16: Layout(replies.Committed),
}

_GATED: dict[Any, Layout] = {each.kind: each for each in _COMMANDS.values() if each.gated}
#: What has other things in it that may be newer, or names a version.
_HOLDERS = {
    commands.CreateQueue,
    commands.UpdateQueue,
    commands.DeclareQueue,
    commands.ChangeQueue,
    commands.PutConsumer,
    commands.PutEntry,
    commands.UpgradeMachine,
    commands.ChangeCatalog,
    Transaction,
    TransactionPart,
}
_COMMAND_TAGS: dict[Any, int] = {layout.kind: tag for tag, layout in _COMMANDS.items()}
_REPLY_TAGS: dict[Any, int] = {layout.kind: tag for tag, layout in _REPLIES.items()}


def version_needed(command: Command) -> int:
    """The machine version that a group must have before this command may be proposed to it."""
    if type(command) is Enqueue:  # nearly all of them
        if command.atomic or command.origin is not None:
            return max(ATOMIC_SINCE, ORIGINS_SINCE)
        if keys_of(command.attrs) is not None:
            return GROUP_KEY_SINCE
        return 1 if command.large is None else LARGE_SINCE
    kind = type(command)
    layout = _GATED.get(kind)
    version = 1 if layout is None else layout.version_needed(command)
    return max(version, _needed_within(command)) if kind in _HOLDERS else version


def _needed_within(command: Command) -> int:
    match command:
        case Transaction():
            others = [step for _, steps in command.others for step in steps]
            return max(map(version_needed, [*command.steps, *others]), default=1)
        case TransactionPart():
            return max(map(version_needed, command.steps), default=1)
        case commands.ChangeCatalog():
            return max(map(version_needed, command.steps), default=1)
        case commands.CreateQueue() | commands.UpdateQueue():
            version = _CONFIG.version_needed(command.config)
            return max(version, _newest_of(command.config.stream, STREAM_FIELDS_SINCE))
        case commands.DeclareQueue() | commands.ChangeQueue():
            version = _COMMANDS[_COMMAND_TAGS[type(command)]].since
            if SLO_OLDEST_AGE in command.arguments:
                version = max(version, SLO_SINCE)
            if GROUP_KEY in command.arguments:
                version = max(version, GROUP_KEY_SINCE)
            given = command.arguments.get(STREAM_CONFIG)
            return max(version, _newest_of(given, STREAM_FIELDS_SINCE))
        case commands.PutEntry():
            version = _newest_of(command.value.get("definition"), SETTINGS_SINCE)
            streams = command.value.get("apply_to") == STREAMS
            return max(version, STREAM_POLICIES_SINCE if streams else 1)
        case commands.PutConsumer():
            return _newest_of(command.config, CONSUMER_FIELDS_SINCE)
        case commands.UpgradeMachine():
            return command.to
        case _:
            raise AssertionError(f"{command} holds nothing")


def _newest_of(config: Any, since: Mapping[str, int]) -> int:
    """The machine version that brought what this configuration of JetStream says."""
    if not isinstance(config, Mapping):
        return 1
    given = cast("Mapping[str, Any]", config)
    return max((version for name, version in since.items() if given.get(name)), default=1)


# --- as lists, to be carried inside a larger message ----------------------------------------------


def pack_command(command: AnyCommand) -> list[Any]:
    """The command as a list that CBOR can hold."""
    if type(command) is Enqueue:  # the one that carries nearly all the bytes
        meta = command.meta
        beside = cast("list[Any]", meta) if type(meta) is list else [meta]
        if not _NESTING.isdisjoint(map(type, beside)):
            _check_depth(meta)
        fields = [
            9,
            command.queue,
            command.publisher,
            command.seqno,
            command.bodies,
            command.meta,
            command.attrs,
        ]
        if command.origin is not None:
            fields += [command.large, command.atomic, _ORIGIN.dump(command.origin)]
            return fields
        if command.large is not None or command.atomic:
            fields.append(command.large)
        if command.atomic:
            fields.append(True)
        return fields
    if isinstance(command, Unknown):
        return [command.tag, *command.fields]
    tag = _COMMAND_TAGS[type(command)]
    return [tag, *_COMMANDS[tag].dump(command)]


def tag_of(kind: type[Any]) -> int:
    """What the list of such a command begins with."""
    return _COMMAND_TAGS[kind]


def unpack_command(fields: Any) -> AnyCommand:
    """The other way. CodecError when it is no command at all; Unknown when we do not know it."""
    if not isinstance(fields, LIST) or not fields or type(fields[0]) is not int:
        raise CodecError("a command is a list that starts with its number")
    tag, values = fields[0], fields[1:]
    layout = _COMMANDS.get(tag)
    if layout is None:
        return Unknown(tag, values)
    try:
        return layout.load(values)
    except CodecError:
        return Unknown(tag, values)


def pack_reply(reply: Reply) -> list[Any]:
    tag = _REPLY_TAGS[type(reply)]
    return [tag, *_REPLIES[tag].dump(reply)]


def unpack_reply(fields: Any) -> Reply:
    """CodecError also for a reply of a later version: its outcome is unknown to who asked."""
    if not isinstance(fields, list) or not fields:
        raise CodecError("a reply is a list that starts with its number")
    tag, *values = cast("list[Any]", fields)
    layout = _REPLIES.get(tag) if type(tag) is int else None
    if layout is None:
        raise CodecError(f"no reply has the number {tag!r}")
    return layout.load(values)


# --- as bytes -------------------------------------------------------------------------------------


def encode_entry(
    now_ms: int, commands: Sequence[AnyCommand], version: int = VERSION_CURRENT
) -> bytes:
    """The payload of one Raft entry."""
    return pack([version, now_ms, list(map(pack_command, commands))])


def written_under(data: bytes, at: int = 0) -> int:
    """The machine version of the entry that begins there, without reading more of it; 0: it is
    none.
    """
    if len(data) < at + 3 or data[at] != LIST_OF_3:
        return 0
    short, long = data[at + 1], data[at + 2]
    return short if short < BYTE_FOLLOWS else long if short == BYTE_FOLLOWS else 0


def unpack_entry(data: bytes | bytearray | memoryview) -> tuple[int, int, list[Any]]:
    """Version, time and commands of this payload; `unpack_command` makes a command of each list.
    CodecError only when the bytes are no entry.
    """
    entry = unpack(data)
    if not isinstance(entry, LIST) or len(entry) < 3:
        raise CodecError("an entry is a list of version, time and commands")
    version, now_ms, packed = entry[:3]
    if type(version) is not int or type(now_ms) is not int or not isinstance(packed, LIST):
        raise CodecError("an entry is a list of version, time and commands")
    if version < 1:
        raise CodecError(f"no entry has version {version}")
    return version, now_ms, packed


def decode_entry(data: bytes | bytearray | memoryview) -> Entry:
    """The entry of this payload. CodecError only when the bytes are no entry."""
    version, now_ms, packed = unpack_entry(data)
    return Entry(version, now_ms, list(map(unpack_command, packed)))


def start_of_enqueue(queue: QueueId, publisher: str) -> bytes:
    """What stands in an entry before the number of each enqueue to that queue by that publisher.
    Behind the number stands how many bodies it has: see `number_at`. It may stand in a body, too.
    """
    return pack(tag_of(Enqueue)) + pack(queue) + pack(publisher)


def only_tag(data: bytes, at: int = 0) -> int | None:
    """What the only command of the entry that begins there begins with, without reading more of it.
    None: it has several, or that is not seen at a glance.
    """
    if len(data) < at + 14 or data[at + 11] != LIST_OF_1 or data[at + 2] != EIGHT_FOLLOW:
        return None
    version, kind, tag = data[at + 1], data[at + 12] >> 5, data[at + 13]
    glanced = data[at] == LIST_OF_3 and version < BYTE_FOLLOWS and kind == LIST_KIND
    return tag if glanced and tag < BYTE_FOLLOWS else None


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """The number, or the length of the list, that is written there, and where it ends. CodecError:
    there is neither.
    """
    kind, value = divmod(data[at], 1 << 5) if at < len(data) else (-1, 0)
    end = at + 1
    if value >= BYTE_FOLLOWS:
        size = 1 << (value - BYTE_FOLLOWS)
        end += size
        value = int.from_bytes(data[at + 1 : end], "big") if size <= 8 and end <= len(data) else -1
    if kind not in {NUMBER_KIND, LIST_KIND} or value < 0:
        raise CodecError("neither a number nor a list")
    return value, end


def encode_command(command: AnyCommand) -> bytes:
    return pack(pack_command(command))


def decode_command(data: bytes | bytearray | memoryview) -> AnyCommand:
    return unpack_command(unpack(data))


def encode_reply(reply: Reply) -> bytes:
    return pack(pack_reply(reply))


def decode_reply(data: bytes | bytearray | memoryview) -> Reply:
    return unpack_reply(unpack(data))


# --- bodies ---------------------------------------------------------------------------------------


def body_of(body: bytes, large: Any) -> Body:
    """As it is for consumers. `large`: what the command says of it, if anything."""
    if large is None:
        return body
    return LargeBody(body, tuple(large[1]))


def _bodies_in(enqueue: Enqueue) -> Sequence[Body]:
    large = enqueue.large
    if large is None:
        return enqueue.bodies
    return [body_of(body, large.get(place)) for place, body in enumerate(enqueue.bodies)]


def enqueues_in(command: AnyCommand) -> Iterator[Enqueue]:
    """The command itself, or those among the steps of a transaction: all that have bodies which a
    `BodyRef` can name. What a transaction decides for other groups has none here.
    """
    if type(command) is Enqueue:
        yield command
    elif type(command) is Transaction or type(command) is TransactionPart:
        for step in command.steps:
            if type(step) is Enqueue:
                yield step


def body_count(command: AnyCommand) -> int:
    """Bodies that count in `Stamp.body_offset` of the commands behind it."""
    if type(command) is Enqueue:
        return len(command.bodies)
    if type(command) is Transaction or type(command) is TransactionPart:
        return sum(len(each.bodies) for each in enqueues_in(command))
    return 1 if type(command) is BodyPart else 0


def messages_of(entry: Entry) -> list[tuple[Body, Any]]:
    """Body and meta of all messages of the entry in order, parts of large bodies among them:
    `BodyRef.offset` indexes this list. A shared meta is repeated; a list always means one per body.
    """
    found: list[tuple[Body, Any]] = []
    for command in entry.commands:
        if type(command) is BodyPart:
            found.append((command.data, None))
            continue
        for enqueue in (command,) if type(command) is Enqueue else enqueues_in(command):
            bodies = enqueue.bodies if enqueue.large is None else _bodies_in(enqueue)
            metas = cast("list[Any]", enqueue.meta)
            if type(metas) is list and len(metas) == len(bodies):
                found.extend(zip(bodies, metas, strict=True))
            else:
                found.extend(zip(bodies, repeat(enqueue.meta), strict=False))
    return found


def part_of(entry: Entry, offset: int) -> bytes | None:
    """A part of a large body, by its offset among the bodies of the entry."""
    at = 0
    for command in entry.commands:
        if type(command) is BodyPart and at == offset:
            return command.data
        at += body_count(command)
    return None


def body_offsets(commands: Sequence[AnyCommand]) -> list[int]:
    """Bodies before each command of an entry: what `Stamp.body_offset` of each must be."""
    offsets: list[int] = []
    total = 0
    for command in commands:
        offsets.append(total)
        total += body_count(command)
    return offsets
