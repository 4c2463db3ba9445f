"""The rows of a replay say all that happened: from them alone the state can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import pytest

from cluster.codec.entries import decode_entry, encode_entry
from cluster.history.group_replay import Event, GroupReplay, ReplayFailed, Row, stamped
from cluster.log import Snapshot
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine.commands import (
    ATTR_DEDUP_ID,
    Cancel,
    CloseSession,
    CreateQueue,
    DeleteQueue,
    Discard,
    Enqueue,
    Get,
    NodeDown,
    OpenSession,
    Purge,
    QueueConfig,
    Return,
    SetCredit,
    Settle,
    Subscribe,
    Tick,
    Transaction,
    TransactionPart,
)
from cluster.machine.disposal import Disposal
from cluster.machine.snapshot import encode
from cluster.raft.configuration import SNAPSHOT_MAGIC
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.types import CATALOG_GROUP, ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp
from tests.machine.histories import History

G = GroupId(3)
Q, LETTERS = QueueId(1), QueueId(2)
S, N = SessionId("s"), NodeId("n1")
STEPS = 500


class Entries(History):
    """Each command of a random log in an entry of its own."""

    def step(self, command: Any) -> tuple[Stamp, Any]:
        if not is_dataclass(command):
            command = Tick()
        self.now_ms += self.random.choice([0, 0, 1, 5, 20, 60, -30])
        self.index += 1
        stamp = Stamp(self.index, 1, self.now_ms)
        # As it is read from a log.
        (command,) = decode_entry(encode_entry(self.now_ms, [command])).commands
        reply = self.machine.apply(stamp, command).reply
        if isinstance(command, Enqueue):
            self.numbered(command, reply)  # type: ignore[arg-type]
        return stamp, command


@dataclass
class Place:
    """Of one message."""

    place: str  # ready | held | dead
    consumer: int | None = None
    token: int | None = None
    returns: int = 0
    failed: int = 0


@dataclass
class Twin:
    """The queues as the rows tell of them, message by message."""

    queues: dict[int, dict[int, Place]] = field(default_factory=dict[int, dict[int, Place]])
    active: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    consumers: dict[int, set[int]] = field(default_factory=dict[int, "set[int]"])

    def read(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.one(Event._make(row))

    def one(self, event: Event) -> None:
        queue = event.queue
        if event.event in ("duplicate", "refused") or queue is None:
            return
        if event.event == "queue_deleted":
            assert not any(p.place != "dead" for p in self.queues.pop(queue, {}).values())
            assert not self.consumers.pop(queue, set())
            self.active.pop(queue, None)
            return
        if event.event == "active":
            self.active[queue] = event.consumer
        elif event.event == "subscribed":
            assert event.consumer is not None
            self.consumers.setdefault(queue, set()).add(event.consumer)
        elif event.event == "consumer_ended":
            assert event.consumer is not None
            self.consumers[queue].remove(event.consumer)
        elif event.first is not None and event.last is not None:
            for position in range(event.first, event.last + 1):
                self.message(event, self.queues.setdefault(queue, {}), position)

    def message(self, event: Event, places: dict[int, Place], position: int) -> None:
        match event.event:
            case "published" | "letter":
                assert position not in places
                places[position] = Place("ready")
            case "known":
                assert position not in places
                where = "dead" if event.reason else "ready" if event.consumer is None else "held"
                counts = event.acquired or 0, event.failed or 0
                places[position] = Place(where, event.consumer, event.token, *counts)
            case "delivered" | "got":
                before = places[position]
                assert before.place == "ready"
                assert (event.acquired, event.failed) == (before.returns, before.failed)
                assert event.token is not None
                assert before.token is None or before.token < event.token
                before.place, before.consumer, before.token = "held", event.consumer, event.token
            case "settled":
                assert places[position].place == "held"
                assert places.pop(position).consumer == event.consumer
            case "returned":
                held = places[position]
                assert (held.place, held.consumer) == ("held", event.consumer)
                held.place, held.consumer = "ready", None
                held.returns += event.reason != "unsent"
                held.failed += event.failed or 0
            case "died":
                assert places[position].place != "dead"
                places[position].place = "dead"
                if not event.goes:
                    del places[position]
            case "moved":
                assert places.pop(position).place == "dead"
            case "purged" | "withdrawn":
                assert places.pop(position).place == "ready"
            case "deleted":
                del places[position]
            case _:
                raise AssertionError(event)


def assert_same(twin: Twin, machine: QueueMachine) -> None:
    for queue in machine.queues():
        places = twin.queues.get(queue, {})
        told = {at: each for at, each in places.items() if each.place != "dead"}
        rows = machine.browse(queue, 1, 1 << 30)
        assert sorted(told) == [row.position for row in rows]
        for row in rows:
            place = told[row.position]
            assert place.consumer == row.consumer
            if row.consumer is not None:
                assert place.token == row.chunk.token
            assert (place.returns, place.failed) == (
                row.chunk.acquired_count,
                row.chunk.delivery_count,
            )
        view = machine.queue(queue)
        assert view is not None
        dead = sum(each.place == "dead" for each in places.values())
        assert dead >= view.dead_letter_count  # some were taken by a queue of this group
        if view.config.single_active_consumer:
            active = [c.key for c in view.consumers if c.status in ("up", "quiescing")]
            assert twin.active.get(queue) in (active or [None, twin.active.get(queue)])
        registered = {c.key for c in view.consumers if c.status not in ("cancelled", "get")}
        assert twin.consumers.get(queue, set()) == registered


def command_bytes(now_ms: int, *commands: Any) -> bytes:
    return REGULAR + encode_entry(now_ms, commands)


@pytest.mark.parametrize("seed", range(12))
def test_the_rows_of_a_log_add_up_to_the_state_of_its_machine(seed: int):
    history, life, twin = Entries(seed), GroupReplay(G), Twin()
    middle: Snapshot | None = None
    later: list[Row] = []
    entries: list[tuple[int, int, bytes]] = []

    for stamp, command in history.steps(STEPS):
        entries.append((stamp.index, stamp.term, command_bytes(stamp.now_ms, command)))
        life.apply(*entries[-1])
        rows = life.take_rows()
        assert [row[1:3] for row in rows] == [(stamp.index, 1)] * len(rows)
        assert [row[4] for row in rows] == list(range(len(rows)))
        twin.read(rows)
        if stamp.index % 20 == 0:
            assert_same(twin, history.machine)
        if stamp.index == STEPS // 2:
            middle = Snapshot(stamp.index, 1, b"", life.machine.snapshot(), [])
        elif middle is not None:
            later += rows

    assert_same(twin, history.machine)
    assert life.digest() == history.machine.digest()
    assert middle is not None
    again, twin_again = GroupReplay.after(G, middle), Twin()
    twin_again.read(again.known())
    for view in map(again.machine.queue, again.machine.queues()):  # type: ignore[union-attr]
        up = {c.key for c in view.consumers if c.status not in ("cancelled", "get")}
        twin_again.consumers[view.id] = up
    for entry in entries[middle.index - 1 :]:
        again.apply(*entry)
    rows = again.take_rows()
    assert [row[:4] + row[5:] for row in rows] == [row[:4] + row[5:] for row in later]
    twin_again.read(rows)
    assert_same(twin_again, history.machine)


def test_a_lifecycle_of_the_catalog_has_a_digest_and_no_rows():
    life = GroupReplay(CATALOG_GROUP)
    before = life.digest()
    life.apply(2, 1, NO_OP)
    life.apply(3, 1, command_bytes(1, Tick()))

    assert (life.index, life.commands, life.take_rows()) == (3, 1, [])
    assert list(life.known()) == []
    assert len(before) == 16


# --- what a row says ------------------------------------------------------------------------------


class Script:
    """Commands, one an entry unless they are given together; what each entry led to, in short."""

    def __init__(self, config: QueueConfig | None = None) -> None:
        self.life = GroupReplay(G)
        self.index = 1
        self.do(CreateQueue(Q, "/", "q", config or QueueConfig()))
        self.do(CreateQueue(LETTERS, "/", "letters", QueueConfig(delivery_limit=None)))
        self.do(OpenSession(S, N, 1))

    def do(self, *commands: Any, at_ms: int = 1_000) -> list[str]:
        self.index += 1
        self.life.apply(self.index, 7, command_bytes(at_ms, *commands))
        return [short(Event._make(row)) for row in self.life.take_rows()]

    def subscribe(self, *, queue: QueueId = Q, session: str = "s", **more: Any) -> ConsumerKey:
        self.do(Subscribe(queue, SessionId(session), "t", **more))
        return ConsumerKey(self.index << 16)


def short(event: Event) -> str:
    """`published q:1-2 5+0 p:7`: event, queue and positions, entry and offset, the rest."""
    words = [event.event, f"{event.name}:{event.first}-{event.last}"]
    if event.first is None:
        words[1] = str(event.name)
    if event.entry is not None:
        words.append(f"{event.entry}+{event.entry_offset}")
    if event.publisher is not None:
        words.append(f"{event.publisher}:{event.seqno}")
    if event.consumer is not None:
        words.append(f"to {event.consumer >> 16} of {event.session}")
    if event.acquired is not None:
        words.append(f"acquired {event.acquired}")
    if event.failed:
        words.append(f"failed {event.failed}")
    if event.reason is not None:
        words.append(event.reason)
    if event.goes is not None:
        words.append("goes" if event.goes else "ends")
    return " ".join(words)


def test_a_message_is_published_delivered_returned_and_settled():
    script = Script()
    key = script.subscribe(credit=10)

    assert script.do(Enqueue(Q, "p", 1, [b"a", b"b"]), Enqueue(Q, "p", 3, [b"c"])) == [
        "published q:1-2 6+0 p:1",
        "delivered q:1-2 6+0 to 5 of s acquired 0",
        "published q:3-3 6+2 p:3",
        "delivered q:3-3 6+2 to 5 of s acquired 0",
    ]
    assert script.do(Settle(Q, key, [(2, 2)]), Return(Q, key, [(1, 1)], failed=True)) == [
        "settled q:2-2 to 5 of s",
        "returned q:1-1 to 5 of s failed 1 asked",
        "delivered q:1-1 6+0 to 5 of s acquired 1 failed 1",
    ]
    assert script.do(CloseSession(S)) == [
        "consumer_ended q to 5 of s closed",
        "returned q:1-1 to 5 of s ended",
        "returned q:3-3 to 5 of s ended",
    ]


def test_what_is_not_stored_is_told_by_its_numbers():
    script = Script(QueueConfig(max_length=2, overflow="reject-publish", dedup_window_ms=1_000_000))
    attrs = [None, {ATTR_DEDUP_ID: "x"}, {ATTR_DEDUP_ID: "x"}, None]

    assert script.do(Enqueue(Q, "p", 1, [b"a", b"b", b"c", b"d"], None, attrs)) == [
        "published q:1-1 5+0 p:1",
        "published q:2-2 5+1 p:2",
        "refused q:4-4 5+3 p:4 queue_full",
        "duplicate q:3-3 5+2 p:3",
    ]
    assert script.do(Enqueue(Q, "p", 2, [b"b", b"c", b"d", b"e"])) == [
        "refused q:4-5 6+2 p:4 queue_full",
        "duplicate q:2-3 6+0 p:2",
    ]
    assert script.do(Enqueue(Q, "p", 9, [b"x"])) == ["refused q:9-9 7+0 p:9 out_of_sequence"]
    assert script.do(Enqueue(QueueId(9), None, 0, [b"x", b"y"])) == [
        "refused None:1-2 8+0 no_queue"
    ]
    assert script.do(Enqueue(Q, "p", 0, [])) == []  # it only asked


def test_a_transaction_tells_of_its_steps_and_a_refused_one_of_its_messages():
    script = Script(QueueConfig(max_length=3, overflow="reject-publish"))
    enqueues = [Enqueue(Q, None, 0, [b"a", b"b"]), Enqueue(LETTERS, None, 0, [b"c"])]

    assert script.do(Tick(), Transaction(N, 1, 1, 1, enqueues)) == [
        "published q:1-2 5+0",
        "published letters:1-1 5+2",
    ]
    assert script.do(Transaction(N, 1, 2, 1, enqueues)) == [
        "refused q:1-2 6+0 queue_full",
        "refused letters:1-1 6+2 queue_full",
    ]
    assert script.do(TransactionPart(GroupId(9), 1, 1, enqueues)) == [
        "published q:3-4 7+0",  # decided elsewhere: no limit any more
        "published letters:2-2 7+2",
    ]


def test_the_dead_go_to_a_queue_of_the_group_on_their_way_or_nowhere():
    script = Script(QueueConfig(dead_letter_queue=LETTERS, dead_letter_exchange="x"))
    key = script.subscribe(credit=1)
    script.do(Enqueue(Q, None, 0, [b"a", b"b"]))

    assert script.do(Discard(Q, key, [(1, 1)])) == [
        "died q:1-1 rejected goes",
        "letter letters:1-1 6+0 rejected",
        "delivered q:2-2 6+1 to 5 of s acquired 0",
    ]
    assert script.do(DeleteQueue(LETTERS)) == ["deleted letters:1-1", "queue_deleted letters"]
    assert script.do(Discard(Q, key, [(2, 2)])) == ["died q:2-2 rejected goes"]
    nowhere = Script(QueueConfig(message_ttl_ms=10))
    nowhere.do(Enqueue(Q, None, 0, [b"a"]))
    assert nowhere.do(Tick(), at_ms=2_000) == ["died q:1-1 expired ends"]


def test_gets_purges_and_deliveries_that_settle_by_themselves():
    script = Script()
    script.do(Enqueue(Q, None, 0, [b"a", b"b", b"c", b"d"]))

    assert script.do(Get(Q, S, 1)) == ["got q:1-1 5+0 to 6 of s acquired 0"]
    assert script.do(Get(Q, S, 1, auto_settle=True)) == [
        "got q:2-2 5+1 to 7 of s acquired 0",
        "settled q:2-2 to 7 of s auto",
    ]
    assert script.do(Purge(Q)) == ["purged q:3-4"]
    key = script.subscribe(auto_settle=True)
    assert script.do(Enqueue(Q, None, 0, [b"e"])) == [
        "published q:5-5 10+0",
        "delivered q:5-5 10+0 to 9 of s acquired 0",
        "settled q:5-5 to 9 of s auto",
    ]
    assert script.do(Cancel(Q, key), SetCredit(Q, key, 1)) == [
        "consumer_ended q to 9 of s cancelled"
    ]
    assert script.do(DeleteQueue(Q)) == ["deleted q:1-1", "queue_deleted q"]


def test_the_active_consumer_hands_over():
    script = Script(QueueConfig(single_active_consumer=True))
    script.do(OpenSession(SessionId("t"), NodeId("n2"), 1))
    assert script.do(Subscribe(Q, S, "t", credit=5)) == [
        "subscribed q to 6 of s",
        "active q to 6 of s",
    ]
    script.subscribe(session="t", credit=5)

    lost = script.do(NodeDown(N, 1, gone=True))

    assert lost == ["consumer_ended q to 6 of s node_gone", "active q to 7 of t"]
    known = [short(Event._make(row)) for row in script.life.known()]
    assert known == ["active q to 7 of t"]


def test_what_is_no_next_entry_ends_the_replay_and_says_why():
    life = GroupReplay(G)
    life.apply(2, 1, NO_OP)

    with pytest.raises(ReplayFailed, match="entry 3 is missing"):
        life.apply(4, 1, NO_OP)
    with pytest.raises(ReplayFailed, match="entry 3 is no entry"):
        life.apply(3, 1, REGULAR + b"\xff")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        encode([1]),
        encode([1, 0, [[], [], []], [[1, "/", "q", {"of a later release": 1}, []]]]),
        SNAPSHOT_MAGIC + b"\0\0",
        SNAPSHOT_MAGIC + b"\0\0\0\1\x01",
    ],
    ids=["no CBOR", "cut short", "an unknown setting", "no length", "no members"],
)
def test_a_state_that_this_release_cannot_restore_is_refused_whatever_is_in_it(data: bytes):
    with pytest.raises(UnsupportedSnapshot, match=r"\S"):
        GroupReplay.after(G, Snapshot(20, 1, bytes(16), data, []))


def test_histories_reach_every_kind_of_row():
    life, kinds = GroupReplay(G), Counter[str]()
    for stamp, command in Entries(2).steps(3_000):
        life.apply(stamp.index, 1, command_bytes(stamp.now_ms, command))
        kinds.update(row[6] for row in life.take_rows())

    assert set(kinds) == {
        *("published", "letter", "duplicate", "refused", "delivered", "got", "settled"),
        *("returned", "died", "moved", "purged", "withdrawn", "deleted", "active"),
        *("subscribed", "consumer_ended", "queue_created", "queue_deleted"),
    }


# --- commands at which the machine raises ---------------------------------------------------------


def _with_purges(*, applied: bool) -> tuple[list[tuple[int, int, bytes]], Any]:
    """Entries with purges in them, and a machine that has done all of it, but for these."""
    machine, entries = QueueMachine(), list[tuple[int, int, bytes]]()
    given = [
        [CreateQueue(Q, "/", "q", QueueConfig())],
        [Enqueue(Q, None, 0, [b"a", b"b"]), Purge(Q), Enqueue(Q, None, 0, [b"c"])],
        [Purge(Q), Tick()],
        [Enqueue(Q, None, 0, [b"d"])],
    ]
    for index, commands in enumerate(given, start=2):
        entries.append((index, 1, command_bytes(index, *commands)))
        for stamp, each in stamped(*entries[-1]):
            if applied or not isinstance(each, Purge):
                machine.apply(stamp, each)
    return entries, machine


def test_a_command_at_which_the_machine_raises_is_left_out_as_nodes_do(
    monkeypatch: pytest.MonkeyPatch,
):
    entries, machine = _with_purges(applied=False)
    honest = Disposal.purge

    def half_done(*arguments: Any) -> Any:
        honest(*arguments)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Disposal, "purge", half_done)
    life, rows = GroupReplay(G), list[Event]()
    for entry in entries:
        life.apply(*entry)
        rows += [Event(*row) for row in life.take_rows()]

    assert life.skipped == [(3, 1), (4, 0)]
    assert life.digest() == machine.digest()
    told = [(row.index, row.ordinal, row.event) for row in rows if row.first is not None]
    assert told == [(3, 0, "published"), (3, 2, "published"), (5, 0, "published")]

    monkeypatch.setattr("cluster.history.group_replay.KEPT_BYTES_MAX", 10)
    again = GroupReplay(G)
    again.apply(*entries[0])
    with pytest.raises(ReplayFailed, match="entry 3: RuntimeError: a bug; too much was replayed"):
        again.apply(*entries[1])


def test_without_a_bug_nothing_is_left_out():
    entries, machine = _with_purges(applied=True)
    life = GroupReplay(G)
    for entry in entries:
        life.apply(*entry)

    assert life.skipped == []
    assert life.digest() == machine.digest()
