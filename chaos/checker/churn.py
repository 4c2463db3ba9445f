"""Queues and exchanges that come and go under reused names keep what they confirmed.

A name is judged only while it is surely there: an op of unknown outcome may take effect at any time
after it was asked for, so what it may have deleted is never judged again. A message is in a
queue for sure when the queue, or the binding that leads to it, was there before the message was
published, and nothing that ends either was asked for until then; it must have come out by the time
the queue was found empty, if nobody asked for its deletion before.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from chaos.checker.deliveries import published
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op, OpType

_NEVER = 1 << 62
#: In the reason of a refusal: it was there, with other arguments; there was nowhere to go.
_CONTRADICTS = re.compile(r"inequivalent|PRECONDITION_FAILED|\b406\b", re.IGNORECASE)
_NO_ROUTE = re.compile(r"routed nowhere|NO_ROUTE|\b312\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Span:
    """An op: when it may have had its effect."""

    start: int
    end: int  # _NEVER: it may still have it
    type: OpType
    op: Op  # its outcome; its invocation, if nothing else is known


class _Spans:
    """Of what ends something, or makes it: by their starts."""

    def __init__(self, spans: Iterable[_Span]) -> None:
        self._spans = sorted(
            (span for span in spans if span.type != "refused"), key=lambda span: span.start
        )
        self._starts = [span.start for span in self._spans]
        self._ends = list(accumulate((span.end for span in self._spans), max))

    def touch(self, first: int, last: int) -> bool:
        at = bisect_right(self._starts, last)
        return at > 0 and self._ends[at - 1] >= first

    def done_before(self, index: int) -> _Span | None:
        """The newest that was surely done by then."""
        for span in reversed(self._spans[: bisect_left(self._starts, index)]):
            if span.type == "ok" and span.end < index:
                return span
        return None


_NONE = _Spans(())


class _Names:
    """What was done to the names of a history."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.spans = list(_spans(ops))
        by_thing: dict[tuple[str, ...], list[_Span]] = defaultdict(list)
        for span in self.spans:
            value = span.op.value
            if span.op.f in ("bind", "unbind"):
                thing = (span.op.f, value["queue"], value["exchange"], value["key"])
            elif span.op.f in ("declare", "delete") and "exchange" in value:
                thing = (span.op.f, "exchange", value["exchange"])
            elif span.op.f in ("declare", "delete", "drain"):
                thing = (span.op.f, value["queue"])
            else:
                continue
            by_thing[thing].append(span)
        self._by_thing = {thing: _Spans(spans) for thing, spans in by_thing.items()}
        self.fanout = {
            span.op.value["exchange"]
            for span in self.spans
            if span.op.f == "declare" and span.op.value.get("kind") == "fanout"
        }
        self._bound: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for thing in self._by_thing:
            if thing[0] == "bind":
                _, queue, exchange, key = thing
                self._bound[exchange].add((queue, key))
        self.drains: dict[str, list[_Span]] = defaultdict(list)
        for span in self.spans:
            if span.op.f == "drain" and span.type == "ok":
                self.drains[span.op.value["queue"]].append(span)

    def of(self, *thing: str) -> _Spans:
        return self._by_thing.get(thing, _NONE)

    def targets(self, publish: Op) -> Iterator[tuple[str, str | None]]:
        """Queues where it may have gone, with the key of the binding."""
        exchange, key = publish.value.get("exchange"), publish.value.get("key")
        if not exchange:
            yield publish.value["queue"], None
            return
        for queue, bound in self._bound[exchange]:
            if exchange in self.fanout or bound == key:
                yield queue, bound

    def leads_since(self, publish: _Span, queue: str, key: str | None) -> int | None:
        """Since when the way to the queue was there for sure, until the message was stored."""
        if key is None:
            made = self.of("declare", queue).done_before(publish.start)
        else:
            exchange = publish.op.value["exchange"]
            made = self.of("bind", queue, exchange, key).done_before(publish.start)
            if made is not None and (
                self.of("delete", "exchange", exchange).touch(made.start, publish.end)
                or self.of("unbind", queue, exchange, key).touch(made.start, publish.end)
            ):
                return None
        if made is None or self.of("delete", queue).touch(made.start, publish.end):
            return None
        return made.start


