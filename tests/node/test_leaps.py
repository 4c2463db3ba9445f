"""The history of a message that leaves entries out is that which leaves out none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.history import message_history
from cluster.history.committed import GroupLog
from cluster.history.event_rows import Event
from cluster.history.group_replay import GroupReplay
from cluster.history.message_events import Wanted
from cluster.history.message_history import NoHistory, history
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import (
    Cancel,
    CloseSession,
    Command,
    CreateQueue,
    DeadLettersMoved,
    DeleteQueue,
    DetachSession,
    Discard,
    Enqueue,
    HandedTo,
    OpenSession,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
    Transaction,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId
from tests.machine.histories import CONFIGS, History
from tests.postmortem.builder import Built, flip

GROUP = GroupId(1)
ORDERS, OTHER = QueueId(7), QueueId(8)
SESSION = SessionId("s")


@pytest.fixture(autouse=True)
def _looks_at_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_history, "ENTRIES_AT_ONCE", 1)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    """One node, which keeps all snapshots, and notes the heads of segments of any size."""
    with Built(tmp_path, nodes=1) as cluster:
        log = cluster.nodes["n1"].log
        log.store.kept = 1_000
        monkeypatch.setattr(log.wal, "_heads_bytes_min", 0)
        cluster.elect(GROUP, "n1")
        yield cluster


def folder(cluster: Built) -> str:
    return str(cluster.nodes["n1"].folder / "log")


def told(cluster: Built, wanted: Wanted, *, leaps: bool = True) -> dict[str, Any] | str:
    try:
        return history([folder(cluster)], wanted, leaps=leaps)
    except NoHistory as none:
        return none.reason


class Applied:
    """Counts entries that are applied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        apply = GroupReplay.apply

        def counted(replay: GroupReplay, *entry: Any) -> None:
            self.count += 1
            apply(replay, *entry)

        monkeypatch.setattr(GroupReplay, "apply", counted)


# --- what is left out, and what is not ------------------------------------------------------------


def lasting(cluster: Built) -> Wanted:
    """A message that others follow in its queue."""
    for version in range(2, MACHINE_VERSION + 1):
        cluster.propose(GROUP, UpgradeMachine(version))
    cluster.propose(GROUP, OpenSession(SESSION, NodeId("n1"), 1, resume_ms=60_000))
    cluster.propose(GROUP, CreateQueue(ORDERS, "/", "orders", QueueConfig()))
    cluster.propose(GROUP, CreateQueue(OTHER, "/", "other", QueueConfig()))
    index = cluster.propose(GROUP, Enqueue(ORDERS, "shop", 1, (b"a",)))
    cluster.propose(GROUP, Enqueue(ORDERS, "shop", 2, (b"b", b"c")))
    cluster.snapshot(GROUP)
    return Wanted(GROUP, index)


def go_on(cluster: Built, count: int = 40) -> None:
    """Others are published, and a snapshot comes and a segment goes."""
    for _ in range(count):
        cluster.propose(GROUP, Enqueue(OTHER, None, 0, (b"x",)))
    cluster.snapshot(GROUP)
    cluster.roll()


def subscribe(cluster: Built, credit: int = 1) -> ConsumerKey:
    command = Subscribe(ORDERS, SESSION, "tag", credit)
    return ConsumerKey(cluster.propose(GROUP, command) << 16)


def events(found: dict[str, Any] | str) -> list[str]:
    assert isinstance(found, dict), found
    return [each["event"] for each in found["events"]]


@pytest.fixture
def both(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Wanted], tuple[list[str], int]]:
    """The events, which are the same with leaps and without, and the entries applied with leaps."""

    def asked(wanted: Wanted) -> tuple[list[str], int]:
        with monkeypatch.context() as patch:
            applied = Applied(patch)
            found = told(built, wanted)
        assert found == told(built, wanted, leaps=False)
        return events(found), applied.count

    return asked


Both = Callable[[Wanted], tuple[list[str], int]]


def test_what_comes_behind_the_end_of_a_message_is_not_applied(built: Built, both: Both):
    wanted = lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    settled = built.groups[GROUP].commit
    go_on(built)
    found, applied = both(wanted)
    assert found == ["published", "delivered", "settled"]
    assert applied < settled


@pytest.mark.parametrize("held", [False, True], ids=["waiting", "held"])
def test_from_snapshot_to_snapshot_in_which_nothing_happened_is_one_leap(
    built: Built, both: Both, *, held: bool
):
    wanted = lasting(built)
    if held:
        subscribe(built)
    for _ in range(5):
        go_on(built)
    found, applied = both(wanted)
    assert found == ["published", "delivered"][: 1 + held]
    assert applied < 20


