"""The data source `raftlog`, remote file systems, and the first tables."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql import datasource as ds

from chaos.postmortem.reading import ingest as ingesting
from chaos.postmortem.reading.folders import folder_at
from chaos.postmortem.reading.ingest import damage, ingest, planned, read_records
from chaos.postmortem.reading.inputs import BadInput, NothingToRead, discover
from chaos.postmortem.reading.raftlog import RaftLog, Reader, told
from chaos.postmortem.reading.remote_files import AnyFiles
from chaos.postmortem.reading.wanted import Bounds, Wanted
from chaos.postmortem.replay.bases import bad_snapshots, bases
from chaos.postmortem.replication.lacks import lacks
from chaos.postmortem.tables import Tables
from cluster.log import format as fmt
from cluster.log.reader import CORRUPT, TORN, Record, records
from cluster.log.snapshots import Snapshot, encode_snapshot
from cluster.machine import QueueMachine
from tests.postmortem.segments import START_NS, MadeSegment

#: Of each node, sealed; the newest one has a torn end.
SEGMENTS = 3
SECOND_NS = 1_000_000_000


def _segment(folder: Path, node: str, number: int) -> MadeSegment:
    path, boot = folder / node / "log" / fmt.segment_name(number), node.encode().ljust(16, b"\0")
    return MadeSegment(path, number, node=node, created_ns=START_NS + number * SECOND_NS, boot=boot)


def _cluster(folder: Path) -> list[str]:
    """Two nodes with groups 1 to 3, of which segment N holds entries from 100 * N on; the first one
    of n1 is in an archive too.
    """
    for node in ("n1", "n2"):
        made = [_segment(folder, node, number) for number in range(1, SEGMENTS + 1)]
        for number, segment in enumerate(made, start=1):
            for at in range(60):
                segment.entry(1 + at % 3, 100 * number + at // 3, number, b"\0" + bytes(at))
            segment.synced()
        with made[-1].path.open("ab") as file:
            file.write(bytes(7))
    archive = folder / "archive" / "n1"
    archive.mkdir(parents=True)
    first = folder / "n1" / "log" / fmt.segment_name(1)
    (archive / fmt.archive_name(1, START_NS + SECOND_NS)).write_bytes(first.read_bytes())
    return [f"{folder}/n1", f"{folder}/n2", f"{folder}/archive"]


def _expected(
    paths: list[str], holds: Callable[[Record], bool] = lambda _: True
) -> list[tuple[str, int]]:
    return sorted(
        (segment.file, record.offset)
        for segment in discover(paths).segments
        for record in records(segment.file, last=segment.last)
        if record.kind in (CORRUPT, TORN) or (holds(record) and not segment.copy)
    )


def _read(
    options: dict[str, str], filters: list[ds.Filter]
) -> tuple[list[ds.Filter], list[ds.InputPartition], list[dict[str, Any]]]:
    """What Spark does: the filters that are left to it, the partitions, the rows."""
    reader = Reader(options)
    left = list(reader.pushFilters(filters))
    parts = reader.partitions()
    return left, parts, [
        row for part in parts for batch in reader.read(part) for row in batch.to_pylist()
    ]  # fmt: skip


def test_filters_are_kept_by_the_source_and_indexes_spare_segments(tmp_path: Path) -> None:
    paths, indexes = _cluster(tmp_path), tmp_path / "indexes"
    options = {"paths": ",".join(paths), "indexes": str(indexes)}
    _, parts, rows = _read(options, [])
    assert sorted((row["file"], row["offset"]) for row in rows) == _expected(paths)
    assert len(parts) == 2 * SEGMENTS + 1
    assert len(list(indexes.iterdir())) == 2 * (SEGMENTS - 1)  # not of those that may grow

    second, group, index = START_NS + 2 * SECOND_NS, ("group",), ("index",)
    asked: list[tuple[list[ds.Filter], Callable[[Record], bool], int]] = [
        (
            [ds.EqualTo(group, 2), ds.GreaterThan(index, 204), ds.LessThanOrEqual(index, 210)],
            lambda r: r.group == 2 and 205 <= r.index <= 210,
            2,
        ),
        ([ds.In(index, (101, 102))], lambda r: r.index in (101, 102), 2),
        (
            [ds.GreaterThanOrEqual(("wall_ns",), second), ds.LessThan(("wall_ns",), second + 9**8)],
            lambda r: second <= r.wall_ns < second + 9**8,
            2,
        ),
        ([ds.LessThanOrEqual(("term",), 2), ds.GreaterThan(group, 0)],
         lambda r: r.term <= 2 and r.group > 0, 4),
        ([ds.IsNotNull(group), ds.EqualNullSafe(group, 9)], lambda _: False, 0),
    ]  # fmt: skip
    for filters, holds, sealed in asked:
        left, parts, rows = _read(options, filters)
        assert left == []
        # Besides: the newest ones, which may grow and have no index, and the copy.
        assert (filters, len(parts)) == (filters, sealed + 3)
        assert sorted((row["file"], row["offset"]) for row in rows) == _expected(paths, holds)
    others: list[ds.Filter] = [
        ds.EqualTo(("kind",), "entry"), ds.Not(ds.EqualTo(group, 1)), ds.IsNull(index),
    ]  # fmt: skip
    assert _read(options, others)[0] == others


def test_options_that_make_no_sense_are_refused() -> None:
    for options, reason in [
        ({}, r"name a folder, as in load\('DATA'\)"),
        ({"path": "s3a://logs/n1"}, "s3a://logs/n1 is on a file system that only Spark reaches"),
    ]:
        with pytest.raises(ValueError, match=reason):
            Reader(options)
    with pytest.raises(NothingToRead):
        Reader({"paths": json.dumps(["/nowhere"])}).partitions()
    assert RaftLog.name() == "raftlog"


def test_a_segment_that_is_gone_by_now_is_read_where_it_was_archived(tmp_path: Path) -> None:
    segments = discover(_cluster(tmp_path)).segments
    options = {"segments": told(segments)}
    expected = _read(options, [])[2]
    for number in (1, 2):
        (tmp_path / "n1" / "log" / fmt.segment_name(number)).unlink()

    _, parts, rows = _read(options, [])

    assert len(parts) == len(segments)
    lost = [(row["node"], row["segment"]) for row in expected if row not in rows]
    assert set(lost) == {("n1", 2)}
    assert len(rows) == len(expected) - len(lost)


@pytest.mark.spark
def test_spark_reads_what_is_there_and_asks_the_source_to_filter(
    spark: Any, tmp_path: Path
) -> None:
    paths = _cluster(tmp_path)

    def load(**options: str) -> Any:
        options = {"paths": json.dumps(paths), "indexes": f"{tmp_path}/indexes", **options}
        return spark.read.format("raftlog").options(**options).load()

    rows = load(commands="false").collect()
    assert sorted((row.file, row.offset) for row in rows) == _expected(paths)
    assert all(row.command is None for row in rows)
    assert sum(row.bytes for row in rows if row.kind == "entry") == 2 * SEGMENTS * sum(range(1, 61))
    found = load().where("group = 2 and index = 205 and kind != 'torn'")
    assert [(r.node, r["index"], r.command) for r in found.orderBy("node").collect()] == [
        ("n1", 205, b"\0" + bytes(16)), ("n2", 205, b"\0" + bytes(16)),
    ]  # fmt: skip
    # Two sealed segments can hold it; besides the newest ones, and the copy.
    assert found.rdd.getNumPartitions() == 5


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> Iterator[str]:
    """The folder, as Hadoop's viewfs shows it."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    mount = f"mount{os.stat(tmp_path).st_ino}"  # file systems are remembered by name
    name = f"fs.viewfs.mounttable.{mount}.link./data"
    settings.set(name, f"file:{tmp_path}")
    yield f"viewfs://{mount}/data"
    settings.unset(name)


