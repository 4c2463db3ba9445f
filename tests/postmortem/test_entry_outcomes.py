"""The fold over one group's log on one node, against one that takes a record at a time."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from chaos.postmortem.replication.expected_entries import (
    ENDED,
    NOT_GIVEN,
    SKIPPED,
    TRUNCATED,
    ExpectedEntries,
)
from chaos.postmortem.replication.order import Given, Placed, placed

pa = pytest.importorskip("pyarrow")
fold: Any = pytest.importorskip("chaos.postmortem.replication.entry_outcomes")
around: Any = pytest.importorskip("chaos.postmortem.replication.surroundings")

SCHEMA = pa.schema(
    [
        ("seq", pa.int32()),
        ("stream", pa.int64()),
        ("place", pa.int64()),
        ("kind", pa.int8()),
        ("index", pa.int64()),
        ("mono_ns", pa.int64()),
        ("disk", pa.int32()),
        ("boot", pa.int32()),
        ("holes", pa.int32()),
        ("committed", pa.int64()),
        ("base", pa.int64()),
    ]
)
NODE_BIT = fold.OFFSET_BITS + 8
Row = dict[str, Any]
#: kind and place: outcome, commit_ns, sync_ns
Told = dict[int, tuple[str, int | None, int | None]]


def a_log(random: Random) -> Iterator[Row]:
    """Mostly entries and commits, and now and then all that can happen."""
    last, commit, mono, segment = 1, 1, 1_000, 0
    disk = boot = holes = 0

    def row(kind: int, offset: int, index: int = 0, **more: Any) -> Row:
        place = segment << fold.OFFSET_BITS | offset
        return {"place": place, "kind": kind, "index": index, "mono_ns": mono} | more

    for _ in range(random.randint(1, 8)):
        synced = [
            {"reached": reached, "at": mono + reached * 10 + random.randint(0, 50)}
            for reached in sorted(random.sample(range(70, 1_000), random.randint(0, 4)))
        ]
        yield row(fold.SEGMENT, 0, disk=disk, boot=boot, holes=holes, synced=synced)
        for offset in range(64, random.choice((64, 75, random.randint(80, 400))), 5):
            mono += random.randint(1, 50)
            match random.choices(range(9), (60, 20, 4, 4, 3, 2, 1, 1, 1))[0]:
                case 0:
                    last += 1
                    yield row(fold.ENTRY, offset, last)
                case 1:
                    commit = random.randint(min(commit, last), last)
                    yield row(fold.COMMIT, offset, commit)
                case 2:
                    last = random.randint(max(1, last - 4), last)
                    yield row(fold.TRUNCATE, offset, last + 1)
                case 3:
                    last = random.randint(max(2, last - 3), last + 1)
                    yield row(fold.ENTRY, offset, last)
                case 4:
                    yield row(fold.LIVE, offset, random.randint(1, last + 1))
                case 5:
                    yield row(fold.SNAPSHOT, offset, random.randint(1, max(1, commit)))
                case 6:
                    last = commit = last + random.randint(0, 3)
                    yield row(fold.INSTALLED, offset, random.randint(1, last))
                    yield row(fold.INSTALL, offset + 1, last)
                case 7:
                    yield row(fold.CORRUPT, offset)
                case _:
                    last, commit = 1, 0
                    yield row(fold.REMOVED, offset)
        segment += 1
        happens = random.random()
        boot += happens < 0.5
        holes += happens < 0.2
        if happens < 0.1:
            disk += 1
            last, commit = 1, 0


def marked(rows: list[Row]) -> list[Row]:
    """A segment begins where a group's first record in it is; where there is none it does not."""
    there = {
        row["place"] >> fold.OFFSET_BITS
        for row in rows
        if row["kind"] not in (fold.SEGMENT, fold.CORRUPT)
    }
    return [
        row
        for row in rows
        if row["kind"] != fold.SEGMENT or row["place"] >> fold.OFFSET_BITS in there
    ]


