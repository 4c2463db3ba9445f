"""The bytes of one segment as Arrow batches of the table `records`: whole columns at a time."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from chaos.postmortem.reading.inputs import Segment
from chaos.postmortem.reading.wanted import EVERYTHING, Wanted
from chaos.postmortem.schemas import RECORDS, arrow_schema
from cluster.log import format as fmt
from cluster.log.reader import Record, decoded, header_of, runs

#: Of one batch: enough that its fixed costs do not count, little enough for many workers.
BATCH_RECORDS: Final = 16_384
BATCH_BYTES: Final = 8 << 20

#: A record's header as numpy reads it: `fmt.RECORD`.
HEADER: Final = np.dtype(
    [
        ("length", "<u4"), ("crc", "<u4"), ("kind", "u1"), ("marker", "u1", 3), ("group", "<u4"),
        ("index", "<u8"), ("term", "<u8"), ("wall_ns", "<u8"), ("mono_ns", "<u8"),
    ]
)  # fmt: skip
assert HEADER.itemsize == fmt.RECORD_HEADER

SCHEMA: Final = arrow_schema(RECORDS)

#: By number of the kind: every name there can be, so that the column is one look-up.
_NAMES_LIST: Final = [fmt.KIND_NAMES.get(kind, f"kind-{kind}") for kind in range(256)]
_NAMES: Final = pa.array(_NAMES_LIST)
_IS_BODY: Final = np.isin(np.arange(256), list(fmt.BODY_KINDS))


def decode(
    data: bytes,
    segment: Segment,
    wanted: Wanted = EVERYTHING,
    *,
    head: bytes | None = None,
    start: int = 0,
    base: int = 0,
    seen: Callable[[np.ndarray], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a segment in their order; damage is a row of its own, never an exception.

    A part of it begins with the record at `start`; `data` then begins at `base` in the file, the
    begin of a sector, and `head` is the begin of the file. `seen` is told the headers of all sound
    records, wanted or not.
    """
    header = header_of(data if head is None else head, segment.file, last=segment.last)
    rows = _Rows(data, segment, base)
    if isinstance(header, Record):
        if start == 0:
            yield rows.damage(header)
        return
    first = max(start, header.size) - base
    for run in runs(
        data, header, segment.file, last=segment.last, count=BATCH_RECORDS, start=first
    ):
        if isinstance(run, Record):
            yield rows.damage(run._replace(offset=base + run.offset))
        else:
            starts = np.array(run)
            headers = rows.headers(starts[:-1])
            if seen is not None:
                seen(headers)
            yield from rows.of_run(starts, headers, wanted)


