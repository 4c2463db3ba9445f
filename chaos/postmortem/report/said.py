"""What nodes noted of themselves, in words: what changed between starts, alarms, trouble."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from chaos.postmortem.report.facts import Moment

#: Of a note's payload: it may be anything.
KINDS: Final = ("started", "settings", "alarm", "publishers", "failed", "archive")
#: Settings that are named, and how much of a value.
CHANGES_MAX: Final = 6
VALUE_MAX: Final = 60
#: What two nodes say of one alarm may be this far apart.
SAME_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Note:
    node: str
    kind: str
    at_ns: int
    detail: str | None


def moments(notes: Iterable[Note]) -> list[Moment]:
    """`notes` of each node are in the order of its log."""
    notes = list(notes)
    alarms = [each for each in notes if each.kind == "alarm"]
    by_node = dict[str, list[Note]]()
    for each in notes:
        if each.kind != "alarm":
            by_node.setdefault(each.node, []).append(each)
    found = [moment for own in by_node.values() for moment in _of_node(own)]
    return sorted([*found, *_alarms(alarms)], key=lambda each: (each.at_ns, each.node))


def _of_node(own: Iterable[Note]) -> Iterator[Moment]:
    before: dict[str, str] | None = None
    versions: tuple[Any, ...] | None = None
    for note in own:
        match note.kind, _fields(note):
            case "started", [_, str(release), machine, log_format, *_]:
                now = (release, machine, log_format)
                if versions is not None and versions != now:
                    yield _at(note, f"another release: {_words(versions)}, now {_words(now)}")
                versions = now
            case "settings", [dict(), *_]:
                settings = cast("dict[str, str]", _fields(note)[0])
                if before is not None and (told := _changed(before, settings)):
                    yield _at(note, f"settings changed: {told}")
                before = settings
            case "publishers", [None, *_]:
                yield _at(note, "publishers go on")
            case "publishers", [str(reason), *_]:
                yield _at(note, f"publishers wait: {reason}")
            case "failed", [str(reason), int(at_ns), *_]:
                yield Moment(note.node, at_ns, f"the process ended by itself: {reason}")
            case "archive", [None, *_]:
                yield _at(note, "the archive works again")
            case "archive", [str(reason), *_]:
                yield _at(note, f"segments cannot be archived: {reason}")
            case _:
                pass


def _at(note: Note, text: str) -> Moment:
    return Moment(note.node, note.at_ns, text)


def _fields(note: Note) -> list[Any]:
    try:
        fields = json.loads(note.detail or "null")
    except ValueError:
        return []
    return cast("list[Any]", fields) if isinstance(fields, list) else []


def _words(versions: tuple[Any, ...]) -> str:
    release, machine, log_format = versions
    return f"{release or 'unknown'} (machine {machine}, log format {log_format})"


def _changed(before: dict[str, str], now: dict[str, str]) -> str:
    def value(settings: dict[str, str], key: str) -> str:
        return str(settings.get(key, "(none)"))[:VALUE_MAX]

    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    told = [f"{key}: {value(before, key)} -> {value(now, key)}" for key in keys[:CHANGES_MAX]]
    if len(keys) > CHANGES_MAX:
        told.append(f"and {len(keys) - CHANGES_MAX} more")
    return "; ".join(told)


def _alarms(notes: Iterable[Note]) -> Iterator[Moment]:
    """Each once, as the node itself says it; of one that could not, as others heard it."""
    known = dict[tuple[str, bool, bool], list[int]]()
    for note in sorted(notes, key=lambda each: (_fields(each)[:1] != [each.node], each.at_ns)):
        match _fields(note):
            case [str(about), bool(memory), bool(disk), *_]:
                times = known.setdefault((about, memory, disk), [])
                if any(abs(at_ns - note.at_ns) <= SAME_NS for at_ns in times):
                    continue
                times.append(note.at_ns)
                low = " and ".join(
                    name for name, is_low in (("memory", memory), ("disk", disk)) if is_low
                )
                text = f"low on {low}" if low else "no longer low on anything"
                text += "" if about == note.node else f", as {note.node} heard"
                yield Moment(about, note.at_ns, text)
            case _:
                pass