def told_slowly(rows: list[Row]) -> Told:
    """What became of each entry."""
    found: Told = {}
    held: list[Row] = []
    state = {"commit": 0, "base": 0}
    mark: Row = {"disk": -1, "boot": -1, "holes": -1}

    def decide(fits: Any, outcome: str, at: int | None = None) -> None:
        for each in [each for each in held if fits(each)]:
            held.remove(each)
            known = at is not None and not each["old"]
            found[each["place"]] = (outcome, at - each["mono_ns"] if known else None, each["sync"])

    def finish() -> None:
        base, commit = state["base"], state["commit"]
        decide(lambda each: each["doubt"] and base < each["index"] <= commit, "committed")
        decide(lambda each: True, "pending")
        state.update(commit=0, base=0)

    for row in rows:
        kind, index = row["kind"], row["index"]
        if kind == fold.SEGMENT:
            if row["disk"] != mark["disk"]:
                finish()
            elif row["holes"] != mark["holes"]:
                for each in held:
                    each["doubt"] = True
            for each in held:
                each["old"] = each["old"] or row["boot"] != mark["boot"]
            mark = row
        elif kind in (fold.ENTRY, fold.LIVE, fold.INSTALLED):
            offset = row["place"] & fold.OFFSET_MASK
            safe = [each["at"] for each in mark["synced"] if each["reached"] > offset]
            sync = safe[0] - row["mono_ns"] if safe else None
            if kind == fold.ENTRY:
                decide(lambda each, first=index: each["index"] >= first, "voided")
            copy = kind != fold.ENTRY
            held.append(row | {"old": copy, "doubt": False, "sync": sync})
            if kind == fold.INSTALLED or (copy and index <= state["commit"]):
                decide(lambda each, own=row["place"]: each["place"] == own, "committed")
        elif kind in (fold.COMMIT, fold.SNAPSHOT):
            state["commit"] = commit = max(state["commit"], index)
            state["base"] = index if kind == fold.SNAPSHOT else state["base"]
            decide(
                lambda each, top=commit: each["index"] <= top and not each["doubt"],
                "committed",
                row["mono_ns"],
            )
        elif kind == fold.TRUNCATE:
            decide(lambda each, first=index: each["index"] >= first, "voided")
        elif kind == fold.CORRUPT:
            for each in held:
                each["doubt"] = True
        else:
            decide(lambda each: True, "voided")
            removed = kind == fold.REMOVED
            state["commit"] = 0 if removed else max(state["commit"], index)
            state["base"] = 0 if removed else index
    finish()
    return found


def told_quickly(streams: list[list[Row]], size: int) -> list[Told]:
    """Each stream by a node of its own, segment by segment."""
    rows = [
        row | {"stream": nth << 32, "place": nth << NODE_BIT | row["place"]}
        for nth, stream in enumerate(streams)
        for row in stream
    ]
    nodes: dict[int, Any] = {nth: around.NodeMarks() for nth in range(len(streams))}
    told, points = list[Row](), list[Row]()
    for row in rows:
        node, seq = nodes[row["stream"] >> 32], row["place"] >> fold.OFFSET_BITS
        if row["kind"] == fold.SEGMENT:
            node.segments[seq] = around.Mark(row["disk"], row["boot"], row["holes"])
            own = {"stream": fold.POINTS, "place": row["place"], "kind": fold.SEGMENT}
            points += [
                own | {"index": each["reached"], "mono_ns": each["at"]} for each in row["synced"]
            ]
        elif row["kind"] == fold.CORRUPT:
            node.corrupt.append(row["place"])
        else:
            told.append(row)
    apart = [*in_batches(told[::2], size), *in_batches(told[1::2], size)]
    few = pa.Table.from_batches(around.decisive(apart))
    few = few.sort_by([("stream", "ascending"), ("place", "ascending")])
    known = pa.Table.from_batches(around.surroundings(few.to_batches(size), nodes))
    whole = [
        row | {"seq": row.get("seq", row["place"] >> fold.OFFSET_BITS)}
        for row in [*known.to_pylist(), *points, *told]
    ]
    whole.sort(key=lambda row: (row["seq"], row["stream"], row["place"]))
    found: list[Told] = [{} for _ in streams]
    passed = ["stream", "place", "kind", "index", "mono_ns"]
    for answer in fold.entry_outcomes(in_batches(whole, size), passed):
        for row in answer.to_pylist():
            place = row["place"] & ((1 << NODE_BIT) - 1)
            its = found[row["stream"] >> 32]
            assert place not in its
            its[place] = (fold.OUTCOMES[row["outcome"]], row["commit_ns"], row["sync_ns"])
    return found


def in_batches(rows: list[Row], size: int) -> Iterator[Any]:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    return (batch.slice(at, size) for at in range(0, batch.num_rows, size))


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_batches_of_any_size_say_what_single_records_say(size: int):
    streams = [list(a_log(Random(seed))) for seed in range(80)]

    assert told_quickly(streams, size) == [told_slowly(marked(stream)) for stream in streams]


def test_what_other_segments_must_know_of_a_busy_one_does_not_grow_with_it():
    """A round: some entries, and what is committed by then."""

    def known(rounds: int, segments: int) -> int:
        rows = [
            {"stream": 1, "place": seq << fold.OFFSET_BITS | 64 + nth * 40 + of, "kind": kind,
             "index": 2 + 3 * (seq * rounds + nth) + min(of, 2), "mono_ns": nth}
            for seq in range(segments)
            for nth in range(rounds)
            for of, kind in enumerate([fold.ENTRY] * 3 + [fold.COMMIT])
        ]  # fmt: skip
        node = around.NodeMarks({seq: around.Mark(0, 0, 0) for seq in range(segments)})
        few = list(around.decisive(in_batches(rows, 10_000)))
        told = list(around.surroundings(few, {0: node}))
        return sum(batch.num_rows for batch in [*few, *told])

    assert known(2_000, 4) <= 2 * known(20, 4) <= 60
    assert known(20, 40) <= 11 * known(20, 4)


