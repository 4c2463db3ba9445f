"""Whole columns of a segment against its records one by one; indexes and filters against both."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from chaos.postmortem.reading import decoding, segment_index
from chaos.postmortem.reading.decoding import decode
from chaos.postmortem.reading.inputs import Segment, discover
from chaos.postmortem.reading.segment_index import SegmentIndex
from chaos.postmortem.reading.wanted import COLUMNS, EVERYTHING, ONLY_DAMAGE, Bounds, Wanted
from cluster.log import format as fmt
from cluster.log.reader import CORRUPT, TORN, Record, detail, records
from tests.postmortem.segments import START_NS, MadeSegment, any_records

SEEDS = 60
DAMAGED = (CORRUPT, TORN)


def _rows(segment: Segment, wanted: Wanted = EVERYTHING, **part: Any) -> list[dict[str, Any]]:
    data = Path(segment.file).read_bytes()
    return [row for batch in decode(data, segment, wanted, **part) for row in batch.to_pylist()]


def _made(path: Path, random: Random) -> Segment:
    """Some records, and often some damage."""
    made = MadeSegment(path / fmt.segment_name(1))
    any_records(made, random, random.randrange(1, 120))
    data = bytearray(made.path.read_bytes())
    for _ in range(random.choice([0, 0, 1, 3])):
        at = (
            random.randrange(len(data))
            if random.random() < 0.2
            else random.randrange(80, len(data))
        )
        end = at + random.choice([1, 700])
        if at + len(data[end:]) > 100:
            del data[at:end]  # or shifted
    for _ in range(random.choice([0, 1, 2])):
        data[random.randrange(80, len(data))] ^= 1 << random.randrange(8)
    if random.random() < 0.3:
        del data[random.randrange(80, len(data)) :]
    made.path.write_bytes(data)
    segment = discover([str(path)]).segments[0]
    return replace(segment, last=random.random() < 0.5)


def _as_row(record: Record, segment: Segment) -> dict[str, Any]:
    """The obvious way."""
    told, text = detail(record), None
    if record.kind in DAMAGED:
        text = str(told)
    elif record.payload and record.command is None:
        text = decoding._json(told)
    command = record.command
    return {
        "cluster": segment.cluster, "node": segment.node, "file": segment.file,
        "segment": segment.number, "created_ns": segment.created_ns, "offset": record.offset,
        "boot": segment.boot, "kind": record.kind, "group": record.group, "index": record.index,
        "term": record.term, "wall_ns": record.wall_ns, "mono_ns": record.mono_ns,
        "bytes": len(record.payload if command is None else command),
        "hash": record.hash if len(record.payload) >= fmt.HASH_BYTES else None,
        "command": command, "detail": text,
    }  # fmt: skip


def test_columns_say_what_records_say_whatever_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = set[str]()
    for seed in range(SEEDS):
        random = Random(seed)
        monkeypatch.setattr(decoding, "BATCH_RECORDS", random.choice([1, 7, 1000]))
        monkeypatch.setattr(decoding, "BATCH_BYTES", random.choice([1, 500, 1 << 20]))
        segment = _made(tmp_path / str(seed), random)
        rows = _rows(segment)
        times = segment.created_ns, 0
        expected = list[dict[str, Any]]()
        for record in records(segment.file, last=segment.last):
            row = _as_row(record, segment)
            if record.kind in DAMAGED:
                row |= {"group": -1, "bytes": 0, "wall_ns": times[0], "mono_ns": times[1]}
            times = row["wall_ns"], row["mono_ns"]
            expected.append(row)
        assert rows == expected, seed
        kinds |= {row["kind"] for row in rows}
    assert kinds >= {*fmt.KIND_NAMES.values(), *DAMAGED, "kind-77"}


def test_what_a_note_says_is_json_and_a_digest_is_never_taken_for_something_else(
    tmp_path: Path,
) -> None:
    made = MadeSegment(tmp_path / fmt.segment_name(1))
    digest = b"\x00" * 15 + b"\x01"  # as CBOR it is 0
    made.record(fmt.KIND_DIGEST, 1, 1000, 2, digest)
    made.synced()
    rows = _rows(discover([str(tmp_path)]).segments[0])

    assert [json.loads(row["detail"]) for row in rows] == [digest.hex(), [1, made.offsets[1]]]


def test_a_part_of_a_segment_reads_as_in_the_whole(tmp_path: Path) -> None:
    made = MadeSegment(tmp_path / fmt.segment_name(1))
    any_records(made, Random(1), 100)
    data = bytearray(made.path.read_bytes())
    data[made.offsets[60] + 20] ^= 1
    made.path.write_bytes(data)
    segment = replace(discover([str(tmp_path)]).segments[0], last=False)
    whole = {row["offset"]: row for row in _rows(segment)}

    for first, last in ((0, 50), (31, 80), (70, 99)):
        start, stop = made.offsets[first], made.offsets[last]
        base = start - start % fmt.SECTOR
        part = bytes(data[base:stop])
        batches = decode(part, segment, head=bytes(data[:4096]), start=start, base=base)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == made.offsets[first:last]
        steady = set(decoding.SCHEMA.names) - {"wall_ns", "mono_ns"}
        assert all(row[name] == whole[row["offset"]][name] for row in rows for name in steady)


def _any_wanted(random: Random) -> Wanted:
    wanted = Wanted(payloads=random.random() < 0.5)
    for column in random.sample(COLUMNS, random.randrange(4)):
        low = (
            START_NS + random.randrange(100) * 1_000_000
            if column == "wall_ns"
            else random.randrange(5)
        )
        wide = 40_000_000 if column == "wall_ns" else 2
        among = Bounds(among=frozenset(range(low, low + 3)))
        for bounds in random.sample([Bounds(low=low), Bounds(high=low + wide), among, Bounds()], 2):
            wanted = wanted.also(column, bounds)
    return wanted


def _holds(row: dict[str, Any], wanted: Wanted) -> bool:
    return all(
        (bounds.low is None or row[column] >= bounds.low)
        and (bounds.high is None or row[column] <= bounds.high)
        and (bounds.among is None or row[column] in bounds.among)
        for column, bounds in wanted.bounds.items()
    )


def test_filters_take_rows_and_never_damage_and_an_index_hides_nothing(tmp_path: Path) -> None:
    skipped = 0
    for seed in range(SEEDS):
        random = Random(seed)
        segment = _made(tmp_path / str(seed), random)
        rows, index = _rows(segment), SegmentIndex()
        assert _rows(segment, ONLY_DAMAGE, seen=index.see) == [
            row for row in rows if row["kind"] in DAMAGED
        ]
        index.store(str(tmp_path), segment)
        known = segment_index.load(str(tmp_path), segment)
        assert known is not None
        assert known == index
        for _ in range(8):
            wanted = _any_wanted(random)
            expected = [
                row if wanted.payloads else row | {"command": None}
                for row in rows
                if row["kind"] in DAMAGED or _holds(row, wanted)
            ]
            assert _rows(segment, wanted) == expected, (seed, wanted)
            if not known.may_hold(wanted):
                skipped += 1
                assert all(row["kind"] in DAMAGED for row in expected)
    assert skipped > SEEDS  # else an index is of no use


def test_an_index_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    MadeSegment(tmp_path / fmt.segment_name(1)).entry(1, 2, 1)
    segment = discover([str(tmp_path)]).segments[0]
    SegmentIndex({1: [2, 2, 1, 1, 0, 9]}).store(str(tmp_path), segment)
    (path,) = tmp_path.glob("*.json")
    for text in (
        "",
        "[]",
        '{"format": 2, "groups": {}}',
        '{"format": 1}',
        '{"format": 1, "groups": 3}',
    ):
        path.write_text(text)
        assert segment_index.load(str(tmp_path), segment) is None
    SegmentIndex().store("/nowhere", segment)  # no room for one is no trouble
