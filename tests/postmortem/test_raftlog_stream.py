"""The logs of running nodes as a stream: what is surely stored, once, in order; without Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from chaos.postmortem.reading.raftlog_stream import Offsets, OfPart, StreamReader
from cluster.log import format as fmt
from cluster.log.reader import CORRUPT
from tests.postmortem.segments import START_NS, MadeSegment

EVERYTHING_NEW = ReadAllAvailable()


def _batch(
    stream: StreamReader, start: Offsets, limit: Any = EVERYTHING_NEW
) -> tuple[Offsets, list[dict[str, Any]]]:
    """What Spark does for one micro-batch."""
    end = stream.latestOffset(start, limit)
    rows = list[dict[str, Any]]()
    for part in stream.partitions(start, end):
        assert isinstance(part, OfPart)
        for batch in stream.read(part):
            rows += batch.to_pylist()
    return end, rows


def _segment(folder: Path, number: int) -> MadeSegment:
    return MadeSegment(
        folder / fmt.segment_name(number), number, created_ns=START_NS + number * 1_000_000_000
    )


def _indexes(rows: list[dict[str, Any]]) -> list[int]:
    return [row["index"] for row in rows if row["kind"] == "entry"]


def test_only_whole_and_synced_records_are_handed_out(tmp_path: Path) -> None:
    stream = StreamReader([str(tmp_path)])
    at, rows = _batch(stream, stream.initialOffset())
    assert (at, rows) == ({}, [])  # a node that has yet to begin
    made = _segment(tmp_path / "log", 1)
    made.entry(1, 2, 1)
    at, rows = _batch(stream, at)
    assert rows == []  # a crash may take it back
    made.synced()
    made.entry(1, 3, 1)
    at, rows = _batch(stream, at)
    assert _indexes(rows) == [2]
    made.synced()
    whole = made.path.read_bytes()
    made.path.write_bytes(whole[:-3])  # the note itself is being written
    assert _batch(stream, at) == (at, [])
    made.path.write_bytes(whole)
    at, rows = _batch(stream, at)
    assert _indexes(rows) == [3]
    made.entry(1, 4, 1)
    following = _segment(tmp_path / "log", 2)  # the first one is sealed now: all of it is safe
    following.synced(1, made.size)
    at, rows = _batch(stream, at)
    assert _indexes(rows) == [4]
    following.entry(1, 5, 1)
    following.synced()
    at, rows = _batch(stream, at)
    assert _indexes(rows) == [5]
    assert _batch(stream, at) == (at, [])


def test_what_is_damaged_within_what_was_synced_is_a_row_of_the_stream(tmp_path: Path) -> None:
    made = _segment(tmp_path, 1)
    bad = [made.entry(1, index, 1) for index in range(2, 7)][2]
    made.synced()
    data = bytearray(made.path.read_bytes())
    data[bad + 30] ^= 4
    made.path.write_bytes(data)

    _, rows = _batch(StreamReader([str(tmp_path)]), {})

    assert [row["offset"] for row in rows if row["kind"] == CORRUPT] == [bad]
    assert _indexes(rows) == [2, 3, 5, 6]


def test_a_segment_that_moved_to_the_archive_goes_on_where_it_was(tmp_path: Path) -> None:
    made = _segment(tmp_path / "log", 1)
    made.entry(1, 2, 1)
    made.synced()
    stream = StreamReader([f"{tmp_path}/log", f"{tmp_path}/archive/n1"])
    (tmp_path / "archive" / "n1").mkdir(parents=True)
    at, rows = _batch(stream, {})
    assert _indexes(rows) == [2]
    made.entry(1, 3, 1)
    _segment(tmp_path / "log", 2)
    following = _segment(tmp_path / "log", 2)
    following.synced(1, made.size)
    name = fmt.archive_name(1, START_NS + 1_000_000_000)
    shutil.copy(made.path, tmp_path / "archive" / "n1" / name)
    both = _batch(stream, at)
    made.path.unlink()
    archived = _batch(stream, at)
    assert _indexes(both[1]) == _indexes(archived[1]) == [3]
    assert both[0] == archived[0]


def test_as_many_segments_at_a_time_as_asked_for_until_all_that_was_there(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        made = _segment(tmp_path, number)
        made.entry(1, 1 + number, 1)
        made.synced()
    stream = StreamReader([str(tmp_path)], files_max=1)
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxFiles)
    stream.prepareForTriggerAvailableNow()
    made.entry(1, 5, 1)
    made.synced()
    seen, at = list[list[int]](), stream.initialOffset()
    for _ in range(4):
        at, rows = _batch(stream, at, limit)
        seen.append(_indexes(rows))
    assert seen == [[2], [3], [4], []]
    again = StreamReader([str(tmp_path)])  # a later run goes on behind it
    assert _indexes(_batch(again, at)[1]) == [5]


def test_however_it_is_cut_a_stream_is_the_log(tmp_path: Path) -> None:
    for seed in range(20):
        random, folder = Random(seed), tmp_path / str(seed)
        stream, at = StreamReader([str(folder)]), Offsets()
        seen, number, index = list[int](), 1, 2
        made = _segment(folder, number)
        for _ in range(80):
            match random.choice(["entry", "entry", "entry", "synced", "batch", "roll", "restart"]):
                case "entry":
                    made.entry(1, index, 1, random.randbytes(random.randrange(1, 900)))
                    index += 1
                case "synced":
                    made.synced()
                case "batch":
                    at, rows = _batch(stream, at)
                    seen += _indexes(rows)
                case "roll":
                    number += 1
                    before, made = made, _segment(folder, number)
                    made.synced(before.number, before.size)
                case _:
                    stream = StreamReader([str(folder)])
        made.synced()
        seen += _indexes(_batch(stream, at)[1])
        assert seen == list(range(2, index)), seed