def given(
    number: int,
    boot: str,
    *,
    follows: int = 0,
    at: int = 0,
    archived: bool = False,
    folder: str = "n1/log",
    unread: bool = False,
):
    """As long as its number says."""
    return Given(
        "n1", f"{folder}/{number}-{boot}", number, at or number, boot, archived, number * 100,
        follows, follows * 100, unread,
    )  # fmt: skip


def told(found: list[Placed]) -> list[tuple[int, str, int, int, int]]:
    return [
        (each.given.segment, each.given.boot, each.disk, each.first_missing, each.last_missing)
        for each in found
    ]


def test_segments_of_a_process_are_ordered_by_number_whatever_its_clock_did():
    found = placed(
        [
            given(3, "b", follows=1, at=30),
            given(1, "a", at=10),
            given(4, "b", follows=3, at=5_000),
            given(5, "b", follows=4, at=40),
        ]
    )

    assert [each.given.segment for each in found] == [1, 3, 4, 5]
    # A start removed 2, which was empty: 3 says that it follows 1.
    assert [each.holes for each in found] == [0, 0, 0, 0]


def test_what_an_archive_lacks_between_its_segments_is_told():
    found = placed([given(n, "a", follows=n - 1, archived=n < 7) for n in (3, 4, 6, 7)])

    # Before the first one nothing was asked for.
    lacking = [(e.given.segment, e.first_missing, e.last_missing, e.dropped) for e in found]
    assert lacking == [(3, 0, 0, False), (4, 0, 0, False), (6, 5, 5, False), (7, 0, 0, False)]
    assert [each.holes for each in found] == [1, 1, 2, 2]


def test_an_archive_may_begin_anywhere_also_behind_what_a_log_folder_still_has():
    found = placed([given(3, "a"), *(given(n, "a", follows=n - 1, archived=True) for n in (7, 8))])

    assert [(e.given.segment, e.first_missing, e.dropped) for e in found] == [
        (3, 0, True), (7, 0, False), (8, 0, False),
    ]  # fmt: skip


@pytest.mark.parametrize("archived", [True, False])
def test_lives_of_one_disk_are_ordered_by_number_whatever_the_clock_did(archived: bool):
    """It was ahead, was set back while the node was down, and much later there was a third life."""
    found = placed(
        [
            given(1, "a", at=600, archived=archived),
            given(2, "b", at=20, archived=archived, follows=1),
            given(3, "c", at=720, archived=archived, follows=2),
        ]
    )

    assert told(found) == [(1, "a", 0, 0, 0), (2, "b", 0, 0, 0), (3, "c", 0, 0, 0)]
    assert [each.boot_number for each in found] == [0, 1, 2]


def test_an_archive_is_asked_for_proof_where_numbers_and_clock_disagree():
    """Its folder says nothing of disks, so without what the segments say it may be two of them."""
    found = placed([given(n, b, at=at, archived=True) for n, b, at in ((1, "a", 9), (2, "b", 2))])

    assert [each.disk for each in found] == [0, 1]


def test_a_disk_that_was_replaced_begins_to_count_anew():
    found = placed(
        [
            given(1, "a", at=1, archived=True),
            given(2, "a", at=2, archived=True),
            given(1, "b", at=9, archived=True),
        ]
    )

    assert told(found) == [(1, "a", 0, 0, 0), (2, "a", 0, 0, 0), (1, "b", 1, 0, 0)]


def test_two_log_folders_are_two_disks_unless_something_says_otherwise():
    old = [given(n, "a", at=n, folder="was/log") for n in (1, 2)]

    rebuilt = placed([*old, given(3, "b", at=9)])
    copied = placed([*old, given(3, "b", at=9, follows=2)])
    resumed = placed([*old, given(3, "a", at=9)])
    shared = placed([*old, replace(given(2, "a"), copy=True), given(4, "b", at=9)])

    assert [each.disk for each in rebuilt] == [0, 0, 1]
    assert [each.disk for each in copied] == [0, 0, 0]
    assert [each.disk for each in resumed] == [0, 0, 0]
    assert [each.disk for each in shared] == [0, 0, 0]