class _Rows:
    """Columns of one segment's records."""

    def __init__(self, data: bytes, segment: Segment, base: int = 0) -> None:
        self._base = base
        self._bytes = np.frombuffer(data, np.uint8)
        self._data = data
        self._buffer = pa.py_buffer(data)
        self._constants = {
            "cluster": segment.cluster,
            "node": segment.node,
            "file": segment.file,
            "segment": segment.number,
            "created_ns": segment.created_ns,
            "boot": segment.boot,
        }
        self._repeated = {
            name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), BATCH_RECORDS)
            for name, value in self._constants.items()
        }
        self._times = (segment.created_ns, 0)  # of the record before

    def damage(self, record: Record) -> pa.RecordBatch:
        wall_ns, mono_ns = self._times
        told = {
            "offset": record.offset, "kind": record.kind, "group": -1, "index": 0,
            "term": 0, "wall_ns": wall_ns, "mono_ns": mono_ns, "bytes": 0, "hash": None,
            "command": None, "detail": record.payload.decode(),
        }  # fmt: skip
        return pa.RecordBatch.from_pylist([self._constants | told], schema=SCHEMA)

    def headers(self, starts: np.ndarray) -> np.ndarray:
        """Of the records that start there."""
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, HEADER.itemsize)
        return windows[starts].view(HEADER)[:, 0]

    def of_run(
        self, starts: np.ndarray, headers: np.ndarray, wanted: Wanted
    ) -> Iterator[pa.RecordBatch]:
        """Of records that lie one behind the other; the last of `starts` is where they end."""
        starts, stops = starts[:-1], starts[1:]
        self._times = int(headers["wall_ns"][-1]), int(headers["mono_ns"][-1])
        kept = _kept(headers, wanted)
        if kept is not None:
            starts, stops, headers = starts[kept], stops[kept], headers[kept]
        first = 0
        while first < len(starts):
            ends = np.searchsorted(stops, starts[first] + BATCH_BYTES, "right")
            after = max(int(ends), first + 1)
            part = slice(first, after)
            yield self._batch(starts[part], stops[part], headers[part], wanted)
            first = after

    def _batch(
        self, starts: np.ndarray, stops: np.ndarray, headers: np.ndarray, wanted: Wanted
    ) -> pa.RecordBatch:
        count = len(starts)
        kinds, lengths = headers["kind"], headers["length"].astype(np.int64)
        bodies = _IS_BODY[kinds]
        payloads = starts + fmt.RECORD_HEADER
        columns = {name: array.slice(0, count) for name, array in self._repeated.items()}
        columns |= {
            name: pa.array(headers[name].astype(np.int64))
            for name in ("index", "term", "wall_ns", "mono_ns")
        }
        columns["offset"] = pa.array(starts + self._base)
        columns["kind"] = _NAMES.take(pa.array(kinds))
        columns["group"] = pa.array(headers["group"].astype(np.int32))
        # The hash is short only in a record that no node wrote.
        commands = np.minimum(payloads + np.where(bodies, fmt.HASH_BYTES, 0), stops)
        columns["bytes"] = pa.array((stops - commands).astype(np.int32))
        columns["hash"] = self._hashes(payloads, bodies & (lengths >= fmt.HASH_BYTES))
        columns["command"] = (
            self._slices(commands, stops, bodies)
            if wanted.payloads
            else pa.nulls(count, pa.binary())
        )
        columns["detail"] = self._details(payloads, stops, kinds, ~bodies & (lengths > 0))
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _hashes(self, starts: np.ndarray, known: np.ndarray) -> pa.Array:
        count, size = len(starts), fmt.HASH_BYTES
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, size)
        hashes = windows[np.minimum(starts, len(windows) - 1)]
        known = known & hashes.any(axis=1)  # one of zeros is not known
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        validity = pa.array(known).buffers()[1]
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(hashes))]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    def _slices(self, starts: np.ndarray, stops: np.ndarray, known: np.ndarray) -> pa.Array:
        """Bytes of the file: it is laid out as an array of slices and the gaps between them."""
        base = int(starts[0])
        edges = np.stack([starts, stops], axis=1).ravel() - base
        buffers = [None, pa.py_buffer(edges.astype(np.int32)), self._buffer.slice(base)]
        laid_out = pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)
        at = pa.array(np.arange(0, len(edges), 2), mask=~known)
        return laid_out.take(at)

    def _details(
        self, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray, present: np.ndarray
    ) -> pa.Array:
        texts, names = list[str | None]([None]) * len(starts), _NAMES_LIST
        for at in np.flatnonzero(present).tolist():
            value = decoded(names[kinds[at]], self._data[starts[at] : stops[at]])
            texts[at] = _json(value)
        return pa.array(texts, pa.string())


def _kept(headers: np.ndarray, wanted: Wanted) -> np.ndarray | None:
    """None: all."""
    kept = None
    for column, bounds in wanted.bounds.items():
        values = headers[column].astype(np.int64)
        for fits in (
            None if bounds.low is None else values >= bounds.low,
            None if bounds.high is None else values <= bounds.high,
            None if bounds.among is None else np.isin(values, list(bounds.among)),
        ):
            if fits is not None:
                kept = fits if kept is None else kept & fits
    return None if kept is None or kept.all() else kept


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


_encode: Final = json.JSONEncoder(default=_plain).encode


def _json(value: object) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError):  # keys that JSON does not have
        return _encode(repr(value))
