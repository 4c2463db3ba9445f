"""The history of one message, out of folders as nodes leave them, also while they write to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.history.committed import GroupLog, Vanished
from cluster.history.message_events import EVENTS_KEPT_MAX, Wanted
from cluster.history.message_history import SEGMENTS_FIRST, NoHistory, history, queue_of
from cluster.log import cleaner
from cluster.machine.commands import (
    CloseSession,
    Command,
    CreateQueue,
    DeleteQueue,
    Discard,
    Enqueue,
    Get,
    OpenSession,
    Purge,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
    UpgradeMachine,
    Withdraw,
)
from cluster.types import ConsumerKey, GroupId, MessageId, NodeId, QueueId, SessionId
from tests.postmortem.builder import Built, flip

ORDERS, LETTERS, OTHER = QueueId(7), QueueId(8), QueueId(9)
SESSION = SessionId("s")
GROUP = GroupId(1)


@pytest.fixture(autouse=True)
def _cleans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one small segment that there is."""
    monkeypatch.setattr(cleaner, "SPARSE_SEGMENTS_MAX", 0)


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Built]:
    """A queue whose dead letters go to another one, and a session."""
    with Built(tmp_path) as cluster:
        cluster.elect(GROUP, "n1")
        cluster.propose(GROUP, CreateQueue(LETTERS, "/", "letters", QueueConfig()))
        config = QueueConfig(dead_letter_exchange="", dead_letter_queue=LETTERS, delivery_limit=1)
        cluster.propose(GROUP, CreateQueue(ORDERS, "/", "orders", config))
        cluster.propose(GROUP, CreateQueue(OTHER, "/", "other", QueueConfig()))
        open_session(cluster)
        yield cluster


def open_session(cluster: Built) -> None:
    cluster.propose(GROUP, OpenSession(SESSION, NodeId("n1"), 1))


def publish(cluster: Built, *bodies: bytes, queue: QueueId = ORDERS) -> MessageId:
    """The id of the first one."""
    enqueue = Enqueue(queue, None, 0, bodies or (b"body",))
    return MessageId(GROUP, cluster.propose(GROUP, enqueue), 0)


def subscribe(cluster: Built, queue: QueueId = ORDERS, *, credit: int = 0) -> ConsumerKey:
    command = Subscribe(queue, SESSION, f"tag-{queue}", credit)
    return ConsumerKey(cluster.propose(GROUP, command) << 16)


def folder(cluster: Built, node: str = "n1") -> str:
    return str(cluster.nodes[node].folder / "log")


def told(cluster: Built, message: MessageId | Wanted, node: str = "n1") -> dict[str, Any]:
    wanted = Wanted.of(message) if isinstance(message, MessageId) else message
    return history([folder(cluster, node)], wanted)


def words(found: dict[str, Any]) -> list[str]:
    """Each event in a few words."""
    lines: list[str] = []
    for event in found["events"]:
        line = event["event"]
        line += " again" if event.get("redelivered") else ""
        line += f" in {event['queue']}" if event["queue"] != "orders" else ""
        lines.append(line + (f": {event['reason']}" if "reason" in event else ""))
    return lines


# --- what is told ---------------------------------------------------------------------------------


def test_a_message_is_followed_from_its_publish_to_its_end_on_every_node(built: Built):
    publish(built)
    message = publish(built, b"a", b"b")._replace(offset=1)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 2)]))
    built.propose(GROUP, Return(ORDERS, key, [(3, 3)]))
    built.propose(GROUP, Settle(ORDERS, key, [(3, 3)]))
    publish(built)

    found = told(built, message)

    assert words(found) == [
        "published",
        "delivered",
        "returned: asked",
        "delivered again",
        "settled",
    ]
    assert found["message"] == str(message)
    assert found["now"] == {"vhost": "/", "queue": "orders", "position": 3, "state": "settled"}
    assert (found["read"]["whole"], found["left_out"]) == (True, 0)
    published, first, _, second, _ = found["events"]
    assert published["entry"] == message.entry
    assert published["written_ms"] <= published["committed_ms"]
    assert (first["consumer"], first["session"]) == (key, SESSION)
    assert first["token"] < second["token"]
    for other in ("n2", "n3"):
        again = told(built, message, other)
        for event in again["events"] + found["events"]:
            event.pop("written_ms", None)
            event.pop("committed_ms", None)
        assert (again["events"], again["now"]) == (found["events"], found["now"])


