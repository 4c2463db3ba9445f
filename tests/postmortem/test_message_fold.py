"""What became of each message, told for whole ranges at once, against one that takes them one by
one. Without an engine.
"""
# Arrow comes with few types.
# pyright: basic

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from chaos.postmortem.queues import message_fold
from chaos.postmortem.queues.message_fold import (
    ALL,
    BIRTHS,
    BUCKET,
    DELIVERIES,
    ENDS,
    FOLDED,
    GIVEN,
    KEY,
    ORDER,
    RETURNED,
    TOLD,
    fold,
)
from chaos.postmortem.schemas import TABLES, arrow_schema

TYPES = dict(each.split() for each in TABLES["events"].split(", ")) | {
    "confirm_ms": "double",
    "bucket": "bigint",
}
SCHEMA = arrow_schema(", ".join(f"{name} {TYPES[name]}" for name in dict.fromkeys(KEY + GIVEN)))
Row = dict[str, Any]


def event(index: int, kind: str, first: int, last: int, **more: Any) -> Row:
    known = {"group": 1, "queue": 1, "ordinal": 0, "step": 0, "at_ms": index}
    return known | {"index": index, "event": kind, "first": first, "last": last} | more


def in_buckets(events: list[Row]) -> list[Row]:
    rows = [
        each | {"bucket": bucket}
        for each in events
        for bucket in range(each["first"] // BUCKET, each["last"] // BUCKET + 1)
    ]
    return sorted(rows, key=lambda row: [row[name] for name in KEY + ORDER])


def folded(events: list[Row], at_once: int = 1_000) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_pylist(in_buckets(events), SCHEMA)
    return fold(iter(table.to_batches(at_once)))


def one_by_one(events: list[Row]) -> list[Row]:
    seen = defaultdict[tuple[int, ...], list[Row]](list)
    for each in sorted(events, key=lambda row: [row[name] for name in ORDER]):
        for position in range(each["first"], each["last"] + 1):
            nth, its = position - each["first"], dict(each)
            for name in ("entry_offset", "seqno"):
                if each.get(name) is not None:
                    its[name] = each[name] + nth
            seen[each["group"], each["queue"], position].append(its)
    return [
        {"group": group, "queue": queue, "position": position} | _told(its)
        for (group, queue, position), its in seen.items()
    ]


def _told(events: list[Row]) -> Row:
    order = {id(each): number for number, each in enumerate(events)}

    def of(*kinds: str) -> list[Row]:
        return [each for each in events if each["event"] in kinds]

    delivered, returned, settled = of(*DELIVERIES), of(RETURNED), of("settled")
    births = sorted(of(*BIRTHS), key=lambda each: BIRTHS.index(each["event"]))
    chosen = {
        "birth": births[-1:],
        "first_delivery": delivered[:1],
        "delivery": delivered[-1:],
        "return": returned[-1:],
        "end": of(*ENDS)[:1],
    }
    last = order[id(delivered[-1])] if delivered else -1
    return {
        "deliveries": len(delivered),
        "unflagged": sum(each.get("acquired") == 0 for each in delivered),
        "unsent": sum(each.get("reason") == "unsent" for each in returned),
        "returns": len(returned),
        "back": bool(returned) and order[id(returned[-1])] > last,
        "settled_again": bool(settled) and last > order[id(settled[0])],
    } | {
        f"{kind}_{name}": chosen[kind][0].get(name) if chosen[kind] else None
        for kind, names in TOLD.items()
        for name in names
    }


def drawn_events(seed: int) -> list[Row]:
    random = Random(seed)
    found = []
    for index in range(100):
        first = random.randrange(3 * BUCKET)
        more: Row = {"group": random.randrange(1, 3), "queue": random.randrange(1, 3)}
        if random.random() < 0.7:
            more |= {"entry_offset": random.randrange(9), "seqno": random.randrange(1 << 40)}
            more |= {"acquired": random.randrange(3), "failed": random.randrange(3)}
            more |= {"publisher": random.choice("pq"), "consumer": random.randrange(5)}
            more |= {"reason": random.choice(["unsent", "expired"]), "confirm_ms": random.random()}
        length = random.choice([1, 7, 100])
        kind = random.choice(ALL)
        found.append(event(index // 3, kind, first, first + length - 1, **more, ordinal=index % 3))
    return found


def by_message(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["group"], row["queue"], row["position"]))


@pytest.mark.parametrize("seed", range(3))
def test_ranges_are_folded_as_their_messages_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that batches, buckets and ranges are divided at many places.
    for name, few in (
        ("ROWS_AT_ONCE", 64),
        ("MESSAGES_AT_ONCE", 2 * BUCKET),
        ("PAIRS_AT_ONCE", 50),
    ):
        monkeypatch.setattr(message_fold, name, few)
    events = drawn_events(seed)

    told = [row for batch in folded(events, at_once=10) for row in batch.to_pylist()]

    assert len(told) > 500
    assert by_message(told) == by_message(one_by_one(events))
    assert set(told[0]) == {column.split()[0] for column in FOLDED.split(", ")}


def test_one_event_of_millions_of_messages_is_folded_by_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_fold, "MESSAGES_AT_ONCE", 2 * BUCKET)
    first, last = BUCKET // 2, 5 * BUCKET

    parts = list(folded([event(1, "known", first, last)]))

    assert max(part.num_rows for part in parts) <= 2 * BUCKET
    assert sum(part.num_rows for part in parts) == last - first + 1
    positions = count(first)
    assert all(row.as_py() == next(positions) for part in parts for row in part["position"])
