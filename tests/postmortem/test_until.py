"""A log that is looked at up to a time is cut at one place, whatever its clock did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.postmortem.reading.inputs import Inputs, NothingToRead, Segment, Source, discover
from chaos.postmortem.reading.until import begun_by, ends
from cluster.log import format as fmt
from tests.postmortem.segments import START_NS, MadeSegment

MINUTE_NS = 60_000_000_000


def given(
    *times: int, folder: str = "n1/log", source: Source = "log", boots: Sequence[str] = ()
) -> list[Segment]:
    """Segments by number, with the time at which each was begun."""
    boots = boots or ["b1"] * len(times)
    return [
        Segment(
            f"/{folder}/{number}", "c", "n1", number, at, boot if at else "", 1, source, last=False
        )
        for number, (at, boot) in enumerate(zip(times, boots, strict=True), 1)
    ]


def kept(segments: list[Segment], until_ns: int) -> list[str]:
    inputs = begun_by(Inputs(segments, []), until_ns)
    return [segment.file[1:] for segment in inputs.segments]


def cut(segments: list[Segment], until_ns: int) -> list[str]:
    return [segment.file[1:] for segment in ends(Inputs(segments, []), until_ns)]


def test_later_segments_are_left_out_and_the_last_one_is_cut():
    segments = given(10, 20, 30)

    assert kept(segments, 25) == ["n1/log/1", "n1/log/2"]
    assert cut(segments, 25) == ["n1/log/2"]


@pytest.mark.parametrize("source", ["log", "archive"])
def test_what_was_begun_before_a_clock_was_set_back_stays_whole(source: Source):
    segments = given(10, 500, 20, 30, source=source)

    assert kept(segments, 25) == ["n1/log/1", "n1/log/2", "n1/log/3"]
    assert cut(segments, 25) == ["n1/log/3"]


def test_on_one_disk_this_holds_from_life_to_life():
    segments = given(500, 20, 30, boots=["b1", "b2", "b2"])

    assert kept(segments, 25) == ["n1/log/1", "n1/log/2"]


def test_a_disk_that_was_replaced_begins_to_count_anew():
    old = given(10, 20, 30, folder="archive/n1", source="archive")
    new = given(40, 50, source="archive", boots=["b2", "b2"])
    new = [replace(each, file=f"/archive/n1/1{each.number}") for each in new]

    assert kept([*old, *new], 45) == [f"archive/n1/{number}" for number in (1, 2, 3, 11)]
    assert cut([*old, *new], 45) == ["archive/n1/11"]


def test_what_is_not_known_to_be_later_is_looked_at():
    segments = given(10, 20, 0, 30)

    assert kept(segments, 25) == ["n1/log/1", "n1/log/2", "n1/log/3"]
    assert cut(segments, 25) == ["n1/log/2"]


def test_an_archive_that_is_behind_the_folder_is_whole():
    archived = given(10, 20, folder="archive/n1", source="archive")

    assert cut([*archived, *given(10, 20, 30)], 35) == ["n1/log/3"]


def test_before_all_there_is_nothing_to_read():
    with pytest.raises(NothingToRead, match="the first segment is of 2023-11-14T"):
        begun_by(Inputs(given(1_700_000_000_000_000_000), []), 5)


# --- with records ---------------------------------------------------------------------------------


#: Minutes of entries, segment by segment, and which are there when it is cut after 35 minutes.
LOGS = {
    "as it should be": ([[0, 10], [20, 30, 40, 50]], [2, 3, 4, 5]),
    "set back between two segments": ([[0, 10, 70, 80], [20, 30, 40]], [2, 3, 4, 5, 6, 7]),
    "set back within one": ([[0, 10, 70, 80, 20, 30]], [2, 3]),
    "all of it": ([[0, 10], [20, 30]], [2, 3, 4, 5]),
}


def _log(folder: Path, node: str, times: Sequence[Sequence[int]]) -> None:
    index = 1
    for number, minutes in enumerate(times, 1):
        path = folder / fmt.segment_name(number)
        made = MadeSegment(path, number, node=node, created_ns=_at(minutes[0]))
        for minute in minutes:
            index += 1
            made.now_ns = _at(minute)
            made.entry(1, index, 1)


def _at(minute: int) -> int:
    return START_NS + minute * MINUTE_NS


@pytest.mark.spark
def test_no_records_are_left_out_in_the_middle(tmp_path: Path, spark: Any):
    from chaos.postmortem.reading.ingest import ingest
    from chaos.postmortem.tables import Tables

    for node, (times, _) in LOGS.items():
        _log(tmp_path / node / "log", node, times)
    tables = Tables(spark, tmp_path / "tables")

    ingest(tables, begun_by(discover([str(tmp_path)]), _at(35)), _at(35))

    found: dict[str, list[int]] = {node: [] for node in LOGS}
    for row in tables["records"].orderBy("index").collect():
        found[row.node].append(row["index"])
    assert found == {node: expected for node, (_, expected) in LOGS.items()}
    assert sum(row.entries for row in tables["segments"].collect()) == sum(map(len, found.values()))
