"""What Spark replays is what the machine does, whichever states it begins with."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.builds import broken
from chaos.postmortem.findings.replayed import not_replayed, state_mismatch
from chaos.postmortem.limits import Limits
from chaos.postmortem.reading.ingest import ingest
from chaos.postmortem.reading.inputs import discover
from chaos.postmortem.replay.events import events, replays, spans, states
from chaos.postmortem.replication import copies
from chaos.postmortem.schemas import TABLES
from chaos.postmortem.tables import Tables
from cluster.history.group_replay import Event, GroupReplay
from cluster.log.snapshots import decode_snapshot, encode_snapshot
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
)
from cluster.machine.effects import Deliver
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp
from tests.postmortem.builder import Built

pytestmark = pytest.mark.spark

Q = QueueId(1)
META = ("digest", "replayed")


class Shop:
    """A cluster with two groups at work; remembers what each entry of a group was."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.built = Built(folder, groups=(1, 2), **more)
        for group in (1, 2):
            self.built.elect(group, "n1")
        self.consumers: dict[int, ConsumerKey] = {}
        for group in (1, 2):
            config = QueueConfig(single_active_consumer=group == 2)
            self.built.propose(group, CreateQueue(Q, "/", "orders", config))
            self.built.propose(group, OpenSession(SessionId("s"), NodeId("n1"), 1))
            index = self.built.propose(group, Subscribe(Q, SessionId("s"), "t", credit=5))
            self.consumers[group] = ConsumerKey(index << 16)

    def work(self, group: int, entries: int) -> None:
        """Publish, and settle or return what was delivered."""
        key = self.consumers[group]
        for number in range(entries // 2):
            self.built.propose(group, Enqueue(Q, None, 0, [b"x"] * (1 + number % 3)))
            held = [
                (chunk.first, chunk.first + chunk.bodies.count - 1)
                for effect in self.built.effects
                if isinstance(effect, Deliver)
                for chunk in effect.chunks
            ]
            command = Return if number % 5 == 4 else Settle
            if held:
                self.built.propose(group, command(Q, key, [held[0]]))
            else:
                self.built.propose(group, Enqueue(Q, "p", 0, []))


def read(spark: Any, folder: Path, paths: list[str], *, apart: int = 50) -> tuple[Tables, Any]:
    """Records, and entries of which all that is there was committed."""
    tables = Tables(spark, folder)
    inputs = discover(paths)
    ingest(tables, inputs)
    kinds = "kind in ('entry', 'live-entry', 'installed-entry') and hash is not null"
    bodies = tables["records"].where(kinds)
    tables.write("entries", bodies.selectExpr("*", "'committed' as outcome"))
    tables.write("merged", copies.merged(tables))
    tables.write("divergence", copies.divergence(tables))
    tables.write("lacks", tables.empty("lacks"))
    return tables, spans(tables, inputs.snapshots, span_entries_min=apart)


def replayed(tables: Tables, plan: Any) -> list[Event]:
    tables.write("events", events(tables, plan))
    tables.write("replays", replays(tables, plan))
    tables.write("states", states(tables, plan))
    return ordered(tables["events"])


def ordered(frame: Any) -> list[Event]:
    rows = [Event(**row.asDict()) for row in frame.collect()]
    return sorted(rows, key=lambda row: (row.group, row.index, row.ordinal, row.step, row.event))


def expected(tables: Tables, group: int) -> list[Event]:
    """By one replay from the beginning, without Spark, of one node's entries."""
    life = GroupReplay(GroupId(group))
    of_group = f"group = {group} and kind = 'entry' and node = 'n1'"
    for row in tables["records"].where(of_group).orderBy("index").collect():
        life.apply(row["index"], row.term, bytes(row.command))
    return [Event._make(row) for row in life.take_rows()]


def test_spans_from_snapshot_to_snapshot_tell_what_one_replay_tells(spark: Any, tmp_path: Path):
    shop = Shop(tmp_path / "built")
    taken: list[int] = []
    for _ in range(3):
        shop.work(1, 400)
        taken.append(shop.built.snapshot(1))
    shop.work(1, 310)
    shop.work(2, 120)
    shop.built.close()

    tables, plan = read(spark, tmp_path / "tables", shop.built.paths)

    last = shop.built.groups[1].commit
    drawn = [(s.group, s.span, s.base.index, s.last, s.whole, s.told) for s in plan.spans]
    assert drawn == [  # the newest two snapshots of a node are kept
        (1, 0, 1, taken[1], True, True),
        (1, 1, taken[1], taken[2], True, False),
        (1, 2, taken[2], last, True, False),
        (2, 0, 1, shop.built.groups[2].commit, True, True),
    ]
    assert all(span.node == "n1" for span in plan.spans)
    rows = replayed(tables, plan)
    told = [row for row in rows if row.event not in META]
    assert told == expected(tables, 1) + expected(tables, 2)
    replays_ = tables["replays"].orderBy("group", "span").collect()
    assert [(r.first, r.last, r.entries, r.failed) for r in replays_] == [
        (span.first, span.last, span.entries, None) for span in plan.spans
    ]
    published = [row for row in told if row.event == "published"]
    messages = sum((row.last or 0) - (row.first or 0) + 1 for row in published)
    assert sum(row.messages for row in replays_) == messages > 300
    compared = tables["states"].collect()
    assert {(r.source, r["index"]) for r in compared} == {
        ("digest", 1_000), ("snapshot", taken[1]), ("snapshot", taken[2])
    }  # fmt: skip
    assert len(compared) == 9
    assert all(r.agrees for r in compared)
    assert state_mismatch(tables, Limits()).collect() == []

    # The same as a broken build that never says how often something was handed out before.
    build = partial(broken, "unflagged-redelivery")
    never = ordered(events(tables, plan, build=build))
    assert [row._replace(acquired=row.acquired and 0) for row in told] == [
        row for row in never if row.event not in META
    ]
    assert any(row.acquired for row in told)


def test_a_replay_begins_where_the_log_does_and_stops_where_entries_are_missing(
    spark: Any, tmp_path: Path
):
    shop = Shop(tmp_path / "built")
    shop.work(1, 200)
    first = shop.built.snapshot(1)
    shop.work(1, 100)
    second = shop.built.snapshot(1)
    shop.work(1, 100)
    shop.built.close()
    last = shop.built.groups[1].commit
    otherwise(shop, "n1", first)
    tables, _ = read(spark, tmp_path / "tables", shop.built.paths)
    snapshots = discover(shop.built.paths).snapshots
    # What was before the first snapshot is gone, and so is one entry after the second one; the
    # node that had all of the rest has another entry at one place.
    missing = second + 40
    kept = f"group = 1 and index > {first - 50} and index != {missing}"
    elsewhere = tables["entries"].where(f"not (node = 'n1' and index = {first + 5})").collect()
    tables.write("entries", spark.createDataFrame(elsewhere, tables["entries"].schema))
    tables.write("merged", copies.merged(tables).where(kept))

    plan = spans(tables, snapshots, span_entries_min=50)

    assert [(s.base.index, s.last, s.whole, s.told, s.node) for s in plan.spans] == [
        (first, second, True, True, "n2"),
        (second, last, False, False, None),
    ]
    rows = replayed(tables, plan)
    known = [row for row in rows if row.event == "known"]
    assert known
    assert {row.index for row in known} == {first}
    whole = [row for row in expected(tables, 1) if first < row.index < missing]
    assert [row for row in rows if row.event not in (*META, "known")] == whole
    ended = tables["replays"].orderBy("span").collect()
    assert [row.failed for row in ended] == [None, f"entry {missing} is missing"]
    assert ended[1].last == missing - 1
    # n1 is alone with its state there: the others are right, and it is the one to look at.
    assert plan.spans[0].base.node == "n2"
    (wrong,) = state_mismatch(tables, Limits()).collect()
    assert (wrong.node, wrong.last, wrong.file) == (
        "n1", first, f"{shop.built.folder}/n1/log/snapshots/1-{first}.snap"
    )  # fmt: skip
    (found,) = not_replayed(tables, Limits()).collect()
    assert (found.group, found.first, found["count"]) == (1, missing, 1)
    assert found.detail == f"entry {missing} is missing"

    # Nothing can be said where there is no state to begin with.
    nothing = spans(tables, [])
    assert (nothing.spans, nothing.lacking) == ([], {1: first - 49})
    assert replayed(tables, nothing) == []
    (lack,) = tables["replays"].collect()
    assert lack.failed == f"there is no state to begin with before entry {first - 49}"
    (found,) = not_replayed(tables, Limits()).collect()
    assert (found.severity, found.first, found.detail) == ("unreadable", first - 49, lack.failed)


def test_of_a_log_that_was_cut_all_is_replayed_that_can_be(spark: Any, tmp_path: Path):
    """A rewritten segment keeps single entries of long before, and an archive has states that are
    newer than its segments. Neither is a reason to begin late, or to miss entries at the end.
    """
    shop = Shop(tmp_path / "built")
    taken = list[int]()
    for node in ("n1", "n1", "n2", "n2"):
        shop.work(1, 120)
        taken.append(shop.built.snapshot(1, node))
    shop.built.close()
    old, first, second, newest = taken
    tables, _ = read(spark, tmp_path / "tables", shop.built.paths)
    known = f"index = {old + 1} or (index > {first - 20} and index < {newest - 5})"
    tables.write("merged", copies.merged(tables).where(f"group = 1 and ({known})"))
    found = discover(shop.built.paths).snapshots
    archived = [replace(each, source="archive") for each in found if each.group == 1]

    for apart, spans_ in (
        (second - first + 1, [(first, newest - 6, True, True)]),
        (
            second - first,
            [(first, second, True, True), (second, newest - 6, True, False)],
        ),
    ):
        plan = spans(tables, archived, span_entries_min=apart)

        assert [(s.base.index, s.last, s.whole, s.told) for s in plan.spans] == spans_
        assert [(s.number, s.span) for s in plan.spans] == [(n, n) for n in range(len(spans_))]
    replayed(tables, plan)
    assert [row.failed for row in tables["replays"].collect()] == [None, None]
    # A log folder is judged as a whole: what leads to its newest state should be there.
    assert spans(tables, found, span_entries_min=50).spans[-1].last == newest


def otherwise(shop: Shop, node: str, index: int) -> None:
    """Its snapshot of group 1 there is sound, and says something else than those of the others."""
    path = shop.built.nodes[node].folder / "log" / "snapshots" / f"1-{index}.snap"
    _, snapshot, _ = decode_snapshot(path.read_bytes(), str(path))
    machine = GroupReplay.after(GroupId(1), snapshot).machine
    machine.apply(Stamp(index, snapshot.term, 0), OpenSession(SessionId("x"), NodeId(node), 1))
    data = encode_snapshot(1, replace(snapshot, data=machine.snapshot()), 0)[0]
    path.write_bytes(data)


def test_only_what_was_known_by_then_is_replayed(spark: Any, tmp_path: Path):
    """With `--until` the states that nodes wrote later are none to begin with."""
    shop = Shop(tmp_path / "built")
    shop.work(1, 200)
    first = shop.built.snapshot(1)
    shop.work(1, 200)
    later = shop.built.snapshot(1)
    shop.built.close()
    tables, _ = read(spark, tmp_path / "tables", shop.built.paths)
    by_then = f"group = 1 and index > {first - 50} and index < {later - 50}"
    tables.write("merged", copies.merged(tables).where(by_then))
    snapshots = discover(shop.built.paths).snapshots

    unmarked = F.expr(f"kind <> 'snapshot' or index < {later}")
    plan = spans(tables.only("records", unmarked), snapshots, cut=True, span_entries_min=50)

    assert [(s.base.index, s.last, s.whole) for s in plan.spans] == [(first, later - 51, True)]
    assert {base.index for base in plan.bases} == {first}
    assert plan.lacking == {}


def test_a_state_that_became_another_is_found_once_a_node_and_group(spark: Any, tmp_path: Path):
    tables = Tables(spark, tmp_path)
    rows = [
        (group, index, node, "digest", noted, "a", noted == "a", f"{node}.log", index * 10)
        for group, index, node, noted in (
            (1, 1000, "n1", "a"), (1, 2000, "n1", "b"), (1, 3000, "n1", "c"),
            (1, 1000, "n2", "a"), (1, 2000, "n2", "b"), (1, 3000, "n2", "a"),
            (1, 2000, "n3", "a"), (2, 1000, "n3", "d"),
        )
    ]  # fmt: skip
    tables.write("states", spark.createDataFrame(rows, TABLES["states"]))
    tables.write("replays", tables.empty("replays"))

    found = state_mismatch(tables, Limits()).orderBy("group", "node").collect()

    assert [(f.group, f.node, f.first, f.last, f.file, f.offset, f["count"]) for f in found] == [
        (1, "n1", 1001, 2000, "n1.log", 20_000, 2),
        (1, "n2", 1001, 2000, "n2.log", 20_000, 1),
        (2, "n3", 1, 1000, "n3.log", 10_000, 1),
    ]
    assert json.loads(found[0].detail) == {
        "source": "digest", "noted": "b", "replayed": "a", "nodes_alike": 2
    }  # fmt: skip


def test_who_agrees_with_a_replay_that_began_with_a_wrong_state_is_wrong_too(
    spark: Any, tmp_path: Path
):
    """States that are right are written `r`, those of n3 `w`. In group 1 the replay leads up to
    n3's state, goes on from there, and then from n1's; in group 2 it begins with n3's.
    """
    tables = Tables(spark, tmp_path)

    def digests(group: int, index: int, replayed: str) -> list[tuple[Any, ...]]:
        noted = {"n1": "r", "n2": "r", "n3": "w" if index > 1000 else "r"}
        return [
            (group, index, node, "digest", its, replayed, its == replayed, f"{node}.log", index)
            for node, its in noted.items()
        ]

    def taken(group: int, index: int, node: str, noted: str, replayed: str) -> tuple[Any, ...]:
        file = f"{node}-{index}.snap"
        return (group, index, node, "snapshot", noted, replayed, noted == replayed, file, None)

    rows = [
        *digests(1, 1000, "r"), taken(1, 1500, "n3", "w", "r"), *digests(1, 2000, "w"),
        taken(1, 2500, "n1", "r", "w"), *digests(1, 3000, "r"),
        taken(2, 1500, "n3", "w", "w"), taken(2, 1700, "n2", "r", "w"), *digests(2, 2000, "w"),
    ]  # fmt: skip
    replays_ = [
        (1, 0, 1, None, 2, 1500, "n1", 0, 0, 0, None),
        (1, 1, 1500, "n3-1500.snap", 1501, 2500, "n1", 0, 0, 0, None),
        (1, 2, 2500, "n1-2500.snap", 2501, 3500, "n1", 0, 0, 0, None),
        (2, 0, 1500, "n3-1500.snap", 1501, 2500, "n1", 0, 0, 0, None),
    ]
    tables.write("states", spark.createDataFrame(rows, TABLES["states"]))
    tables.write("replays", spark.createDataFrame(replays_, TABLES["replays"]))

    found = state_mismatch(tables, Limits()).orderBy("group", "node").collect()

    assert [(f.group, f.node, f.first, f.last, f.file, f["count"]) for f in found] == [
        (1, "n3", 1001, 1500, "n3-1500.snap", 3),
        (2, "n3", 1, 1500, "n3-1500.snap", 2),
    ]
