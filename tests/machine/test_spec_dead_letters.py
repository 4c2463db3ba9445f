"""Dead letters, row by row: why, where to, with which history (C09, C19-C22)."""

from __future__ import annotations

import re
from typing import Any

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_TTL_MS,
    CreateQueue,
    Enqueue,
    QueueConfig,
    UpdateQueue,
)
from cluster.machine.replies import Refused
from cluster.types import QueueId, Stamp
from tests.machine.told import Told, told
from tests.machine.world import START_MS

TO_DEAD = 'dead_letter_queue=dead dead_letter_exchange="" dead_letter_routing_key=dead'
TERM = 1 << 32


def deaths(q: Told, queue: str, position: int = 1) -> list[dict[str, Any]]:
    row = q.world.machine.browse(q.world.queue(queue), position, 1)[0]
    return row.chunk.deaths


def test_a_discarded_message_is_gone_at_once_and_goes_to_nobody_else():
    """C09."""
    q = told("queue q", "session a", "session b", "subscribe q a/t", "publish q 1")
    q("subscribe q b/t")

    assert q.says("discard q a/t 1") == ["ok 1"]
    assert q.says("peek q") == ["nothing"]
    assert q.says("live") == ["-"]


def test_every_cause_of_death_is_told():
    """C19."""
    q = told("queue dead", f"queue q max_length=1 message_ttl_ms=50 delivery_limit=0 {TO_DEAD}")
    q("session a", "subscribe q a/t credit=2", "publish q r l m e", "discard q a/t 1")
    q("return q a/t 2 failed", "publish q x")

    q("at 50")

    said = [line.split()[0] for line in q.says("peek dead")]
    assert said == [
        "1:m+q/maxlen/1",
        "2:r+q/rejected/1",
        "3:l+q/delivery_limit/1",
    ]
    q("cancel q a/t", "publish q y", "at 100")
    assert q.says("peek dead")[3].split()[0] == "4:y+q/expired/1"


def test_a_record_says_all_that_x_death_needs():
    """C22."""
    q = told("queue dead", f"queue q {TO_DEAD}", "session a", "subscribe q a/t", "clock 7")
    q("publish q 1:t500", "discard q a/t 1")

    assert deaths(q, "dead") == [
        {
            "queue": "q",
            "reason": "rejected",
            "count": 1,
            "exchange": None,  # the message's own
            "routing-keys": None,
            "time": START_MS + 7,
            "original-expiration": 500,
            "first": True,
            "to": ["", "dead"],
        }
    ]


def test_the_next_death_names_the_exchange_and_key_of_the_move_before():
    """C22."""
    q = told("queue dead2", f"queue dead {TO_DEAD.replace('=dead', '=dead2')} message_ttl_ms=5")
    q(f"queue q {TO_DEAD}", "session a", "subscribe q a/t", "publish q 1", "discard q a/t 1")
    q("at 5")

    last, first = deaths(q, "dead2")

    assert (last["queue"], last["exchange"], last["routing-keys"]) == ("dead", "", ["dead"])
    assert (first["queue"], first["exchange"], first["routing-keys"]) == ("q", None, None)


def test_records_are_one_a_queue_and_reason_the_last_death_first():
    """C22: compressed by {queue, reason}."""
    q = told("queue q", "session a", "subscribe q a/t")
    q("policy q dead_letter_queue=q delivery_limit=0", "publish q 1", "discard q a/t 1")
    q("clock 9", "discard q a/t 2", "discard q a/t 3")

    assert [(d["reason"], d["count"], d["time"] - START_MS) for d in deaths(q, "q", 4)] == [
        ("rejected", 3, 0)
    ]