def test_which_segment_was_before_is_told_by_its_length_too():
    """Of two disks that the archive has, by a clock that was set back before the last life."""
    newer = replace(given(2, "b", at=90, archived=True, follows=1), bytes=250)
    last = replace(given(3, "c", at=3, archived=True, follows=2), follows_bytes=250)
    archived = [given(n, boot, at=at, archived=True) for n, boot, at in ((1, "a", 1), (2, "a", 2))]

    found = placed([*archived, given(1, "b", at=80, archived=True), newer, last])

    assert [each.given.boot for each in found] == ["a", "a", "b", "b", "c"]
    assert [each.disk for each in found] == [0, 0, 1, 1, 1]
    assert [each.holes for each in found] == [0] * 5


def test_two_that_went_on_from_one_backup_are_not_mixed():
    found = placed(
        [
            *(given(n, "a", at=n) for n in (1, 2)),
            *(given(n, "b", at=n, follows=n - 1) for n in (3, 4)),
            *(given(n, "c", at=9 + n, follows=n - 1, folder="again/log") for n in (3, 4)),
        ]
    )

    assert [(each.given.segment, each.given.boot, each.disk) for each in found] == [
        (1, "a", 0), (2, "a", 0), (3, "b", 0), (4, "b", 0), (3, "c", 1), (4, "c", 1),
    ]  # fmt: skip


def test_a_segment_that_cannot_be_read_is_there_and_yet_something_is_missing():
    found = placed(
        [given(1, "a"), given(2, "a", unread=True, archived=True), given(3, "a", follows=2)]
    )

    assert told(found) == [(1, "a", 0, 0, 0), (2, "a", 0, 0, 0), (3, "a", 0, 0, 0)]
    assert [each.holes for each in found] == [0, 0, 1]


def lacking(log: ExpectedEntries, found: list[Any] | None = None) -> list[tuple[int, int, str]]:
    return [(each.first, each.last, each.reason) for each in [*(found or ()), *log.ended()]]


def test_what_is_above_the_snapshot_must_be_there():
    log = ExpectedEntries()
    list(log.entries(2, 10, 100, 200))
    list(log.entries(15, 20, 300, 400))
    log.committed(20)
    assert lacking(log) == [(11, 14, SKIPPED)]

    log.copies(12, 14, 500, 510)
    assert lacking(log) == [(11, 11, SKIPPED)]

    log.marked(12, 600)
    assert lacking(log) == []


def test_a_log_that_ends_before_its_commit_lacks_something():
    log = ExpectedEntries()
    list(log.entries(2, 10, 100, 200))
    log.committed(12)

    assert lacking(log) == [(11, 12, ENDED)]


def test_what_was_committed_must_not_be_truncated():
    log = ExpectedEntries()
    list(log.entries(2, 10, 100, 200))
    log.committed(8)
    assert list(log.truncate(9, 300)) == []

    found = list(log.entries(7, 9, 400, 500))

    assert lacking(log, found) == [(7, 8, TRUNCATED)]


@pytest.mark.parametrize("told", [True, False])
def test_a_hole_in_the_log_explains_what_is_not_there(told: bool):
    log = ExpectedEntries()
    list(log.entries(2, 10, 100, 200))
    log.hole(250, told=told)
    list(log.entries(15, 20, 300, 400))

    assert lacking(log) == ([] if told else [(11, 14, NOT_GIVEN)])
    assert all(each.explained for each in log.ended())


def test_a_commit_behind_a_damaged_entry_does_not_hide_the_damage():
    lacks: Any = pytest.importorskip("chaos.postmortem.replication.lacks")
    told = [(10, fold.ENTRY, 2), (20, fold.ENTRY, 3), (40, fold.COMMIT, 4), (50, fold.ENTRY, 5)]
    stream, place = [1] * len(told), [place for place, _, _ in told]
    kind = pa.array([kind for _, kind, _ in told], pa.int8())
    columns = [pa.array(stream, pa.int64()), pa.array(place, pa.int64()), kind]
    columns.append(pa.array([index for _, _, index in told], pa.int64()))
    batch = pa.RecordBatch.from_arrays(columns, ["stream", "place", "kind", "index"])

    runs = lacks.runs_of(batch).to_pylist()

    assert [(run["first"], run["last"], run["ends"], run["seen"]) for run in runs] == [
        (2, 3, 20, 40),
        (5, 5, 50, 50),
    ]
    log = ExpectedEntries()
    for run in runs:
        list(log.entries(run["first"], run["last"], run["place"], run["ends"], run["seen"]))
    log.hole(30, told=True)
    assert lacking(log) == []


def test_what_came_with_a_snapshot_stands_for_all_before_it():
    log = ExpectedEntries()
    list(log.entries(2, 10, 100, 200))
    log.installed(30, 300)
    list(log.entries(31, 33, 400, 500))
    log.committed(33)

    assert lacking(log) == []