def test_a_dead_letter_is_followed_into_the_other_queue_of_the_group(built: Built):
    message = publish(built)
    key = subscribe(built)
    built.propose(GROUP, Discard(ORDERS, key, [(1, 1)]))

    assert words(told(built, message)) == [
        "published",
        "delivered",
        "died: rejected",
        "letter in letters: rejected",
    ]
    assert told(built, message)["now"] == {
        "vhost": "/",
        "queue": "letters",
        "position": 1,
        "state": "ready",
    }
    reader = subscribe(built, LETTERS)
    now = told(built, message)["now"]
    assert (now["queue"], now["state"], now["consumer"]) == ("letters", "unsettled", reader)


@pytest.mark.parametrize(
    ("commands", "expected", "state"),
    [
        ([Purge(OTHER)], ["purged in other"], "purged"),
        ([DeleteQueue(OTHER)], ["deleted in other"], "deleted"),
        (
            [UpgradeMachine(5), Withdraw(OTHER, [(1, 1)])],
            ["withdrawn in other"],
            "withdrawn",
        ),
        ([Get(OTHER, SESSION)], ["got in other"], "unsettled"),
        (
            [Get(OTHER, SESSION, auto_settle=True)],
            ["got in other", "settled in other: auto"],
            "settled",
        ),
        (
            [Get(OTHER, SESSION), CloseSession(SESSION)],
            ["got in other", "returned in other: ended"],
            "ready",
        ),
    ],
    ids=["purge", "delete", "withdraw", "get", "get and settle", "session ends"],
)
def test_every_end_is_told(built: Built, commands: list[Command], expected: list[str], state: str):
    message = publish(built, queue=OTHER)
    for command in commands:
        built.propose(GROUP, command)
    found = told(built, message)
    assert words(found) == ["published in other", *expected]
    assert found["now"]["state"] == state


def test_a_message_is_found_by_its_position_and_by_its_publishers_number(built: Built):
    publish(built)
    built.propose(GROUP, Enqueue(ORDERS, "shop", 1, (b"1", b"2", b"3")))
    built.propose(GROUP, Enqueue(ORDERS, "shop", 2, (b"2",)))
    built.propose(GROUP, Enqueue(ORDERS, "other", 1, (b"1", b"2")))

    by_number = told(built, Wanted(GROUP, queue=ORDERS, publisher="shop", seqno=2))
    by_position = told(built, Wanted(GROUP, queue=ORDERS, position=3))

    assert by_number == by_position
    assert words(by_number) == ["published", "duplicate"]
    assert by_number["events"][0]["seqno"] == 2
    message = MessageId.parse(by_number["message"])
    assert message is not None
    assert message.offset == 1
    assert told(built, message) == by_number


def test_of_very_many_events_the_first_and_the_last_are_told(built: Built):
    message = publish(built, queue=OTHER)
    key = subscribe(built, OTHER)
    for _ in range(EVENTS_KEPT_MAX + 50):
        built.propose(GROUP, Return(OTHER, key, [(1, 1)]))
    found = told(built, message)
    assert len(found["events"]) == 2 * EVENTS_KEPT_MAX
    assert found["left_out"] == 2 + 2 * (EVENTS_KEPT_MAX + 50) - 2 * EVENTS_KEPT_MAX
    assert words(found)[:2] == ["published in other", "delivered in other"]
    assert words(found)[-1] == "delivered again in other"


def test_what_was_never_stored_is_no_message(built: Built):
    message = publish(built)
    for wanted, reason in (
        (Wanted.of(message._replace(offset=1)), "no message with offset 1"),
        (Wanted.of(message._replace(entry=message.entry + 1)), "not committed"),
        (Wanted(GROUP, queue=ORDERS, position=2), "no such message up to entry"),
        (Wanted(GroupId(5), 3), "nothing of group 5"),
    ):
        with pytest.raises(NoHistory, match=reason) as none:
            told(built, wanted)
        assert none.value.code == "no_message"


def test_too_long_a_way_is_refused_before_it_is_gone(built: Built):
    message = publish(built)
    with pytest.raises(NoHistory) as none:
        history([folder(built)], Wanted.of(message), entries_max=3)
    assert none.value.code == "out_of_reach"


def test_the_queue_of_a_message_is_said_by_its_entry_alone(built: Built):
    message = publish(built, b"a", b"b")
    command = built.nodes["n1"].journal(GROUP).read(message.entry)
    assert command is not None
    assert [queue_of(command, offset) for offset in (0, 1, 2)] == [ORDERS, ORDERS, None]
    assert queue_of(b"\0nonsense", 0) is None


# --- how far a log goes back ----------------------------------------------------------------------


