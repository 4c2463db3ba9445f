"""Which states a replay begins with, and what becomes of one that cannot begin: without Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql import Row

from chaos.postmortem.findings.catalogue import OF_REPLAY, RULES
from chaos.postmortem.reading.inputs import SnapshotFile
from chaos.postmortem.replay import bases as reading
from chaos.postmortem.replay.bases import Base, agreed, told_apart, worth_reading
from chaos.postmortem.replay.events import _Span
from chaos.postmortem.replay.spans import Span, _chosen
from chaos.postmortem.report import About
from chaos.postmortem.report.gather import NOT_REPLAYED, not_judged
from cluster.history.group_replay import Event, GroupReplay
from cluster.log.snapshots import Snapshot, encode_snapshot
from cluster.machine import QueueMachine
from cluster.machine.snapshot import encode
from cluster.types import GroupId

HASH = b"h" * 16
STATE = QueueMachine().snapshot()
DIGEST = GroupReplay(GroupId(1)).digest().hex()


def snapshot_file(node: str, index: int, **more: Any) -> SnapshotFile:
    """In the log folder of the node, unless `source` says otherwise."""
    known: dict[str, Any] = {"source": "log", "set_aside": False} | more
    file = f"/{known['source']}/{node}/snapshots/1-{index}.snap"
    return SnapshotFile(file, "c", node, 1, index, 10, **known)


def read(snapshot: SnapshotFile, *, digest: str = DIGEST, reason: str | None = None) -> Row:
    return Row(file=snapshot.file, group=1, index=snapshot.index, hash=HASH, digest=digest,
               reason=reason, offset=0, since=None, voters=None, learners=None)  # fmt: skip


def content(index: int, state: bytes, *, wall_ns: int = 0) -> bytes:
    return encode_snapshot(1, Snapshot(index, 1, HASH, state, []), wall_ns)[0]


def restored(*contents: bytes) -> list[dict[str, Any]]:
    """What is said of these files, as far as anything is."""
    files = [f"/n{nth}/snapshots/1-20.snap" for nth in range(len(contents))]
    batch = pa.RecordBatch.from_pydict({"file": files, "content": list(contents)})
    rows = [row for found in reading.restored(iter([batch])) for row in found.to_pylist()]
    assert [row.pop("file") for row in rows] == files
    return [{name: told for name, told in row.items() if told is not None} for row in rows]


def begun(base: Base, data: bytes | None, *, told: bool = True) -> list[Event]:
    """What a replay says that has this to begin with, and no entries."""
    replay = _Span(Span(0, 1, 0, base, base.index + 10_000, whole=True, told=told))
    rows = [*replay.begin(data), *replay.end()]
    return [Event._make(row) for row in rows]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (b"\xff", "the bytes are no CBOR"),
        (encode([1, 0, [[], [], []], [[1, "/", "q", {"x": 1}, []]]]), "of another release: TypeE"),
        (encode([1, "soon", [[], [], []], [[1, "/", "q", {}, [[]]]]]), "of another release: Value"),
    ],
)
def test_a_sound_file_with_a_state_of_another_release_is_told_and_no_more(
    state: bytes, reason: str
):
    unsupported, sound = restored(content(20, state), content(20, STATE))

    assert reason in unsupported["reason"]
    assert sound == {"group": 1, "index": 20, "hash": HASH, "digest": DIGEST, "offset": 0}


def test_a_state_that_several_nodes_wrote_down_is_restored_once(monkeypatch: pytest.MonkeyPatch):
    after, begun = GroupReplay.after, list[int]()

    def counted(group: GroupId, snapshot: Snapshot) -> GroupReplay:
        begun.append(snapshot.index)
        return after(group, snapshot)

    monkeypatch.setattr(GroupReplay, "after", counted)
    bad = b"\xff"
    states = [(20, STATE, 1), (20, STATE, 2), (20, bad, 3), (20, bad, 4), (30, STATE, 5)]

    found = restored(*(content(index, state, wall_ns=at) for index, state, at in states))

    assert begun == [20, 20, 30]
    assert [each.get("digest") for each in found] == [DIGEST, DIGEST, None, None, DIGEST]
    assert [each.get("index") for each in found] == [20, 20, None, None, 30]


def test_a_copy_is_the_base_where_the_first_file_cannot_be_read():
    rotten, sound = snapshot_file("n1", 20), snapshot_file("n1", 20, source="archive", copy=True)
    other, again = snapshot_file("n2", 20), snapshot_file("n2", 20, source="archive", copy=True)
    aside = snapshot_file("n3", 20, set_aside=True)
    rows = [read(each) for each in (sound, other, again, aside)]

    found, unusable = told_apart(
        [rotten, sound, other, again, aside], [*rows, read(rotten, reason="cut short")]
    )

    assert [(base.node, base.file) for base in found] == [("n1", sound.file), ("n2", other.file)]
    assert [(each.snapshot, each.reason) for each in unusable] == [(rotten, "cut short")]


def test_of_several_states_at_an_index_the_base_is_what_most_nodes_have():
    def base(index: int, node: str, digest: str) -> Base:
        return Base(1, index, HASH, digest, f"/{node}/1-{index}.snap", node)

    found = [
        *(base(20, "n1", "wrong"), base(20, "n2", "right"), base(20, "n3", "right")),
        *(base(30, "n1", "one"), base(30, "n2", "other")),
    ]

    assert [(each.index, each.node) for each in agreed(found)] == [(20, "n2"), (30, "n1")]


def test_of_an_archive_only_states_are_read_that_entries_lead_to_or_follow():
    old, before, within, later = (
        snapshot_file("n1", index, source="archive") for index in (8_999, 9_999, 20_000, 50_000)
    )
    logged = snapshot_file("n2", 1)
    every = [old, before, within, later, logged]

    assert worth_reading(every, {1: 10_000}) == [before, within, later, logged]
    assert worth_reading(every, {1: 10_000}, {1: 30_000}) == [before, within, logged]
    assert worth_reading(every, {}, {}) == [logged]
    assert worth_reading(every, {}) == every


@pytest.mark.parametrize("data", [None, b"no snapshot", content(20_000, b"\xff")])
def test_a_replay_that_does_not_begin_ends_before_its_first_entry(data: bytes | None):
    (ended,) = begun(Base(1, 20_000, HASH, DIGEST, "/n1/1-20000.snap", "n1"), data)

    assert (ended.event, ended.index) == ("replayed", 20_000)
    assert (ended.first, ended.last, ended.entry) == (20_001, 20_000, 0)
    assert ended.reason


def test_the_state_that_no_replay_leads_up_to_is_compared_too():
    base = Base(1, 20_000, HASH, DIGEST, "/n1/1-20000.snap", "n1")
    ended = ("replayed", 20_000)

    told = begun(base, content(20_000, STATE))
    assert [(row.event, row.index) for row in told] == [("digest", 20_000), ended]
    assert told[0].reason == DIGEST
    led_up_to = begun(base, content(20_000, STATE), told=False)
    assert [(row.event, row.index) for row in led_up_to] == [ended]
    from_nothing = begun(Base(1, 1, HASH), None)
    assert [(row.event, row.index) for row in from_nothing] == [("replayed", 1)]


def test_a_replay_begins_behind_what_nobody_needed_any_more():
    """Entries 11 to 20 are in the segment of a backlog, 21 to 30 were dropped with theirs."""
    bases = [
        Base(1, 1, HASH),
        *(Base(1, at, HASH, DIGEST, f"{at}.snap", "n1") for at in (10, 20, 30)),
    ]
    stops = [10, 20, 30, 40]
    drawn = [
        Span(nth, 1, nth, base, stop, whole=False)
        for nth, (base, stop) in enumerate(zip(bases, stops, strict=True))
    ]
    known = {1: (10, 11), 2: (3, 28), 3: (10, 31)}

    def begun(lost: list[tuple[int, int, int]]) -> list[tuple[int, bool, bool]]:
        return [
            (each.base.index, each.whole, each.told) for each in _chosen(drawn, known, {}, lost)
        ]

    assert begun([]) == begun([(2, 21, 30), (1, 5, 20)]) == [(30, True, True)]
    as_lost = [(10, True, True), (20, False, False), (30, True, True)]
    assert begun([(1, 27, 27)]) == as_lost
    known.pop(3)  # nothing is behind it: it must be told that the log ends there
    assert [each[0] for each in begun([])] == [10, 20, 30]


def test_what_was_not_replayed_was_not_judged():
    about = About(("/n1",), 0, 0, 3, "1", 1.0, skipped={"lost_message": "no history"})

    assert not_judged({"not_replayed": 1}, about) == {
        **dict.fromkeys(OF_REPLAY, NOT_REPLAYED), "lost_message": "no history"
    }  # fmt: skip
    assert not_judged({"stuck_unacked": 1}, about) == {"lost_message": "no history"}
    assert set(OF_REPLAY) < set(RULES)