def test_the_first_death_is_known_however_often_the_records_were_reordered():
    """C22: x-first-death-*. x-last-death-* is the first record."""
    q = told("queue q1", "queue q2 dead_letter_queue=q1", "session a")
    q("policy q1 dead_letter_queue=q2", "subscribe q1 a/t", "subscribe q2 a/u")
    q("publish q1 1", "discard q1 a/t 1", "discard q2 a/u 1", "discard q1 a/t 2")

    last, before = deaths(q, "q2", 2)

    assert (last["queue"], last["count"], last.get("first")) == ("q1", 2, True)
    assert (before["queue"], before["count"], before.get("first")) == ("q2", 1, None)


def test_a_dead_letter_has_no_time_to_live_of_its_own_any_more():
    """C22: expiration removed."""
    q = told("queue dead", f"queue q {TO_DEAD}", "publish q 1:t10", "at 10")

    assert q.says("peek dead") == ["1:1+q/expired/1 ready"]
    assert q.says("at 100000") == ["ok"]
    assert deaths(q, "dead")[0]["original-expiration"] == 10


def test_the_time_to_live_of_the_target_starts_when_it_arrives():
    """C14, C20: a fresh publish."""
    q = told("queue dead message_ttl_ms=30", f"queue q {TO_DEAD} message_ttl_ms=10", "publish q 1")
    q("at 10")

    assert q.says("peek dead") == ["1:1+q/expired/1 ready, expires 40"]


def test_a_dead_letter_starts_with_new_counts():
    """C20, 2.1."""
    q = told("queue dead", f"queue q {TO_DEAD} delivery_limit=1", "session a", "subscribe q a/t")
    q("publish q 1", "return q a/t 1 failed", "return q a/t 1 failed")

    assert q.says("subscribe dead a/u")[1:] == ["dead -> a/u: 1:1+q/delivery_limit/1"]


def test_a_dead_letter_keeps_the_priority_it_was_published_with():
    """C20, C24: as a fresh publish of the same properties, capped by the target only."""
    q = told("queue dead max_priority=9", f"queue q {TO_DEAD} max_priority=2", f"queue r {TO_DEAD}")
    q("publish q a:p7:t10", "publish r b:p8:t10 c:p99:t10", "at 10")

    assert [line.rsplit(" ", 1)[1] for line in q.says("peek dead")] == ["7", "8", "9"]


def test_a_dead_letter_for_another_group_keeps_its_priority():
    """C20, C24."""
    q = told('queue q dead_letter_exchange="" dead_letter_routing_key=far', "session a")
    q("publish q a:p7:t10 b:t10", "at 10")

    letters = q.world.machine.dead_letters(q.world.queue("q"))

    assert [letter.priority for letter in letters] == [7, 0]


def test_a_cycle_of_expiries_ends_where_it_began():
    """C22: dropped with no rejection in it."""
    q = told("queue q1 message_ttl_ms=5", "queue q2 message_ttl_ms=5 dead_letter_queue=q1")
    q("policy q1 message_ttl_ms=5 dead_letter_queue=q2", "publish q1 1", "at 5", "at 10")

    assert q.says("peek q1") == ["nothing"]
    assert q.says("peek q2") == ["nothing"]
    assert q.says("live") == ["-"]


def test_a_cycle_of_the_length_limit_ends():
    """C22."""
    q = told("queue q max_length=1 dead_letter_queue=q", "queue q", "queue q")
    q("policy q max_length=1 dead_letter_queue=q", "publish q 1 2 3")

    assert q.says("peek q") == ["3:3 ready"]


def test_a_cycle_of_failed_deliveries_ends():
    """C22: the delivery limit is no rejection."""
    q = told("queue q delivery_limit=0", "session a", "subscribe q a/t", "publish q 1")
    q("policy q delivery_limit=0 dead_letter_queue=q")

    assert q.says("return q a/t 1 failed") == ["ok 1", "q: 1 over the delivery limit"]
    assert q.says("peek q") == ["nothing"]


def test_a_cycle_somebody_rejects_in_goes_on():
    """C22."""
    q = told("queue q1", "queue q2 message_ttl_ms=5 dead_letter_queue=q1", "session a")
    q("policy q1 dead_letter_queue=q2", "subscribe q1 a/t", "publish q1 1")

    for turn in range(1, 4):
        assert q.says(f"discard q1 a/t {turn}") == ["ok 1"]
        assert q.says(f"at {5 * turn}")[1].startswith(f"q1 -> a/t: {turn + 1}:1+q2/expired/{turn}")


