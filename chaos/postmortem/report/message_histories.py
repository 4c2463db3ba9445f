"""One message's history: what became of it, step by step, as the replay says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.postmortem.report.facts import MessageHistory, Step
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.sheets import Column, sheet
from chaos.postmortem.report.units import duration, plural, stamp

_DEATHS: Final = {
    "rejected": "a consumer rejected it",
    "expired": "its time was over",
    "maxlen": "the queue was full",
    "delivery_limit": "it failed too often",
}


def message_histories(histories: Sequence[MessageHistory], more: int = 0) -> list[Markup]:
    """Nothing when nobody asked."""
    if not histories:
        return []
    found = [tag("h2", f"Message {histories[0].id}", id="message")]
    for history in histories:
        if history.queue is None:
            told = (
                "No such message in what was read. An id is GROUP-ENTRY-OFFSET: see table messages."
            )
            return [*found, tag("p", told)]
        found += [tag("p", _short(history)), sheet(_with_waits(history), _COLUMNS, more)]
    return found


def _short(history: MessageHistory) -> str:
    queue = "" if history.queue is None else history.queue.title
    told = f"Queue {queue}, position {history.position}, "
    told += plural(history.deliveries, "delivery", "deliveries")
    if history.redeliveries:
        told += f" ({history.redeliveries} of them marked as redelivered)"
    told += f"; {history.outcome}" if history.outcome else ""
    if history.reason:
        told += f" ({_DEATHS.get(history.reason, history.reason)})"
    if history.outcome_ns and history.published_ns:
        told += f" {duration((history.outcome_ns - history.published_ns) / 1e6)} after the publish"
    if history.confirm_ms is not None:
        told += f". Confirmed after {duration(history.confirm_ms)}"
    return told + "."


def _with_waits(history: MessageHistory) -> list[tuple[Step, float | None]]:
    """Each step and how long after the one before it came, in ms."""
    before = [None, *(step.at_ns for step in history.steps)]
    return [
        (step, None if earlier is None else (step.at_ns - earlier) / 1e6)
        for step, earlier in zip(history.steps, before, strict=False)
    ]


_COLUMNS: Final[list[Column[tuple[Step, float | None]]]] = [
    ("=time", lambda row: stamp(row[0].at_ns)),
    (">after", lambda row: "+ " + duration(row[1]) if row[1] else ""),
    ("what", lambda row: what(row[0])),
    ("by", lambda row: who(row[0])),
    (">entry", lambda row: str(row[0].index)),
    (">term", lambda row: str(row[0].term)),
]


def what(step: Step) -> str:
    """One event in words."""
    match step.event:
        case "published" | "letter":
            told = "published" if step.event == "published" else "came as a dead letter"
            return told if step.seqno is None else f"{told}, sequence number {step.seqno}"
        case "known":
            return "was there when the replay began"
        case "delivered" | "got" | "handed":
            before = plural(step.acquired or 0, "time")
            return f"delivered again, {before} before" if step.acquired else "delivered"
        case "settled":
            if step.reason == "acked":
                return "left the stream: all who wanted it have acknowledged it"
            return "settled by its delivery" if step.reason == "auto" else "settled"
        case "acked":
            return "acknowledged"
        case "returned":
            if step.reason == "unsent":
                return "returned, and was never sent"
            failed = ", counted as a failure" if step.failed else ""
            return ("the consumer ended" if step.reason == "ended" else "returned") + failed
        case "died":
            on = ", goes on as a dead letter" if step.goes else ""
            return f"died: {_DEATHS.get(step.reason or '', step.reason or 'unknown why')}{on}"
        case "moved":
            return "moved to another group as a dead letter"
        case other:
            return other


def who(step: Step) -> Content:
    known = [
        f"publisher {step.publisher}" if step.publisher else None,
        f"consumer {step.consumer}" if step.consumer is not None else None,
        f"session {step.session}" if step.session else None,
        f"token {step.token}" if step.token is not None else None,
    ]
    return ", ".join(each for each in known if each)
