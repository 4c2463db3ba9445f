"""What became of each message, in one pass over events in their order.

Events are about ranges of positions. Only here, and as numbers of rows alone, that part of a range
which is in a bucket becomes its messages.
"""
# Arrow comes with few types, and none of what it computes.
# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chaos.postmortem.schemas import TABLES, arrow_schema

#: Events that say where a message comes from, the better ones behind the others; that somebody got
#: it, and that it left.
BIRTHS: Final = ("known", "letter", "published")
DELIVERIES: Final = ("delivered", "got")
ENDS: Final = ("settled", "died", "purged", "withdrawn", "deleted")
RETURNED: Final = "returned"
ALL: Final = (*BIRTHS, *DELIVERIES, RETURNED, *ENDS)

#: So many neighbours are looked at in one place.
BUCKET: Final = 4_096
#: Events are given in the order of both; all of a bucket are given.
KEY: Final = ("group", "queue", "bucket")
ORDER: Final = ("index", "ordinal", "step")
#: What is told of the one event of each kind that counts, under names that begin with its kind.
TOLD: Final[dict[str, tuple[str, ...]]] = {
    "birth": (
        *("event", "entry", "entry_offset", "publisher", "seqno", "at_ms", "confirm_ms"),
        *("consumer", "token", "acquired", "failed", "reason"),
    ),
    "first_delivery": ("at_ms", "acquired"),
    "delivery": ("at_ms", "consumer", "failed", "index"),
    "return": ("at_ms", "failed"),
    "end": ("at_ms", "event", "reason"),
}
#: Those that count the messages of a range.
_COUNTING: Final = ("entry_offset", "seqno")
_TYPES: Final = dict(each.split() for each in re.split(", *", TABLES["events"])) | {
    "confirm_ms": "double"
}
#: What a row of events has, and what is told of each message. back: the newest of its returns is
#: behind the newest of its deliveries; settled_again: that is behind a settlement.
GIVEN: Final = tuple(
    dict.fromkeys((*ORDER, "first", "last", "event", "reason", *sum(TOLD.values(), ())))
)
FOLDED: Final = ", ".join(
    [
        "group int, queue bigint, position bigint, deliveries int, unflagged int, unsent int",
        "returns int, back boolean, settled_again boolean",
        *(f"{kind}_{name} {_TYPES[name]}" for kind, names in TOLD.items() for name in names),
    ]
)
_SCHEMA: Final = arrow_schema(FOLDED)
#: What is held at once: rows, of whole buckets, of which one alone may have more; messages of them,
#: since a row may be all that tells of a bucket; and pairs of an event and its message.
ROWS_AT_ONCE: Final = 1 << 16
MESSAGES_AT_ONCE: Final = 1 << 20
PAIRS_AT_ONCE: Final = 1 << 20
NONE: Final = -1


