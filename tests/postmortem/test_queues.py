"""Tables of queues and their messages, and what is found in them, out of events written by hand."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Any

import pytest

from chaos.postmortem.limits import Limits
from tests.postmortem.queue_events import START_MS, Told, filled, findings_of, rows_of

pytestmark = pytest.mark.spark

MINUTE = 60_000
HALF_HOUR = 1_800_000
LIMITS = Limits()


def plain() -> Told:
    """Three messages of one entry: settled, settled later, never."""
    told = Told(1, "plain").entry(2).published(1, 3, publisher="pub", seqno=5)
    told.delivered(1, 3, entry=2).entry(3, 400).settled(1).entry(4, 1_000).settled(2)
    return told


def returned() -> Told:
    told = Told(2, "returned").entry(2).published(1, entry_offset=4).delivered(1)
    told.entry(3, 2_000).returned(1, failed=1).delivered(1, acquired=1, failed=1, by=8)
    return told.entry(4, 2_500).settled(1, by=8)


def settled_again() -> Told:
    """In the very command that settled it."""
    told = Told(3, "again").entry(2).published(1, 4).delivered(1, 4)
    return told.entry(9, 70).settled(1, 4).delivered(3, acquired=1)


def settled_by_delivery() -> Told:
    told = Told(4, "auto").entry(2).published(1, 2).entry(3, 5)
    return told.delivered(1, 2).settled(1, 2, reason="auto")


def unflagged() -> Told:
    told = Told(5, "unflagged").entry(2).published(1, 2).delivered(1, 2)
    return told.entry(6, 10).returned(2).entry(7, 20).delivered(2).entry(8, 30).settled(1, 2)


def known(name: str, queue: int, **more: Any) -> Told:
    """Delivered as for the first time, after what the snapshot says."""
    told = Told(queue, name).add("known", 10, 11, entry=3, entry_offset=1, failed=0, **more)
    if more.get("consumer"):
        told.entry(2).returned(10, 11)
    return told.entry(5, 100).delivered(10, 11)


def letters() -> Told:
    """Where dead letters come from and what becomes of the rest."""
    told = Told(8, "letters").entry(2).published(1, 6)
    told.entry(3, 9).add("died", 1, reason="expired", goes=True)
    told.add("letter", 1, entry=2, entry_offset=0, queue=9, name="dead")
    told.entry(4, 10).add("died", 2, reason="maxlen", goes=True)
    told.entry(5, 20).add("moved", 2).add("purged", 3, 4)
    return told.entry(6, 30).add("deleted", 2).add("deleted", 5, 6).add("queue_deleted")


def wide() -> Told:
    """Positions of many buckets in one row."""
    return Told(10, "wide").entry(2).published(1, 10_000).entry(3, 50).add("purged", 4_000, 9_000)


def sac_handed_over() -> Told:
    """The active one is cancelled, and settles what it has while another is active."""
    told = Told(11, "sac fine", sac=True).entry(2).published(1, 3).active(7).delivered(1, 2)
    told.entry(3, 10).add("consumer_ended", consumer=7, session="s7", reason="cancelled")
    told.active(8).delivered(3, by=8).entry(4, 20).settled(1, 2).settled(3, by=8)
    return told.entry(5, 30).active(None)


def sac_not_active() -> Told:
    told = Told(12, "sac other", sac=True).entry(2).published(1, 2).active(7).delivered(1)
    told.entry(6, 10).delivered(2, by=8).entry(7, 20).settled(2, by=8).settled(1)
    return told


def sac_late() -> Told:
    """Another took over, though the one before still held something, and settles it."""
    told = Told(13, "sac late", sac=True).entry(2).published(1, 2).active(7).delivered(1)
    return told.entry(4, 10).active(8).delivered(2, by=8).entry(9, 20).settled(1)


def sac_token() -> Told:
    told = Told(14, "sac token", sac=True).entry(2).published(1, 2).active(7).delivered(1)
    return told.entry(3, 10).settled(1).entry(4, 10).active(8).delivered(2, by=8, token=2 << 16)


def sac_known() -> Told:
    """Who was active before is known from the snapshot."""
    told = Told(15, "sac known", sac=True).active(7)
    told.add("known", 1, 2, entry=1, entry_offset=0, acquired=0, failed=0)
    return told.entry(2).delivered(1).entry(3).settled(1)


def failing(name: str, queue: int, times: int) -> Told:
    told = Told(queue, name).entry(2).published(1).delivered(1)
    for nth in range(times):
        told.entry(3 + nth, 1_000 * nth).returned(1, failed=1)
        told.delivered(1, acquired=nth + 1, failed=nth + 1)
    return told.entry(50, 60_000).settled(1)


def storm() -> Told:
    """Ten messages, a hundred and fifty times: two thirds in one minute, the rest in the next."""
    told = Told(18, "storm").entry(2).published(1, 10).delivered(1, 10)
    for nth in range(250):
        told.entry(3 + nth, 10_000 + nth * 400).returned(1, 10).delivered(1, 10, acquired=nth + 1)
    return told


def consumer_died() -> Told:
    """All that it held is delivered once more."""
    told = Told(19, "once more").entry(2).published(1, 1_500).delivered(1, 1_500)
    return told.entry(3, 2_000).returned(1, 1_500, failed=1).delivered(1, 1_500, acquired=1, by=8)


def stuck() -> Told:
    told = Told(20, "stuck").entry(2).published(1, 2).delivered(1, 2)
    told.entry(3, MINUTE).settled(2)
    # Consumer 8 gave it back in the end; 9 had it not quite so long.
    told.entry(4, MINUTE).published(3, 4).delivered(3, by=8).delivered(4, by=9)
    told.entry(5, MINUTE + HALF_HOUR - 1).settled(4, by=9)
    told.entry(6, MINUTE + HALF_HOUR).returned(3, by=8).delivered(3, by=9, acquired=1)
    return told.entry(7, MINUTE + HALF_HOUR + 5).settled(3, by=9)


def not_told() -> Told:
    """Of a group whose replay failed behind entry 3: that it was settled is not known."""
    told = Told(1, "half", group=2).entry(2).published(1).entry(3).delivered(1)
    return told.entry(4).delivered(1).entry(5).settled(1)


def cut() -> Told:
    """Of a group that is known from a state on, and whose replay failed soon: the next state could
    not be restored, so nothing is known of its time.
    """
    told = Told(1, "cut", group=3).entry(2).add("digest")
    held = {"consumer": 7, "session": "s7", "token": 1 << 16}
    told.add("known", 1, entry=1, entry_offset=0, acquired=0, failed=0, **held)
    return told.entry(3, 100).published(2).entry(9).add("replayed", at_ms=0)


ALL = [
    plain(),
    returned(),
    settled_again(),
    settled_by_delivery(),
    unflagged(),
    known("known", 6, acquired=0),
    known("known held", 7, acquired=0, consumer=7, token=1 << 16),
    known("known before", 21, acquired=2),
    letters(),
    wide(),
    sac_handed_over(),
    sac_not_active(),
    sac_late(),
    sac_token(),
    sac_known(),
    failing("poison", 16, LIMITS.poison_failures),
    failing("unwell", 17, LIMITS.poison_failures - 1),
    storm(),
    consumer_died(),
    stuck(),
    not_told(),
    cut(),
]


def entry(node: str, index: int, commit_ns: int, **more: Any) -> dict[str, Any]:
    told = {"kind": "entry", "group": 1, "term": 3, "outcome": "committed", "type": "command"}
    return told | {"node": node, "index": index, "commit_ns": commit_ns} | more


OTHERS: dict[str, list[Any]] = {
    "entries": [
        entry("n1", 2, 7_000_000),
        entry("n2", 2, 3_000_000),
        entry("n1", 4, 1, outcome="voided"),
        entry("n2", 4, 9_000_000),
        entry("n3", 4, 8_000_000),
    ],
    "leaders": [{"group": 1, "term": 3, "leader": "n1"}, {"group": 1, "term": 2, "leader": "n2"}],
    "replays": [
        {"group": 1, "span": 0, "last": 99},
        {"group": 2, "span": 0, "last": 3, "failed": "entry 4: no"},
        {"group": 2, "span": 1, "last": 99},
        {"group": 3, "span": 0, "last": 9},
        {"group": 3, "span": 1, "last": 9, "failed": "the state is of another release"},
    ],
    "segments": [{"node": "n1", "last_ns": (START_MS + MINUTE) * 1_000_000}],
}


@pytest.fixture(scope="module")
def tables(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    events = [row for told in ALL for row in told.rows]
    return filled(spark, tmp_path_factory.mktemp("queues"), events, OTHERS)


@pytest.fixture(scope="module")
def told(tables: Any) -> Any:
    """Messages by queue and position."""
    return {(row["name"], row["position"]): row for row in rows_of(tables, "messages")}


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_a_message_says_where_it_came_from_and_what_became_of_it(told: Any) -> None:
    second = told["plain", 2]
    assert picked(second, "message", "publisher", "seqno", "vhost") == ("1-2-1", "pub", 6, "/")
    assert picked(second, "published_ms", "confirm_ms") == (START_MS, 7.0), "by its leader"
    assert told["stuck", 3]["confirm_ms"] == 8.0, "the leader does not say, the quickest node does"
    outcome = ("outcome", "outcome_ms", "held_ms", "deliveries", "redeliveries")
    assert picked(second, *outcome) == ("settled", START_MS + 1_000, 1_000, 1, 0)
    assert picked(told["plain", 3], *outcome) == ("unsettled", None, None, 1, 0)
    assert picked(told["auto", 2], "outcome", "reason", "last_consumer") == ("settled", "auto", 7)
    back = told["returned", 1]
    counts = ("deliveries", "redeliveries", "returns", "failed", "last_consumer", "last_index")
    assert picked(back, *counts) == (2, 1, 1, 1, 8, 3)
    delivered = ("first_delivered_ms", "last_delivered_ms", "held_ms")
    assert picked(back, *delivered) == (START_MS, START_MS + 2_000, 500)
    assert back["message"] == "1-2-4"


def test_what_was_there_before_is_told_from_what_is_seen(told: Any) -> None:
    counts = ("message", "redeliveries", "first_delivered_ms", "outcome")
    assert picked(told["known", 11], *counts) == ("1-3-2", 0, START_MS + 100, "unsettled")
    assert picked(told["known held", 11], *counts) == ("1-3-2", 1, None, "unsettled")
    assert picked(told["known before", 10], *counts) == ("1-3-1", 1, None, "unsettled")
    assert picked(told["sac known", 2], "outcome", "deliveries", "last_consumer") == (
        "ready",
        0,
        None,
    )


def test_messages_that_left_otherwise_say_how(told: Any) -> None:
    outcomes = [picked(told["letters", nth], "outcome", "reason") for nth in range(1, 7)]
    died = [("died", "expired"), ("died", "maxlen")]
    assert outcomes == [*died, *[("purged", None)] * 2, *[("deleted", None)] * 2]
    letter = told["dead", 1]
    assert picked(letter, "message", "outcome", "publisher") == ("1-2-0", "ready", None)
    assert told["letters", 1]["message"] == letter["message"]


def test_a_range_of_many_messages_becomes_each_of_them(told: Any) -> None:
    many = [row for row in told.values() if row["name"] == "wide"]
    assert sorted(row["position"] for row in many) == list(range(1, 10_001))
    assert [row["outcome"] for row in many].count("purged") == 5_001
    assert told["wide", 4_097]["message"] == "1-2-4096"


def test_behind_a_replay_that_failed_nothing_is_known(told: Any) -> None:
    assert picked(told["half", 1], "outcome", "deliveries", "broken") == ("unsettled", 1, [])


def by_queue(tables: Any, name: str, queue: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(tables, name) if row["name"] == queue]


def test_latencies_are_by_queue_and_minute_of_the_publish(tables: Any) -> None:
    quantiles = ("kind", "minute_ms", "messages", "p50", "p95", "p99", "longest")
    found = {picked(row, *quantiles) for row in by_queue(tables, "latency", "plain")}
    assert found == {
        ("confirm", START_MS, 3, 7.0, 7.0, 7.0, 7.0),
        ("deliver", START_MS, 3, 0.0, 0.0, 0.0, 0.0),
        ("settle", START_MS, 2, 400.0, 1000.0, 1000.0, 1000.0),
    }
    minutes = {row["minute_ms"] for row in by_queue(tables, "latency", "stuck")}
    assert minutes == {START_MS, START_MS + MINUTE}


def test_throughput_counts_messages_not_rows(tables: Any) -> None:
    counts = ("second_ms", "published", "delivered", "redelivered", "settled", "returned", "dead")
    found = sorted(picked(row, *counts) for row in by_queue(tables, "throughput", "once more"))
    assert found == [
        (START_MS, 1_500, 1_500, 0, 0, 0, 0),
        (START_MS + 2_000, 0, 1_500, 1_500, 0, 1_500, 0),
    ]
    assert picked(by_queue(tables, "throughput", "letters")[0], *counts)[1:] == (6, 0, 0, 0, 0, 2)
    assert picked(by_queue(tables, "throughput", "dead")[0], *counts)[1:] == (1, 0, 0, 0, 0, 0)


def test_redeliveries_are_counted_with_how_many_messages_they_are_of(tables: Any) -> None:
    counts = ("minute_ms", "delivered", "redelivered", "messages", "consumers", "entry")
    found = sorted(picked(row, *counts) for row in by_queue(tables, "redelivery", "storm"))
    assert found == [
        (START_MS, 1_260, 1_250, 10, 1, 3),
        (START_MS + MINUTE, 1_250, 1_250, 10, 1, 128),
    ]
    (once,) = by_queue(tables, "redelivery", "once more")
    assert picked(once, *counts) == (START_MS, 3_000, 1_500, 1_500, 1, 3)
    (plain,) = by_queue(tables, "redelivery", "plain")
    assert picked(plain, *counts) == (START_MS, 3, 0, 0, 0, None)


def test_who_holds_what_at_the_end_and_held_it_longest(tables: Any) -> None:
    held = ("held", "oldest_ms", "oldest_position", "oldest_entry")
    longest = ("longest_ms", "longest_position", "longest_entry", "session")
    found = {row["consumer"]: row for row in by_queue(tables, "unacked", "stuck")}
    end = MINUTE + HALF_HOUR + 5
    assert picked(found[7], *held, *longest) == (1, START_MS, 1, 2, end, 1, 2, "s7")
    assert picked(found[8], *held, *longest) == (0, None, None, None, HALF_HOUR, 3, 4, "s8")
    assert picked(found[9], *held, *longest[:3]) == (0, None, None, None, HALF_HOUR - 1, 4, 4)
    (plain,) = by_queue(tables, "unacked", "plain")
    assert picked(plain, *held) == (1, START_MS, 3, 2)


def test_with_whom_something_is_counts_as_long_as_it_is_known(tables: Any) -> None:
    held = ("held", "oldest_ms", "longest_ms")
    (half,) = by_queue(tables, "unacked", "half")
    assert picked(half, *held) == (1, START_MS, 0)
    (cut,) = by_queue(tables, "unacked", "cut")
    assert picked(cut, *held) == (1, START_MS, 100)


def test_the_active_consumers_follow_each_other(tables: Any) -> None:
    times = ("consumer", "token", "from_ms", "to_ms", "until_token", "entry")
    rows = sorted(
        picked(row, *times) for row in by_queue(tables, "sac", "sac fine") if row["consumer"]
    )
    first, second, last = START_MS, START_MS + 10, START_MS + 30
    assert rows == [
        (7, 2 << 16, first, second, 3 << 16, 2),
        (8, 3 << 16, second, last, 5 << 16, 3),
    ]
    (nobody,) = [row for row in by_queue(tables, "sac", "sac fine") if row["consumer"] is None]
    assert picked(nobody, "from_ms", "to_ms", "session") == (last, None, None)


def test_each_fault_is_found_and_located_and_what_is_nearly_one_is_not(tables: Any) -> None:
    rows = findings_of(tables, LIMITS)
    where = ("code", "queue", "first", "last", "message", "count")
    found = {picked(row.asDict(), *where) for row in rows}
    assert {each for each in found if each[0] != "stuck_unacked"} == {
        ("settled_again", "again", 9, 9, "1-2-2", 1),
        ("unflagged_duplicate", "unflagged", 7, 7, "1-2-1", 1),
        ("unflagged_duplicate", "known held", 5, 5, "1-3-1", 2),
        ("unflagged_duplicate", "known before", 5, 5, "1-3-1", 2),
        ("sac_overlap", "sac other", 6, 7, "1-4-0", 2),
        ("sac_overlap", "sac late", 9, 9, None, 1),
        ("sac_overlap", "sac token", 4, 4, "1-4-0", 1),
        ("poison_message", "poison", 3, 7, "1-2-0", 1),
        ("redelivery_storm", "storm", 3, None, None, 2_500),
        ("late_settle", "stuck", 4, 4, "1-4-1", 1),  # a millisecond less than half an hour
        ("late_settle", "storm", 252, 252, "1-2-0", 1),
    }
    stuck = {each for each in found if each[0] == "stuck_unacked"}
    assert {each for each in stuck if each[1] in ("stuck", "plain")} == {
        ("stuck_unacked", "stuck", 2, 2, "1-2-0", 1),
        ("stuck_unacked", "stuck", 4, 4, "1-4-0", 1),
        ("stuck_unacked", "plain", 2, 2, "1-2-2", 1),
    }
    left = {"known", "known held", "known before", "sac late", "sac token", "once more"}
    assert {each[1] for each in stuck} == {"stuck", "plain"} | left
    assert all(row["term"] == 3 and row["detail"] and row["queue"] for row in rows)