def churn(ops: Sequence[Op]) -> Verdict:
    names = _Names(ops)
    delivered = {
        (op.value["queue"], message)
        for op in ops
        if op.f == "deliver"
        for message in op.value["messages"]
    }
    lost: list[str] = []
    unroutable: list[str] = []
    judged = 0
    for publish in names.spans:
        if publish.op.f != "publish" or publish.end == _NEVER:
            continue
        for queue, key in names.targets(publish.op):
            since = names.leads_since(publish, queue, key)
            if since is None:
                continue
            if publish.type == "refused" and _NO_ROUTE.search(_reason(publish)):
                unroutable.append(f"op {publish.op.index}: {queue} was there")
            drain = _first_after(names.drains[queue], publish.end)
            if drain is None or publish.type != "ok":
                continue
            if names.of("delete", queue).touch(since, drain.end):
                continue
            judged += 1
            lost += [
                f"{queue} {message} (confirmed by op {publish.op.index}, empty by {drain.op.index})"
                for message in published(publish.op)
                if (queue, message) not in delivered
            ]
    return judge(
        "churn",
        {
            "lost": lost,
            "nowhere to go, though bound": unroutable,
            "declared alike and contradicted": [
                f"op {span.op.index}: {_reason(span)}"
                for span in names.spans
                if span.op.f == "declare"
                and span.type == "refused"
                and _CONTRADICTS.search(_reason(span))
            ],
            "deleted, yet there": _resurrected(names),
            "outlived its queue": _ghosts(ops, names),
            "unexpected": _unexpected(ops, names),
        },
        reported={
            "publishes judged": judged,
            "drained": sum(len(drains) for drains in names.drains.values()),
            "deleted": sum(s.op.f == "delete" and s.type == "ok" for s in names.spans),
        },
    )


def _spans(ops: Sequence[Op]) -> Iterator[_Span]:
    outcomes = {op.invoke: op for op in ops if op.invoke is not None}
    for op in ops:
        if op.type == "invoke":
            ended = outcomes.get(op.index, op)
            sure = ended.type in ("ok", "refused")
            kind: OpType = ended.type if sure else "unknown"
            yield _Span(op.index, ended.index if sure else _NEVER, kind, ended)


def _reason(span: _Span) -> str:
    return str(span.op.value.get("reason", ""))


def _first_after(spans: Sequence[_Span], index: int) -> _Span | None:
    at = bisect_right(spans, index, key=lambda span: span.start)
    return spans[at] if at < len(spans) else None


def _resurrected(names: _Names) -> list[str]:
    """Somebody finds a queue that was deleted, and that nobody may have declared since."""
    found: list[str] = []
    for look in names.spans:
        if look.op.f != "length" or look.type != "ok":
            continue
        queue = look.op.value["queue"]
        deleted = names.of("delete", queue).done_before(look.start)
        if deleted and not names.of("declare", queue).touch(deleted.start, look.end):
            found.append(f"{queue}: deleted by op {deleted.op.index}, found by {look.op.index}")
    return found


def _ghosts(ops: Sequence[Op], names: _Names) -> list[str]:
    """What was in a queue when it was deleted comes out of the next one of that name."""
    subscribed = {
        span.op.value["consumer"]: span.start
        for span in names.spans
        if span.op.f == "consume" and span.type == "ok"
    }
    stored_by = {
        message: span.end
        for span in names.spans
        if span.op.f == "publish" and span.end != _NEVER
        for message in published(span.op)
    }
    found: list[str] = []
    for op in ops:
        since = subscribed.get(op.value["consumer"]) if op.f == "deliver" else None
        if since is None:
            continue
        queue = op.value["queue"]
        deleted = names.of("delete", queue).done_before(since)
        found += [
            f"{queue} {message} (op {op.index}): deleted by op {deleted.op.index}"
            for message in op.value["messages"]
            if deleted and stored_by.get(message, _NEVER) < deleted.start
        ]
    return found


def _unexpected(ops: Sequence[Op], names: _Names) -> list[str]:
    """What nobody put there, or was told to be refused."""
    allowed = {
        (queue, message)
        for span in names.spans
        if span.op.f == "publish" and span.type != "refused"
        for queue, _ in names.targets(span.op)
        for message in published(span.op)
    }
    return [
        f"{op.value['queue']} {message} (op {op.index})"
        for op in ops
        if op.f == "deliver"
        for message in op.value["messages"]
        if (op.value["queue"], message) not in allowed
    ]