def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of `FOLDED` from events of kinds `ALL`, in the order of `KEY` and `ORDER`."""
    held, count = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            rows = _one(held)
            whole = int(_edges(rows)[-1])  # the last bucket may go on
            yield from _told(rows.slice(0, whole))
            held, count = [rows.slice(whole)], 0
    if held:
        yield from _told(_one(held))


def _told(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.num_rows:
        starts = _edges(rows)[:: MESSAGES_AT_ONCE // BUCKET].tolist()
        for start, end in pairwise([*starts, rows.num_rows]):
            yield _Buckets(rows.slice(start, end - start)).told()


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return rows[0] if rows else batches[0]


def _edges(rows: pa.RecordBatch) -> np.ndarray:
    """Where buckets begin."""
    keys = [rows.column(name).to_numpy() for name in KEY]
    new = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.concatenate([[0], np.flatnonzero(new) + 1])


class _Buckets:
    """Of one batch. A message is the number that it has here, an event that of its row."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._edges = _edges(rows)
        bucket = rows.column("bucket").to_numpy() * BUCKET
        self._first = rows.column("first").to_numpy()
        first = np.maximum(self._first, bucket)
        last = np.minimum(rows.column("last").to_numpy(), bucket + (BUCKET - 1))
        self._least = np.minimum.reduceat(first, self._edges)
        sizes = np.maximum.reduceat(last, self._edges) - self._least + 1
        self._begins = np.cumsum(sizes) - sizes
        self._count = int(sizes.sum())
        rows_of = np.diff(np.append(self._edges, rows.num_rows))
        self._message = first + np.repeat(self._begins - self._least, rows_of)
        self._long = last - first + 1
        event = rows.column("event")
        self._kind = pc.index_in(event, pa.array(ALL, event.type)).to_numpy()

    def told(self) -> pa.RecordBatch:
        delivered, returned, ended = map(self._of, (DELIVERIES, (RETURNED,), ENDS))
        births = np.full(self._count, NONE)
        for kind in BIRTHS:
            self._newest(self._of((kind,)), births)
        delivery = self._newest(delivered)
        settled = self._oldest(self._of(("settled",)))
        its = {
            "birth": births,
            "first_delivery": self._oldest(delivered),
            "delivery": delivery,
            "return": self._newest(returned),
            "end": self._oldest(ended),
        }
        found = np.flatnonzero(np.maximum.reduce(list(its.values())) != NONE)
        bucket = np.searchsorted(self._begins, found, "right") - 1
        position = self._least[bucket] + found - self._begins[bucket]
        key = self._rows.select(["group", "queue"]).take(pa.array(self._edges[bucket]))
        unflagged = delivered[self._numbers("acquired")[delivered] == 0]
        unsent = returned[self._unsent[returned]]
        columns = {
            "group": key.column("group"),
            "queue": key.column("queue"),
            "position": position,
            "deliveries": self._counts(delivered)[found],
            "unflagged": self._counts(unflagged)[found],
            "unsent": self._counts(unsent)[found],
            "returns": self._counts(returned)[found],
            "back": (its["return"] > delivery)[found],
            "settled_again": ((settled != NONE) & (delivery > settled))[found],
        }
        for kind, names in TOLD.items():
            at = its[kind][found]
            picked = self._rows.select(names).take(pa.array(at, mask=at == NONE))
            for name, column in zip(names, picked.columns, strict=True):
                if kind == "birth" and name in _COUNTING:
                    nth = np.where(at == NONE, 0, position - self._first[at])
                    column = pc.add(column, pa.array(nth, column.type))
                columns[f"{kind}_{name}"] = column
        arrays = [_array(columns[field.name], field.type) for field in _SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def _of(self, kinds: tuple[str, ...]) -> np.ndarray:
        return np.flatnonzero(np.isin(self._kind, [ALL.index(kind) for kind in kinds]))

    def _numbers(self, name: str) -> np.ndarray:
        return self._rows.column(name).fill_null(NONE).to_numpy()

    @cached_property
    def _unsent(self) -> np.ndarray:
        unsent = pc.equal(self._rows.column("reason"), "unsent").fill_null(False)
        return unsent.to_numpy(zero_copy_only=False)

    def _newest(self, events: np.ndarray, found: np.ndarray | None = None) -> np.ndarray:
        """By message, the last of these, or what is in `found` already."""
        found = np.full(self._count, NONE) if found is None else found
        for messages, rows in self._messages(events):
            found[messages] = rows
        return found

    def _oldest(self, events: np.ndarray) -> np.ndarray:
        return self._newest(events[::-1])

    def _counts(self, events: np.ndarray) -> np.ndarray:
        found = np.zeros(self._count, np.int64)
        for messages, _ in self._messages(events):
            found += np.bincount(messages, minlength=self._count)
        return found

    def _messages(self, events: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of each event its messages, and the event as often; in the order of the events."""
        long = self._long[events]
        parts = np.cumsum(long) // PAIRS_AT_ONCE
        for part in np.split(events, np.flatnonzero(np.diff(parts)) + 1):
            long = self._long[part]
            rows = np.repeat(part, long)
            nth = np.arange(len(rows)) - np.repeat(np.cumsum(long) - long, long)
            yield self._message[rows] + nth, rows


def _array(values: pa.Array | np.ndarray, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values).cast(kind)