def snapshot_and_clean(cluster: Built, *nodes: str) -> int:
    index = cluster.snapshot(GROUP, *nodes)
    cluster.roll(*nodes)
    cluster.maintain(*nodes)
    return index


def test_reading_begins_at_the_newest_snapshot_that_is_older_than_the_message(built: Built):
    publish(built)
    built.snapshot(GROUP)
    publish(built)
    older = built.snapshot(GROUP)
    message = publish(built)
    newest = built.snapshot(GROUP)
    key = subscribe(built, credit=1)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))

    found = told(built, message)

    assert found["read"]["from"] == older < message.entry
    assert newest == message.entry
    assert (words(found), found["now"]["state"]) == (["published"], "ready")
    assert told(built, Wanted(GROUP, queue=ORDERS, position=3))["events"] == found["events"]


def test_where_the_log_begins_later_the_history_begins_with_how_it_was_found(built: Built):
    gone, held, waiting = publish(built), publish(built), publish(built)
    key = subscribe(built, credit=1)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    snapshot_and_clean(built)
    publish(built)
    base = snapshot_and_clean(built)
    publish(built)
    snapshot_and_clean(built)
    built.propose(GROUP, Settle(ORDERS, key, [(2, 2)]))

    found = told(built, held)

    assert words(found) == ["known", "settled"]
    assert found["read"]["from"] >= base
    assert not found["read"]["whole"]
    assert found["events"][0]["consumer"] == key
    assert words(told(built, waiting)) == ["known", "delivered"]
    with pytest.raises(NoHistory, match="by then it was gone"):
        told(built, gone)


def test_an_archive_goes_further_back_than_the_log(tmp_path: Path):
    with Built(tmp_path, archive=True) as cluster:
        cluster.elect(GROUP, "n1")
        cluster.propose(GROUP, CreateQueue(ORDERS, "/", "orders", QueueConfig()))
        open_session(cluster)
        message = publish(cluster)
        key = subscribe(cluster)
        cluster.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
        for _ in range(3):
            publish(cluster)
            snapshot_and_clean(cluster)
        with pytest.raises(NoHistory):
            told(cluster, message)
        folders = [folder(cluster), str(cluster.archive_folder / "n1")]
        found = history(folders, Wanted.of(message))
        assert words(found) == ["published", "delivered", "settled"]
        assert found["read"]["to"] == cluster.groups[GROUP].commit


def test_of_very_many_segments_only_as_many_are_looked_through_as_it_takes(
    built: Built, monkeypatch: pytest.MonkeyPatch
):
    old = publish(built)
    for number in range(SEGMENTS_FIRST * 4):
        built.roll()
        message = publish(built)
        if number % 8 == 0:
            built.snapshot(GROUP)
    looked_at: list[int] = []
    look = GroupLog._look

    def counted(log: GroupLog, folders: list[str], newest: int | None) -> None:
        look(log, folders, newest)
        looked_at.append(len(log._segments))

    monkeypatch.setattr(GroupLog, "_look", counted)
    assert words(told(built, message)) == ["published"]
    assert looked_at == [SEGMENTS_FIRST]
    found = told(built, old)
    assert (words(found), found["read"]["cut_short"]) == (["published"], False)
    assert looked_at[2] > SEGMENTS_FIRST * 4

    # Its snapshot holds it, and what was before there is no time for.
    short = history([folder(built)], Wanted.of(old), seconds_max=0)
    assert (words(short), short["read"]["cut_short"]) == (["known"], True)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    for _ in range(2):
        publish(built)
        built.snapshot(GROUP)
    with pytest.raises(NoHistory, match="there is no time") as none:
        history([folder(built)], Wanted.of(old), seconds_max=0)
    assert none.value.code == "out_of_reach"
    assert words(told(built, old)) == ["published", "delivered", "settled"]


def test_entries_that_the_cleaner_copied_are_read_where_they_are_now(built: Built):
    """Many restarts leave many small segments, which are merged: nothing of them is below a
    snapshot.
    """
    message = publish(built)
    for _ in range(12):
        built.roll()
        publish(built)
    built.maintain()
    assert len(list(Path(folder(built)).glob("*.log"))) < 5
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    found = told(built, message)
    assert words(found) == ["published", "delivered", "settled"]
    assert found["read"]["from"] == 1
    assert found["events"][0]["written_ms"] is None


# --- what must not be believed --------------------------------------------------------------------