def test_a_rejection_before_the_last_visit_does_not_save_a_cycle():
    """C22: only what happened since it was here counts."""
    q = told("queue q message_ttl_ms=5 dead_letter_queue=r", "session a")
    q("queue r", "policy q message_ttl_ms=5 dead_letter_queue=r")
    q("policy r message_ttl_ms=5 dead_letter_queue=q", "publish q 1 deaths=q/expired,x/rejected")

    assert q.says("peek q") == ["nothing"]


def test_a_ring_longer_than_the_records_reach_still_ends():
    """C22: all of it in one command, as every queue of the ring has a TTL of 0."""
    machine = QueueMachine()
    count = 300
    for n in range(1, count + 1):
        config = QueueConfig(message_ttl_ms=0, dead_letter_queue=QueueId(n % count + 1))
        machine.apply(Stamp(n + 1, 1, 0), CreateQueue(QueueId(n), "/", f"q{n}", config))

    machine.apply(Stamp(1000, 1, 0), Enqueue(QueueId(1), None, 0, [b"x"]))

    machine.invariants()
    assert machine.overview()["ready"] == 0
    assert machine.live_indexes() == []


def test_a_dead_letter_queue_that_is_full_drops_its_head():
    """C19, C20: with overflow drop-head the newest dead letters are kept."""
    q = told("queue dead max_length=2", f"queue q {TO_DEAD} max_length=0", "publish q 1 2 3")

    assert [line.split()[0] for line in q.says("peek dead")] == [
        "2:2+q/maxlen/1",
        "3:3+q/maxlen/1",
    ]


def test_a_dead_letter_queue_that_refuses_gets_its_letters_when_it_has_room():
    """C19, C20, section 3 11 and 12: its limit holds and nothing is lost meanwhile."""
    q = told("queue dead max_length=1 overflow=reject-publish", f"queue q {TO_DEAD} max_length=0")

    assert q.says("publish q 1") == ["enqueued 1-1"]
    assert q.says("publish q 2 3") == ["enqueued 2-3", "q: dead letters"]
    assert q.says("show dead") == ["ready 1 unsettled 0 delayed 0 bytes 1"]
    assert q.says("outbox q") == [
        "1: 2 to '' dead: q/maxlen/1",
        "2: 3 to '' dead: q/maxlen/1",
    ]


def test_a_dead_letter_queue_dead_letters_on_what_it_drops():
    """C19, C22: with the whole history."""
    q = told("queue last", "queue dead max_length=1 dead_letter_queue=last")
    q(f"queue q {TO_DEAD} max_length=0", "publish q 1 2")

    assert q.says("peek last") == ["1:1+dead/maxlen/1+q/maxlen/1 ready"]