def _values(frame: Any) -> list[str]:
    return sorted(repr(row.asDict()) for row in frame.collect())


def _snapshot(folder: Path, name: str, *, bad: bool = False) -> str:
    data, _ = encode_snapshot(
        1, Snapshot(20, 1, bytes(16), QueueMachine().snapshot(), []), START_NS
    )
    (folder / "snapshots").mkdir(exist_ok=True)
    path = folder / "snapshots" / name
    path.write_bytes(data[:-1] if bad else data)
    return str(path)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.spark
def test_tables_on_another_file_system_are_gone_on_with(
    spark: Any, tmp_path: Path, mounted: str
) -> None:
    paths, tables = _cluster(tmp_path / "nodes"), Tables(spark, f"{mounted}/tables")
    killed = tmp_path / "tables" / "records" / "batch=9"
    for _ in range(2):
        ingest(tables, discover(paths))

        assert planned(tables, discover(paths)).new == {}
        assert tables["records"].where("kind = 'entry'").count() == 360
        assert not killed.exists()
        os.utime(discover(paths).segments[0].file)
        killed.mkdir()
    folder = folder_at(spark, f"{mounted}/tables/batches")
    for text in (b"some", b"other"):
        folder.write("0.json", text)
        assert folder.read("0.json") == text


@pytest.mark.spark
def test_another_file_system_is_read_like_a_folder(
    spark: Any, tmp_path: Path, mounted: str
) -> None:
    odd = tmp_path / "with {odd} [names]"
    paths = _cluster(odd)
    _flip(odd / "n2" / "log" / fmt.segment_name(1), 200)
    _snapshot(odd / "n1" / "log", "1-20.snap")
    _snapshot(odd / "n2" / "log", "1-20.snap", bad=True)
    away = [path.replace(str(tmp_path), mounted) for path in paths]

    inputs = discover(away, AnyFiles(spark))

    here = discover(paths)
    assert here.local
    assert not inputs.local
    ms = 1_000_000  # what Hadoop knows of times
    assert [replace(each, changed_ns=each.changed_ns // ms * ms) for each in here.segments] == [
        replace(
            each,
            file=each.file.replace(mounted, str(tmp_path)),
            copies=tuple(copy.replace(mounted, str(tmp_path)) for copy in each.copies),
        )
        for each in inputs.segments
    ]
    mixed = discover([away[0], paths[1], away[2]], AnyFiles(spark))
    some = Wanted().also("group", Bounds(2, 2)).also("index", Bounds(high=250))
    for wanted, other in [(Wanted(), inputs), (some, mixed)]:
        expected = _values(read_records(spark, here, wanted))
        assert len(expected) > 20
        found = _values(read_records(spark, other, wanted))
        assert [row.replace(mounted, str(tmp_path)) for row in found] == expected
    (good,), (bad,) = bases(spark, inputs.snapshots)
    assert (good.node, good.file) == ("n1", f"{away[0]}/log/snapshots/1-20.snap")
    assert bad.snapshot.file == f"{away[1]}/log/snapshots/1-20.snap"
    alone = discover([f"{away[0]}/log/{fmt.segment_name(2)}"], AnyFiles(spark)).segments
    assert [(each.number, each.last) for each in alone] == [(2, False)]
    with pytest.raises(NothingToRead, match=f"there is no {mounted}/nowhere"):
        discover([f"{mounted}/nowhere"], AnyFiles(spark))
    with pytest.raises(BadInput, match=r"cannot read nosuch://x/y: .*nosuch"):
        discover(["nosuch://x/y"], AnyFiles(spark))


@pytest.mark.spark
def test_tables_say_what_was_read_and_what_is_damaged(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "SORTED_FROM", 2)
    paths = _cluster(tmp_path)
    n1, n2, archive = tmp_path / "n1" / "log", tmp_path / "n2" / "log", tmp_path / "archive" / "n1"
    _snapshot(n1, "1-20.snap")
    bad_snapshot = _snapshot(archive, "1-30.snap", bad=True)
    aside = _snapshot(n2, "1-19.snap.corrupt", bad=True)
    (copy,) = archive.glob("*.log")
    _flip(copy, 100)
    broken = n1 / fmt.segment_name(2)
    _flip(broken, 0)
    # Sealed, and its last record is gone, which was safe as the next one says.
    cut = n2 / fmt.segment_name(2)
    *_, end = (record.offset for record in records(str(cut)))
    note = _segment(tmp_path, "n2", 4)
    at = note.synced(2, cut.stat().st_size)
    os.truncate(cut, end)
    whole = n2 / fmt.segment_name(3)
    os.truncate(whole, whole.stat().st_size - 7)
    _segment(tmp_path, "n2", 5)

    inputs, tables = discover(paths), Tables(spark, tmp_path / "out")
    ingest(tables, inputs)

    folders = [str(file.parent) for file in (tmp_path / "out").rglob("group=*/*/*.parquet")]
    assert len(folders) == len(set(folders)) == 5  # 0 to 3, and damage
    assert {
        (row.node, row.segment, row.source): (row.status, row.copy, row.records, row.entries)
        for row in tables["segments"].collect()
    } == {
        ("n1", 1, "archive"): ("corrupt", True, 0, 0),
        ("n1", 1, "log"): ("sound", False, 61, 60),
        ("n1", 2, "log"): ("corrupt", False, 0, 0),
        ("n1", 3, "log"): ("torn", False, 61, 60),  # which is no damage
        ("n2", 1, "log"): ("sound", False, 61, 60),
        ("n2", 2, "log"): ("sound", False, 60, 60),
        ("n2", 3, "log"): ("sound", False, 61, 60),
        ("n2", 4, "log"): ("sound", False, 1, 0),
        ("n2", 5, "log"): ("empty", False, 0, 0),
    }
    _, unusable = bases(spark, inputs.snapshots)
    found = damage(tables).unionByName(bad_snapshots(spark, unusable)).collect()
    assert {(row.kind, row.node, row.file, row.offset) for row in found} == {
        ("bad record", "n1", str(copy), 80),
        ("bad record", "n1", str(broken), 0),
        ("lost end", "n2", str(cut), end),
        ("bad snapshot", "n1", bad_snapshot, 0),
        ("bad snapshot", "n2", aside, 0),
    }
    reasons = {row.file: row.reason for row in found}
    assert reasons[aside].startswith("set aside by its node: ")
    assert reasons[str(cut)].startswith("synced data is missing: it reached to ")
    (noted,) = tables["records"].where(f"segment = 4 and offset = {at}").collect()
    assert [row.at_ns for row in found if row.kind == "lost end"] == [noted.wall_ns]


@pytest.mark.spark
def test_what_a_rebuilt_node_says_of_its_disk_is_not_about_the_old_one(
    spark: Any, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        old = _segment(tmp_path / "was", "n1", number)
        old.entry(1, 2 + number, 1)
    new = tmp_path / "n1" / "log" / fmt.segment_name(3)
    made = MadeSegment(new, 3, created_ns=START_NS + 9 * SECOND_NS, boot=bytes(range(9, 25)))
    made.synced(2, 9_653)

    inputs, tables = discover([str(tmp_path)]), Tables(spark, tmp_path / "out")
    ingest(tables, inputs)

    assert damage(tables).collect() == []


@pytest.mark.spark
def test_a_segment_that_has_grown_since_it_was_found_has_lost_nothing(
    spark: Any, tmp_path: Path
) -> None:
    made = _segment(tmp_path, "n1", 1)
    made.entry(1, 2, 1)
    made.record(fmt.KIND_COMMIT, 1, 5, 1)
    inputs, tables = discover([str(tmp_path)]), Tables(spark, tmp_path / "out")
    made.synced()
    made.synced()
    ingest(tables, inputs)

    (lack,) = lacks(tables).collect()  # else it would be thought to be in what was lost
    assert (lack["first"], lack.last, lack.explained) == (3, 5, False)


@pytest.mark.spark
def test_a_stream_goes_on_where_the_last_run_ended(spark: Any, tmp_path: Path) -> None:
    made = _segment(tmp_path, "n1", 1)
    for index in range(2, 50):
        made.entry(1, index, 1)
    made.synced()

    def run() -> list[int]:
        source = spark.readStream.format("raftlog").option("maxFilesPerTrigger", "1")
        writer = source.load(f"{tmp_path}/n1").writeStream.format("parquet")
        options = {"path": f"{tmp_path}/out", "checkpointLocation": f"{tmp_path}/checkpoint"}
        writer.options(**options).trigger(availableNow=True).start().awaitTermination()
        rows = spark.read.parquet(f"{tmp_path}/out").where("kind = 'entry'").select("index")
        return sorted(row[0] for row in rows.collect())

    assert run() == list(range(2, 50))
    made.entry(1, 50, 1)  # not known to be safe before the next segment begins
    following = _segment(tmp_path, "n1", 2)
    following.entry(1, 51, 1)
    following.synced()
    following.entry(1, 52, 1)
    assert run() == list(range(2, 52))
