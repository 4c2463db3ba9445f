"""Tables of the report, folded away: for those who want to know more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from chaos.postmortem.report.facts import (
    Active,
    ClientRow,
    ClockRow,
    Damage,
    Election,
    Facts,
    Moment,
    NodeRow,
    QueueRow,
    ReplayRow,
    Storm,
)
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.units import (
    clock,
    duration,
    number,
    numbers,
    plural,
    size,
    stamp,
)

T = TypeVar("T")
#: Heading, and what is in a row. A heading that begins with `>` has its column to the right, one
#: that begins with `=` is never broken into lines.
Column = tuple[str, Callable[[T], Content]]

SHOWN_MAX: Final = 200

_STYLES: Final[Mapping[str, str]] = {">": "right", "=": "whole"}


def sheet(rows: Sequence[T], columns: Sequence[Column[T]], more: int = 0) -> Markup:
    heads = [(head.lstrip("".join(_STYLES)), _STYLES.get(head[:1])) for head, _ in columns]
    body = [
        tag(
            "tr",
            [
                tag("td", value(row), class_=side)
                for (_, side), (_, value) in zip(heads, columns, strict=True)
            ],
        )
        for row in rows[:SHOWN_MAX]
    ]
    more += max(len(rows) - SHOWN_MAX, 0)
    return Markup(
        tag(
            "table",
            tag("thead", tag("tr", [tag("th", head, class_=side) for head, side in heads])),
            tag("tbody", body),
        )
        + (tag("p", f"… and {more:,} more", class_="quiet small") if more else "")
    )


def folded(
    title: str, told: str, content: Content, *, open_: bool = False, class_: str | None = None
) -> Markup:
    """`told`: what there is to see, so that one need not unfold it."""
    summary = tag("summary", title, tag("span", f" — {told}", class_="quiet") if told else None)
    return tag("details", summary, tag("div", content), open=open_, class_=class_)


def sheets(facts: Facts) -> list[Markup]:
    """Those that have rows."""
    more: Counter[str] = Counter(facts.more)
    held = [row for row in facts.queues if row.held or row.longest_ms]
    found = [
        _nodes(facts.nodes) if facts.nodes else None,
        _damages(facts.damages, more["damages"]) if facts.damages else None,
        _moments(facts.moments, more["moments"] + more["noted"]) if facts.moments else None,
        _elections(facts.elections, more["elections"]) if facts.elections else None,
        _queues(facts.queues, more["queues"]) if facts.queues else None,
        _held(held) if held else None,
        _storms(facts.storms, more["storms"]) if facts.storms else None,
        _active(facts.active, more["active"]) if facts.active else None,
        _clocks(facts.clocks) if facts.clocks else None,
        _replays(facts.replays) if facts.replays else None,
        _clients(facts.clients) if facts.clients else None,
    ]
    return [each for each in found if each is not None]


def _nodes(rows: Sequence[NodeRow]) -> Markup:
    columns: list[Column[NodeRow]] = [
        ("node", lambda row: row.node),
        ("from", lambda row: row.source),
        ("segments", lambda row: row.segments),
        (">files", lambda row: number(row.files)),
        (">copies", lambda row: number(row.copies) if row.copies else ""),
        (">damaged", lambda row: number(row.unsound) if row.unsound else ""),
        (">not read", lambda row: number(row.unread) if row.unread else ""),
        (">size", lambda row: size(row.bytes)),
        (">records", lambda row: number(row.records)),
        (">entries", lambda row: number(row.entries)),
        ("=first record", lambda row: stamp(row.from_ns)),
        ("=last record", lambda row: stamp(row.to_ns)),
    ]
    files, there = sum(row.files for row in rows), len({row.node for row in rows if row.files})
    told = (
        f"{plural(there, 'node')}, {plural(files, 'file')}, {size(sum(row.bytes for row in rows))}"
    )
    if absent := [row.node for row in rows if row.source == "not given"]:
        told += f"; of {', '.join(absent)} nothing was given"
    return folded("Nodes and their files", told, sheet(rows, columns))


def _damages(rows: Sequence[Damage], more: int) -> Markup:
    columns: list[Column[Damage]] = [
        ("node", lambda row: row.node),
        ("what", lambda row: row.kind),
        ("why", lambda row: row.reason),
        (">group", lambda row: None if row.group in (None, -1) else str(row.group)),
        ("entries", lambda row: entries(row.first, row.last)),
        ("where", lambda row: place(row.file, row.offset)),
    ]
    return folded("Damage", plural(len(rows) + more, "place"), sheet(rows, columns, more))


def _moments(rows: Sequence[Moment], more: int) -> Markup:
    columns: list[Column[Moment]] = [
        ("=time", lambda row: stamp(row.at_ns)),
        ("node", lambda row: row.node),
        ("what", lambda row: row.text),
    ]
    return folded("What nodes noted", plural(len(rows) + more, "note"), sheet(rows, columns, more))


def _elections(rows: Sequence[Election], more: int) -> Markup:
    columns: list[Column[Election]] = [
        ("=time", lambda row: stamp(row.at_ns)),
        (">group", lambda row: str(row.group)),
        (">term", lambda row: str(row.term)),
        ("candidate", lambda row: row.candidate),
        ("votes of", lambda row: ", ".join(row.voters)),
        ("leader", lambda row: row.leader or "nobody known"),
        ("before", lambda row: row.before),
        ("why", lambda row: row.cause),
        (">without leader", lambda row: duration(row.without_leader_ms)),
    ]
    unplanned, in_vain = sum(row.unplanned for row in rows), sum(row.in_vain for row in rows)
    told = f"{plural(len(rows) + more, 'election')}, {unplanned} of them unplanned"
    told += f", {in_vain} won by nobody" if in_vain else ""
    return folded("Elections", told, sheet(rows, columns, more))


def _queues(rows: Sequence[QueueRow], more: int) -> Markup:

    def worst(kind: str) -> Callable[[QueueRow], Content]:
        return lambda row: duration(row.p99.get(kind))

    columns: list[Column[QueueRow]] = [
        ("queue", lambda row: row.queue.title),
        (">group", lambda row: str(row.queue.group)),
        (">published", lambda row: number(row.published)),
        (">delivered", lambda row: number(row.delivered)),
        (">of them again", lambda row: number(row.redelivered)),
        (">settled", lambda row: number(row.settled)),
        (">died", lambda row: number(row.dead)),
        (">confirm", worst("confirm")),
        (">deliver", worst("deliver")),
        (">settle", worst("settle")),
    ]
    about = tag(
        "p",
        "Latencies: p99 of the worst minute. Confirm: from publish to confirm; deliver: from"
        " publish to the first delivery; settle: from delivery to settlement.",
        class_="quiet small",
    )
    told = f"{plural(len(rows) + more, 'queue')}, {sum(row.published for row in rows):,} published"
    return folded("Queues", told, [about, sheet(rows, columns, more)])


def _held(rows: Sequence[QueueRow]) -> Markup:
    columns: list[Column[QueueRow]] = [
        ("queue", lambda row: row.queue.title),
        (">unsettled at the end", lambda row: number(row.held)),
        ("=the oldest since", lambda row: stamp(row.oldest_ns)),
        (">longest ever", lambda row: duration(row.longest_ms)),
    ]
    told = f"{sum(row.held for row in rows):,} unsettled at the end of the log"
    return folded("With consumers", told, sheet(rows, columns))


def _storms(rows: Sequence[Storm], more: int) -> Markup:
    columns: list[Column[Storm]] = [
        ("=minute", lambda row: stamp(row.minute_ns)[:16]),
        ("queue", lambda row: row.queue.title),
        (">delivered", lambda row: number(row.delivered)),
        (">of them again", lambda row: number(row.redelivered)),
        (">share", lambda row: f"{100 * row.redelivered / max(row.delivered, 1):.0f} %"),
        (">messages", lambda row: number(row.messages)),
        (">consumers", lambda row: number(row.consumers)),
    ]
    told = f"{plural(len(rows) + more, 'minute')} with deliveries again, the worst first"
    return folded("Redeliveries", told, sheet(rows, columns, more))


def _active(rows: Sequence[Active], more: int) -> Markup:
    columns: list[Column[Active]] = [
        ("queue", lambda row: row.queue.title),
        ("consumer", lambda row: "nobody" if row.consumer is None else str(row.consumer)),
        ("session", lambda row: row.session),
        (">from token", lambda row: str(row.token)),
        (">until token", lambda row: None if row.until_token is None else str(row.until_token)),
        ("=from", lambda row: stamp(row.from_ns)),
        ("=to", lambda row: stamp(row.to_ns) or "the end of the log"),
        (">entry", lambda row: None if row.entry is None else str(row.entry)),
    ]
    told = plural(len({row.queue for row in rows}), "queue")
    return folded("Single active consumers", told, sheet(rows, columns, more))


def _clocks(rows: Sequence[ClockRow]) -> Markup:
    columns: list[Column[ClockRow]] = [
        ("clock of", lambda row: row.peer),
        ("against", lambda row: row.node),
        (">ahead by, least", lambda row: f"{row.lowest_ms:+.1f} ms"),
        (">most", lambda row: f"{row.highest_ms:+.1f} ms"),
        (">error at most", lambda row: f"± {row.bound_ms:.1f} ms"),
        (">samples", lambda row: number(row.samples)),
    ]
    most = max(max(abs(row.lowest_ms), abs(row.highest_ms)) for row in rows)
    return folded("Clocks", f"{duration(most)} apart at most", sheet(rows, columns))


def _replays(rows: Sequence[ReplayRow]) -> Markup:
    columns: list[Column[ReplayRow]] = [
        (">group", lambda row: str(row.group)),
        (">spans", lambda row: number(row.spans)),
        ("entries", lambda row: entries(row.first, row.last)),
        (">replayed", lambda row: number(row.entries)),
        (">messages", lambda row: number(row.messages)),
        (">states alike", lambda row: number(row.agreed)),
        (">differ", lambda row: number(row.differed) if row.differed else ""),
        ("failed", lambda row: row.failed),
    ]
    failed = [row.group for row in rows if row.failed]
    told = f"{plural(len(rows), 'group')}, {sum(row.entries for row in rows):,} entries"
    told += f"; not all of {numbers(failed)}" if failed else ""
    return folded("Replay", told, sheet(rows, columns), open_=bool(failed))


def _clients(rows: Sequence[ClientRow]) -> Markup:
    columns: list[Column[ClientRow]] = [
        ("checker", lambda row: row.checker),
        ("what", lambda row: row.kind),
        (">count", lambda row: number(row.count)),
        ("for example", lambda row: row.example),
    ]
    told = plural(sum(row.count for row in rows), "anomaly", "anomalies")
    return folded("What clients saw", told, sheet(rows, columns))


def entries(first: int | None, last: int | None) -> str:
    """Without commas: they are looked for in other tools."""
    if first is None:
        return ""
    return f"{first}" if last is None or last == first else f"{first} – {last}"


def place(file: str | None, offset: int | None) -> Markup:
    """A file and an offset, as `quorate log dump` wants them."""
    if file is None:
        return Markup()
    return tag("code", file if offset is None else f"{file} at {offset}")


def when(from_ns: int | None, to_ns: int | None) -> str:
    """03:04:10.4 – 03:04:12.9 (2.5 s)"""
    if from_ns is None:
        return ""
    if to_ns is None or to_ns <= from_ns:
        return clock(from_ns)
    return f"{clock(from_ns)} – {clock(to_ns)}"