def test_what_was_never_committed_is_not_told(built: Built):
    publish(built)
    lost = MessageId(
        GROUP, built.append(GROUP, Enqueue(ORDERS, None, 0, (b"lost",)), nodes=["n1"]), 0
    )
    built.kill("n1")
    built.elect(GROUP, "n2")
    with pytest.raises(NoHistory, match="not committed"):
        told(built, lost)
    kept = publish(built)
    assert kept.entry == lost.entry + 1  # behind the no-op of the new leader
    built.start("n1")
    assert words(told(built, kept)) == ["published"]
    with pytest.raises(NoHistory, match="no message with offset 0"):
        told(built, lost)


def test_what_a_snapshot_from_the_leader_took_the_place_of_is_not_told(built: Built):
    """Entries that were never committed stay in the log, below the snapshot and above it."""
    publish(built)
    enqueue = Enqueue(ORDERS, None, 0, (b"lost",))
    lost = [built.append(GROUP, enqueue, nodes=["n1"]) for _ in range(8)]
    built.kill("n1")
    built.elect(GROUP, "n2")
    kept = [publish(built) for _ in range(4)]
    base = snapshot_and_clean(built)
    assert lost[0] < base < lost[-1]
    built.start("n1")
    message = publish(built)
    found = told(built, message)
    assert (words(found), found["read"]["from"]) == (["published"], base)
    for index in lost:
        with pytest.raises(NoHistory):
            told(built, MessageId(GROUP, index, 1))
    assert words(told(built, kept[0])) == ["known"]


def test_half_a_record_at_the_end_is_not_there_yet(built: Built):
    message = publish(built)
    built.kill("n1", torn=9)
    found = told(built, message)
    assert (words(found), found["read"]["damage"]) == (["published"], [])


def test_what_follows_a_damaged_entry_is_not_made_up(built: Built):
    first, damaged = publish(built), publish(built)
    key = subscribe(built)
    built.propose(GROUP, Settle(ORDERS, key, [(1, 1)]))
    file, offset = built.where("n1", GROUP, damaged.entry)
    flip(file, offset + 70)

    found = told(built, first)

    assert found["read"]["damage"] == [f"{file}:{offset}"]
    assert found["read"]["to"] == damaged.entry - 1
    assert words(found) == ["published"]
    assert words(told(built, first, "n2"))[-1] == "settled"


def test_a_damaged_snapshot_is_left_out(built: Built):
    publish(built)
    index = built.snapshot(GROUP)
    message = publish(built)
    flip(f"{folder(built)}/snapshots/{GROUP}-{index}.snap", 90)
    found = told(built, message)
    assert (words(found), found["read"]["from"]) == (["published"], 1)
    assert found["read"]["damage"] == [f"{folder(built)}/snapshots/{GROUP}-{index}.snap:0"]


# --- while the node writes ------------------------------------------------------------------------


def test_a_folder_is_read_while_it_is_written_and_cleaned(built: Built):
    """Whatever is read is the beginning of the truth, and never less than was there before."""
    messages = [publish(built)]
    key = subscribe(built)
    done = threading.Event()
    failures: list[Exception] = []
    gone: list[str] = []

    def write() -> None:
        try:
            for number in range(1, 121):
                messages.append(publish(built))
                built.propose(GROUP, Settle(ORDERS, key, [(number, number)]))
                if number % 7 == 0:
                    snapshot_and_clean(built)
        except Exception as error:  # noqa: BLE001 -- it is raised where the writer is joined
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found_whole = 0
    try:
        while not done.is_set() or not found_whole:
            message = messages[-1]
            before = built.groups[GROUP].commit
            try:
                found = told(built, message)
            except NoHistory as none:  # it was settled, and two snapshots were taken since
                gone.append(none.reason)
                continue
            assert found["read"]["to"] >= before - 1  # a commit is noted a little later
            seen = words(found)
            first = ["published"] if found["read"]["whole"] else ["known"]
            assert seen[:1] == first
            assert seen[1:] == ["delivered", "settled"][: len(seen) - 1] or seen == [
                "known",
                "settled",
            ]
            found_whole += found["read"]["whole"]
    finally:
        writer.join()
    assert not failures
    assert all("by then it was gone" in reason for reason in gone)


def test_a_file_that_vanishes_while_it_is_needed_is_missed(built: Built):
    """The files of a log that is read stay open; those over the limit may be gone."""
    publish(built)
    log = GroupLog([folder(built)], GROUP)
    log.close()
    state = log.load(log.bases[0])
    assert state is not None
    for path in Path(folder(built)).glob("*.log"):
        path.unlink()
    with pytest.raises(Vanished):
        list(log.entries(state))