def test_rejected_into_itself_a_message_is_last_in_line():
    """C20: a fresh publish."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "policy q dead_letter_queue=q")
    q("publish q 1 2 3")

    assert q.says("discard q a/t 1") == ["ok 1", "q -> a/t: 2:2"]
    assert q.says("peek q")[1:] == ["3:3 ready", "4:1+q/rejected/1 ready"]


def test_reject_publish_dlx_tells_the_publisher_and_keeps_the_message():
    """C19, section 3 12."""
    q = told("queue dead", f"queue q {TO_DEAD} max_length=1 overflow=reject-publish-dlx")

    assert q.says("publish q 1 2 3 publisher=p seqno=1") == ["enqueued 1-1, refused 1-2"]
    assert q.says("publish q 1 2 3 publisher=p seqno=1") == [
        "enqueued nothing, 1 duplicate, refused 1-2"
    ]
    assert q.says("peek dead") == ["1:2+q/maxlen/1 ready", "2:3+q/maxlen/1 ready"]


def test_the_dead_letter_exchange_may_change_while_letters_wait():
    """C19: what died before goes where it was to go."""
    q = told("queue q dead_letter_exchange=x message_ttl_ms=5", "publish q 1", "at 5")
    q("policy q dead_letter_exchange=y message_ttl_ms=5", "publish q 2", "at 10")

    assert [line.split(":")[1] for line in q.says("outbox q")] == [
        " 1 to 'x' None",
        " 2 to 'y' None",
    ]


def outbox(q: Told, queue: str = "q") -> list[str]:
    """Numbers, without their term, and bodies; `w`: put off."""
    lines = [line.split(" to ")[0] for line in q.says(f"outbox {queue}")]
    return [re.sub(r"\d+:", lambda found: f"{int(found[0][:-1]) % TERM}:", line) for line in lines]


def with_letters(count: int) -> Told:
    q = told('queue q dead_letter_exchange="" dead_letter_routing_key=far', "publish q 1:p7:t10")
    q("publish q " + " ".join(f"{number}:t10" for number in range(2, count + 1)), "at 10")
    q("upgrade 5")  # numbers carry the term from here on
    return q


def test_from_version_5_on_a_queue_whose_letters_wait_is_not_empty():
    q = told(
        'queue q dead_letter_exchange="" dead_letter_routing_key=far', "publish q 1:t5", "at 5"
    )
    assert q.says("delete q if-empty")[0].startswith("ok")

    q = with_letters(1)
    assert q.says("delete q if-empty") == ["refused not_empty"]
    q("moved q 1")
    assert q.says("delete q if-empty")[0].startswith("ok")


def test_letters_that_are_put_off_let_others_pass_and_go_under_new_numbers():
    q = with_letters(4)

    assert q.says("putoff q 1-2") == ["ok 2"]
    assert outbox(q) == ["3: 3", "4: 4", "w 1: 1", "w 2: 2"]
    assert q.says("putoff q 1-2") == ["ok"]
    assert q.says("moved q 2") == ["ok"]
    assert q.says("send q 1 9") == ["ok 1"]
    assert outbox(q) == ["3: 3", "4: 4", "5: 1", "w 2: 2"]
    assert q.world.machine.dead_letters(q.world.queue("q"))[2].priority == 7
    assert q.says("send q 1") == ["ok"]
    assert q.says(f"moved q {TERM + 5}") == ["ok 3"]
    assert outbox(q) == ["w 2: 2"]
    assert q.says("send q 1-3") == ["ok 1"]
    assert q.says(f"moved q {TERM + 6}") == ["ok 1"]
    assert outbox(q) == ["nothing"]


def test_what_is_known_of_a_letters_targets_stays_with_it():
    """Those that have it are not sent it under its new number."""
    q = with_letters(5)

    def safe_in() -> list[tuple[int, ...]]:
        return [each.safe_in for each in q.world.machine.dead_letters(q.world.queue("q"))]

    def first_numbers() -> list[int]:
        return [each.died for each in q.world.machine.dead_letters(q.world.queue("q"))]

    assert first_numbers() == [1, 2, 3, 4, 5]
    assert q.says("putoff q 1-4 safe=2-3@7+9,3-5@8") == ["ok 4"]
    assert outbox(q) == ["5: 5", "w 1: 1", "w 2: 2", "w 3: 3", "w 4: 4"]
    assert safe_in() == [(), (), (7, 9), (7, 9), (8,)]
    q("send q 2 4")
    assert first_numbers() == [5, 2, 4, 1, 3]
    q(f"putoff q {TERM + 6}-{TERM + 9} safe={TERM + 6}@8")
    assert outbox(q) == ["5: 5", "w 1: 1", "w 2: 2", "w 3: 3", "w 4: 4"]
    assert safe_in() == [(), (), (7, 8, 9), (7, 9), (8,)]


def test_what_dies_while_letters_are_put_off_waits_behind_them():
    """Else one that waits for the same would pass them."""
    q = with_letters(3)
    q("putoff q 1-1", "publish q a:t1 b:t1", "at 20")

    assert outbox(q) == ["2: 2", "3: 3", "w 1: 1", "w 4: a", "w 5: b"]
    assert q.says("putoff q 1-2") == ["ok 1"]
    assert outbox(q) == ["3: 3", "w 1: 1", "w 2: 2", "w 4: a", "w 5: b"]
    assert q.says(f"send q 1-{TERM + 9}") == ["ok 4"]
    assert outbox(q) == ["3: 3", "6: 1", "7: 2", "8: a", "9: b"]
    q("publish q c:t1", "at 30")
    assert outbox(q)[-1] == "10: c"


def test_a_letter_that_cannot_go_after_all_has_its_place_again():
    q = with_letters(5)
    q("putoff q 1-4", "send q 2-3")
    assert outbox(q) == ["5: 5", "6: 2", "7: 3", "w 1: 1", "w 4: 4"]

    assert q.says(f"putoff q 5 {TERM + 6}") == ["ok 2"]
    assert outbox(q) == ["7: 3", "w 1: 1", "w 2: 2", "w 4: 4", "w 5: 5"]
    assert q.says("send q 3-2 4-1") == ["ok"]
    assert q.says(f"putoff q 1-{TERM + 9}") == ["ok 1"]
    assert outbox(q) == ["w 1: 1", "w 2: 2", "w 3: 3", "w 4: 4", "w 5: 5"]
    q.world.machine.invariants()


def test_any_of_the_letters_that_go_are_put_off():
    q = with_letters(6)

    assert q.says("putoff q 2-3 5-99 4-1") == ["ok 4"]
    assert outbox(q) == ["1: 1", "4: 4", "w 2: 2", "w 3: 3", "w 5: 5", "w 6: 6"]
    assert q.says("send q 6 3-2 2") == ["ok 2"]
    assert outbox(q) == ["1: 1", "4: 4", "7: 6", "8: 2", "w 3: 3", "w 5: 5"]


def test_letters_are_listed_from_any_of_them_on():
    q = with_letters(6)
    q("putoff q 1-4", "send q 2")
    machine, queue = q.world.machine, q.world.queue("q")
    letters = machine.dead_letters(queue)

    assert [each.number % TERM for each in letters] == [5, 6, 7, 1, 3, 4]
    assert [each.put_off for each in letters] == [False] * 3 + [True] * 3
    for place, letter in enumerate(letters):
        assert machine.dead_letters(queue, 2, letter) == letters[place + 1 :][:2]


def test_history_that_is_no_history_is_refused():
    """C22."""
    q = told("queue q")
    wrongs: list[Any] = ["x", [1], [{}], [{"queue": "q", "reason": "r", "count": "1"}], {}]
    for wrong in wrongs:
        command = Enqueue(QueueId(1), None, 0, [b"x"], attrs={ATTR_DEATHS: wrong})
        assert isinstance(q.world.apply(command).reply, Refused)
    assert q.says("peek q") == ["nothing"]


def test_of_a_carried_history_only_what_we_know_is_kept():
    """C22: strange values would make replicas differ, NaN is not equal to itself."""
    q = told("queue q")
    record = {"queue": "f", "reason": "expired", "count": 1, "time": float("nan"), 3: {"x": 1}}

    q.world.apply(Enqueue(QueueId(1), None, 0, [b"x"] * 2, attrs={ATTR_DEATHS: [record]}))

    assert deaths(q, "q") == [{"queue": "f", "reason": "expired", "count": 1}]


def test_an_expired_message_of_a_policy_without_target_is_dropped():
    """C19: no DLX, no dead letter."""
    q = told("queue q")
    q.world.apply(UpdateQueue(QueueId(1), QueueConfig()))
    q.world.apply(Enqueue(QueueId(1), None, 0, [b"x"], attrs={ATTR_TTL_MS: 0}))

    assert q.says("live") == ["-"]
