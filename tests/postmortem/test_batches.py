"""What an earlier run has read is not read again, unless it changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.postmortem.reading import batches
from chaos.postmortem.reading.batches import as_read, plan
from chaos.postmortem.reading.inputs import Segment, discover
from cluster.log.reader import CORRUPT
from tests.postmortem.by_sail import by_sail, differing
from tests.postmortem.segments import MadeSegment

#: The head of a file is in there.
HEAD_BYTES = 300


def segment(number: int, *, last: bool = False) -> Segment:
    file = f"/n1/log/{number:012d}.log"
    return Segment(file, "c", "n1", number, 1, "b", 100, "log", last, changed_ns=5)


def held(*segments: Segment) -> set[str]:
    return {as_read(each) for each in segments}


class TestPlan:
    def test_what_is_there_stays_and_the_rest_is_read(self):
        one, two, three = segment(1), segment(2), segment(3)

        made = plan({4: held(one), 6: held(two)}, [one, two, three])

        assert (made.kept, made.new) == ({4, 6}, {7: [three]})
        assert plan({4: held(one)}, [one]).new == {}

    @pytest.mark.parametrize("change", [{"bytes": 101}, {"changed_ns": 6}, {"copy": True}])
    def test_what_has_changed_is_read_again_with_all_of_its_batch(self, change: dict[str, Any]):
        one, two, three = segment(1), segment(2), segment(3)
        other = replace(two, **change)

        made = plan({0: held(one, two), 1: held(three)}, [one, other, three])

        assert (made.kept, made.new) == ({1}, {2: [one, other]})

    def test_where_one_is_gone_the_others_are_read_again(self):
        made = plan({0: held(segment(1), segment(2))}, [segment(2)])

        assert (made.kept, made.new) == (set(), {0: [segment(2)]})

    def test_where_a_copy_lies_does_not_count(self):
        one = segment(1)

        assert plan({0: held(one)}, [replace(one, copies=("/archive/1",))]).new == {}

    def test_batches_are_small_and_what_may_grow_comes_last(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(batches, "SEGMENTS_MAX", 2)
        grows = segment(1, last=True)
        others = [segment(number) for number in (2, 3, 4)]

        assert plan({}, [grows, *others]).new == {0: others[:2], 1: [others[2], grows]}


def written(folder: Path, node: str, number: int, first: int) -> Path:
    file = folder / node / "log" / f"{number:012d}.log"
    made = MadeSegment(file, number, node=node)
    for index in range(first, first + 20):
        made.entry(1, index, 1)
    made.synced()
    return file


def spoilt(file: Path) -> None:
    """Whoever reads more than its head finds damage; nothing else tells."""
    about, data = file.stat(), file.read_bytes()
    file.write_bytes(data[:HEAD_BYTES] + b"x" * (len(data) - HEAD_BYTES))
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.mark.spark
def test_a_second_run_reads_what_is_new(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chaos.postmortem.reading.ingest import ingest, planned
    from chaos.postmortem.tables import Tables

    monkeypatch.setattr(batches, "SEGMENTS_MAX", 2)
    logs, out = tmp_path / "logs", tmp_path / "out"
    old = [written(logs, "n1", number, 1 + 20 * number) for number in range(1, 4)]
    tables = Tables(spark, out)

    def read() -> dict[str, int]:
        """Sound records by file."""
        inputs = discover([str(logs)])
        ingest(tables, inputs)
        assert planned(tables, inputs).new == {}
        assert {row.file for row in tables["segments"].collect()} == {
            each.file for each in inputs.segments
        }
        sound = tables["records"].where(f"kind != '{CORRUPT}'").groupBy("file").count()
        return {Path(row.file).name: row["count"] for row in sound.collect()}

    first = read()
    assert len(first) == 3
    spoilt(old[0])
    new = written(logs, "n1", 4, 81)
    (out / "records" / "batch=77" / "group=1" / "hour=0").mkdir(parents=True)  # of one killed

    second = read()
    assert second == {**first, new.name: first[old[0].name]}
    assert not (out / "records" / "batch=77").exists()

    os.utime(old[0])  # now it has changed, and is what it is
    old[1].unlink()
    third = read()
    assert third[old[0].name] < first[old[0].name]
    assert {*third} == {*second} - {old[1].name}


@pytest.mark.spark
def test_both_engines_go_on_alike(spark: Any, tmp_path: Path) -> None:
    from chaos.postmortem.pipeline import run

    logs, out, by_other = tmp_path / "logs", tmp_path / "spark", tmp_path / "sail"
    nothing = dict.fromkeys(("build", "history", "confirmed"))
    written(logs, "n1", 1, 2)
    written(logs, "n1", 2, 22)
    for _ in range(2):
        result = run([str(logs)], out, spark=spark)
        assert by_sail([str(logs)], by_other, **nothing) == result.status
        assert differing(out / "tables", by_other / "tables") == {}

    assert "read 0 new of 2 segments" in result.seconds