def test_a_message_that_a_client_saw_is_leapt_over_whatever_is_given_back(built: Built, both: Both):
    """If it were given back again, it would have been acquired once more."""
    wanted = lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Return(ORDERS, key, [(1, 1)], delay_ms=1_000_000))
    built.propose(GROUP, CloseSession(SESSION))
    built.snapshot(GROUP)
    built.propose(GROUP, OpenSession(SESSION, NodeId("n1"), 1))
    key = subscribe(built)
    built.propose(GROUP, CloseSession(SESSION, [HandedTo(ORDERS, key, 0, ())]))
    for _ in range(2):
        go_on(built)
    found, applied = both(wanted)
    assert found == ["published", "delivered", "returned"]
    assert applied < 20


def test_a_queue_that_gave_out_nothing_is_leapt_over_whatever_is_given_back_elsewhere(
    built: Built, both: Both
):
    wanted = lasting(built)
    key = ConsumerKey(built.propose(GROUP, Subscribe(OTHER, SESSION, "tag", 1)) << 16)
    for _ in range(30):
        built.propose(GROUP, Enqueue(OTHER, None, 0, (b"x",)))
    built.propose(GROUP, CloseSession(SESSION, [HandedTo(OTHER, key, 0, ())]))
    go_on(built)
    found, applied = both(wanted)
    assert found == ["published"]
    assert applied < 20


def test_what_was_sent_again_under_its_number_later_is_told(built: Built, both: Both):
    wanted = lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    go_on(built)
    built.propose(GROUP, Enqueue(OTHER, "shop", 1, (b"another",)))
    built.propose(GROUP, Enqueue(ORDERS, "shop", 2, (b"b",)))
    go_on(built)
    assert both(wanted)[0] == ["published", "delivered", "settled"]
    built.propose(GROUP, Enqueue(ORDERS, "shop", 1, (b"a", b"b")))
    go_on(built)
    assert both(wanted)[0] == ["published", "delivered", "settled", "duplicate"]
    waiting = Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=2)
    assert both(waiting)[0] == ["published", "delivered", "duplicate", "duplicate"]


@pytest.mark.parametrize("how", ["return", "transaction", "close", "detach"])
def test_what_was_given_back_unsent_between_two_snapshots_is_told(
    built: Built, both: Both, how: str
):
    """Nothing is left of it in the later one."""
    wanted = lasting(built)
    for _ in range(2):
        go_on(built, 3)
    key = subscribe(built)
    unsent = Return(ORDERS, key, [(1, 1)], unsent=True)
    handed = [HandedTo(ORDERS, key, 0, ())]
    if how in {"return", "transaction"}:
        built.propose(GROUP, Cancel(ORDERS, key))
    given_back: Command = {
        "return": unsent,
        "transaction": Transaction(NodeId("n1"), 1, 1, 1, [unsent]),
        "close": CloseSession(SESSION, handed),
        "detach": DetachSession(SESSION, NodeId("n1"), 1, handed),
    }[how]
    built.propose(GROUP, given_back)
    if how == "detach":
        built.wait(61)
    go_on(built)
    found = told(built, wanted)
    assert isinstance(found, dict)
    assert found["events"][-1]["reason"] == "unsent"
    by_number = Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=1)
    for each in (wanted, by_number):
        assert both(each)[0] == ["published", "delivered", "returned"]


@pytest.mark.parametrize("unsent", [False, True])
def test_a_message_that_came_back_under_another_token_is_told(
    built: Built, both: Both, *, unsent: bool
):
    wanted = lasting(built)
    key = subscribe(built)
    go_on(built)
    built.propose(GROUP, Return(ORDERS, key, [(1, 1)], unsent=unsent))
    go_on(built)
    assert both(wanted)[0] == ["published", "delivered", "returned", "delivered"]


def test_a_message_on_its_way_as_a_dead_letter_is_followed(built: Built, both: Both):
    wanted = lasting(built)
    built.propose(GROUP, UpdateQueue(ORDERS, QueueConfig(dead_letter_exchange="far")))
    key = subscribe(built)
    built.propose(GROUP, Discard(ORDERS, key, [(1, 1)]))
    go_on(built)
    assert both(wanted)[0] == ["published", "delivered", "died"]
    letter = built.groups[GROUP].machine
    assert isinstance(letter, QueueMachine)
    built.propose(GROUP, DeadLettersMoved(ORDERS, letter.dead_letters(ORDERS, 1)[0].number))
    go_on(built)
    assert both(wanted)[0] == ["published", "delivered", "died", "moved"]


def replace_queue(cluster: Built) -> None:
    """By another under its id, as a catalog may that was lost with a majority."""
    cluster.propose(GROUP, DeleteQueue(ORDERS))
    cluster.propose(GROUP, CreateQueue(ORDERS, "/", "orders", QueueConfig()))


def test_a_message_ends_with_its_queue_whatever_queue_has_its_id_later(built: Built, both: Both):
    wanted = lasting(built)
    replace_queue(built)
    for _ in range(2):
        built.propose(GROUP, Enqueue(ORDERS, "shop", 1, (b"another",)))
    subscribe(built)
    assert both(wanted)[0] == ["published", "deleted"]
    found = told(built, wanted)
    assert isinstance(found, dict)
    assert found["now"] == {"vhost": "/", "queue": "orders", "position": 1, "state": "deleted"}
    by_number = Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=1)
    assert both(by_number)[0] == ["published", "duplicate", "delivered"]


def test_a_position_is_that_of_the_queue_that_was_created_last(built: Built, both: Both):
    lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    built.snapshot(GROUP)
    replace_queue(built)
    built.propose(GROUP, Enqueue(ORDERS, None, 0, (b"another",)))
    assert both(Wanted(GROUP, queue=ORDERS, position=1))[0] == ["published"]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("snapshots", [False, True])
def test_of_two_messages_that_had_a_place_the_later_one_is_told(
    built: Built, both: Both, settled: bool, snapshots: bool
):
    """The first was there, or gone, where the log is followed from."""
    lasting(built)
    by_position = Wanted(GROUP, queue=ORDERS, position=1)
    by_number = Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=1)
    key = subscribe(built)
    if settled:
        built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    if snapshots:
        go_on(built)
    replace_queue(built)
    built.propose(GROUP, Enqueue(ORDERS, "shop", 1, (b"another",)))
    subscribe(built)
    go_on(built, 5)
    for wanted in (by_position, by_number):
        found = told(built, wanted)
        assert isinstance(found, dict)
        assert both(wanted)[0] == ["published", "delivered"]
        assert found["now"]["state"] == "unsettled"
    # The other queue never had so many.
    assert both(Wanted(GROUP, queue=ORDERS, position=3))[0][-1] == "deleted"


def test_a_dead_letter_that_came_back_to_the_same_position_of_another_queue_is_followed(
    built: Built, both: Both
):
    wanted = lasting(built)
    to_other = QueueConfig(dead_letter_queue=OTHER, dead_letter_exchange="")
    to_orders = QueueConfig(dead_letter_queue=ORDERS, dead_letter_exchange="")
    built.propose(GROUP, UpdateQueue(ORDERS, to_other))
    built.propose(GROUP, UpdateQueue(OTHER, to_orders))
    key = subscribe(built)
    built.propose(GROUP, Discard(ORDERS, key, [(1, 1)]))
    replace_queue(built)
    key = ConsumerKey(built.propose(GROUP, Subscribe(OTHER, SESSION, "tag", 1)) << 16)
    built.propose(GROUP, Discard(OTHER, key, [(1, 1)]))
    go_on(built)
    found = ["published", "delivered", "died", "letter", "delivered", "died", "letter"]
    assert both(wanted)[0] == found
    assert both(Wanted(GROUP, queue=ORDERS, position=1))[0] == found


def test_snapshots_that_are_younger_than_the_message_are_not_followed(built: Built, both: Both):
    lasting(built)
    for _ in range(4):
        go_on(built)
    for wanted in (
        Wanted(GROUP, queue=ORDERS, position=1),
        Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=1),
    ):
        found, applied = both(wanted)
        assert found == ["published"]
        assert applied < 20


def test_of_an_old_message_the_newest_segments_are_not_followed_first(
    built: Built, both: Both, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(message_history, "SEGMENTS_FIRST", 1)
    by_id = lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    for _ in range(4):
        go_on(built)
    built.propose(GROUP, Enqueue(OTHER, None, 0, (b"x",)))
    for wanted in (by_id, Wanted(GROUP, queue=ORDERS, position=1)):
        found, applied = both(wanted)
        assert found == ["published", "delivered", "settled"]
        assert applied < 20


def test_damage_that_the_heads_do_not_show_is_told_all_the_same(built: Built, both: Both):
    wanted = lasting(built)
    key = subscribe(built)
    damaged = built.propose(GROUP, Enqueue(OTHER, None, 0, (b"x" * 200,)))
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    built.roll()
    for _ in range(2):
        publish = Enqueue(OTHER, None, 0, (b"x",))
        built.propose(GROUP, publish)
    file, offset = built.where("n1", GROUP, damaged)
    flip(file, offset + 150)
    assert both(wanted)[0] == ["known", "delivered"]
    found = told(built, wanted)
    assert isinstance(found, dict)
    assert (found["read"]["to"], found["read"]["damage"]) == (damaged - 1, [f"{file}:{offset}"])


def test_damage_in_entries_that_are_only_looked_through_is_found(built: Built, both: Both):
    wanted = lasting(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    damaged = built.propose(GROUP, Enqueue(OTHER, "shop", 1, (b"x" * 200,)))
    built.roll()
    built.propose(GROUP, Enqueue(OTHER, None, 0, (b"x",)))
    file, offset = built.where("n1", GROUP, damaged)
    flip(file, offset + 150)
    found = told(built, wanted)
    assert both(wanted)[0] == ["known", "delivered", "settled"]
    assert isinstance(found, dict)
    assert found["read"]["damage"] == [f"{file}:{offset}"]


# --- generated histories --------------------------------------------------------------------------


def live(cluster: Built, seed: int, count: int) -> None:
    """A log that uses everything the machine can do, with snapshots and segments in between."""
    machine = cluster.groups[GROUP].machine
    assert isinstance(machine, QueueMachine)
    drawn = History(seed)
    drawn.machine = machine
    draw = random.Random(seed)
    upgrades = {draw.randrange(count // 2): v for v in range(2, MACHINE_VERSION + 1)}
    for queue, config in CONFIGS.items():
        cluster.propose(GROUP, CreateQueue(QueueId(queue), "/", f"q{queue}", config))
    for number in range(count):
        if number in upgrades:
            for version in range(machine.version + 1, upgrades[number] + 1):
                cluster.propose(GROUP, UpgradeMachine(version))
        drawn.now_ms = cluster.nodes["n1"].clock.wall_ms()
        drawn.index = cluster.groups[GROUP].commit
        commands = [each for each in (drawn.command(), drawn.command()) if each != "no command"]
        commands = commands[: draw.choice([1, 1, 2])]
        if draw.random() < 0.04:  # another queue under its id
            queue = QueueId(draw.choice([*CONFIGS]))
            again = CreateQueue(queue, "/", f"q{queue}", CONFIGS[queue])
            commands = [DeleteQueue(queue), again]
        if not commands:
            continue
        cluster.propose(GROUP, *commands)
        for command, reply in zip(commands, cluster.replies, strict=True):
            drawn.answered(command, reply)
        cluster.time.passes(draw.choice([0, 1, 5, 20, 60]) * 1_000_000)
        if draw.random() < 0.08:
            cluster.snapshot(GROUP)
        if draw.random() < 0.04:
            cluster.roll()


def all_wanted(cluster: Built) -> list[Wanted]:
    """Each message by its id, position and number."""
    log = GroupLog([folder(cluster)], GROUP)
    state = log.load(log.bases[0])
    assert state is not None
    replay = GroupReplay.begin(GROUP, state.snapshot)
    found: list[Wanted] = []
    for entry in log.entries(state):
        replay.apply(*entry)
    for row in replay.take_rows():
        event = Event._make(row)._asdict()
        queue, first, last = event["queue"], event["first"], event["last"]
        if event["event"] == "published":
            for place in {0, last - first}:
                offset = event["entry_offset"] + place
                found.append(Wanted(GROUP, event["entry"], offset))
                found.append(Wanted(GROUP, queue=queue, position=first + place))
        if event["publisher"] and event["seqno"]:
            name, seqno = event["publisher"], event["seqno"]
            found.append(Wanted(GROUP, queue=queue, publisher=name, seqno=seqno))
    log.close()
    return found


@pytest.mark.parametrize("seed", range(5))
def test_of_generated_logs_the_same_is_told_with_leaps_and_without(
    built: Built, seed: int, monkeypatch: pytest.MonkeyPatch
):
    live(built, seed, 150)
    wanted = all_wanted(built)
    applied = Applied(monkeypatch)
    by_leaps = by_folding = 0
    for each in random.Random(seed).sample(wanted, min(len(wanted), 16)):
        applied.count = 0
        found = told(built, each)
        by_leaps += applied.count
        applied.count = 0
        assert found == told(built, each, leaps=False), each
        by_folding += applied.count
    assert by_leaps < 0.8 * by_folding
