"""Queues, row by row: times to live, priorities, limits, expiry, deletion (1.C, 1.E)."""

from __future__ import annotations

import pytest

from cluster.machine.commands import ATTR_TTL_MS, Enqueue
from cluster.types import QueueId, SessionId
from tests.machine.told import told


def test_ready_and_unsettled_messages_are_counted_apart():
    """C07."""
    q = told("queue q", "session a", "subscribe q a/t credit=2", "publish q 1 2 3")

    assert q.says("show q")[0] == "ready 1 unsettled 2 delayed 0 bytes 3"
    q("close a")
    assert q.says("show q")[0] == "ready 3 unsettled 0 delayed 0 bytes 3"


def test_recovering_all_that_is_unsettled_may_give_it_to_another():
    """C10: recover(requeue=true)."""
    q = told("queue q", "session a", "session b", "subscribe q a/t credit=2", "publish q 1 2")
    q("subscribe q b/t priority=1")

    assert q.says("return q a/t 1-2") == ["ok 2", "q -> b/t: 1:1! 2:2!"]


def test_what_a_consumer_holds_can_be_sent_to_it_again():
    """C10: recover(requeue=false), to the same consumer."""
    q = told(
        "queue q", "session a", "subscribe q a/t credit=2", "publish q 1 2 3", "settle q a/t 1"
    )

    chunks = q.world.machine.consumer_holds(q.world.queue("q"), q.world.consumer("a/t"))

    assert q.world.chunks(chunks) == "2:2 3:3"


def test_a_get_that_had_no_answer_is_found_by_what_it_took():
    """A17: the session's first one behind the last that was answered, in any replica."""
    q = told("queue q", "queue p", "session a", "session b", "subscribe q a/t credit=1")
    q("publish q 1 2 3 4 5 6")
    q("publish p 1")
    for get in ("get q a", "get p a", "get q b", "get q a", "get q a"):
        q(get)
    machine, queue, keys = q.world.machine, q.world.queue("q"), q.world.consumers
    copy = type(machine)()
    copy.restore(machine.snapshot())

    for replica in (machine, copy):
        assert replica.got_after(queue, SessionId("a"), keys["a/t"]) == keys["a/get1"]
        assert replica.got_after(queue, SessionId("a"), keys["a/get1"]) == keys["a/get4"]
        assert replica.got_after(queue, SessionId("a"), keys["a/get5"]) is None
        assert replica.got_after(queue, SessionId("c"), keys["a/t"]) is None

    q("settle q a/get4 4")
    assert machine.got_after(queue, SessionId("a"), keys["a/get1"]) == keys["a/get5"]


def test_a_batch_is_dealt_out_message_by_message():
    """C31, C32."""
    q = told("queue q", "session a", "session b", "subscribe q a/t credit=5", "subscribe q b/t")

    assert q.says("publish q 1 2 3 4")[1:] == ["q -> a/t: 1:1 3:3", "q -> b/t: 2:2 4:4"]


def test_what_a_consumer_holds_is_told_in_the_order_in_which_it_was_handed_out():
    """C24: also what was returned, and handed out again by a later decision."""
    q = told("queue q max_priority=5", "session a", "publish q 1 2:p2 3:p200 4 5:p5 6:p2")
    q("subscribe q a/t credit=4")
    handed = q.last.splitlines()[-1].split(": ", 1)[1]

    q("return q a/t 3")
    chunks = q.world.machine.consumer_holds(q.world.queue("q"), q.world.consumer("a/t"))

    assert handed == "3:3 5:5 2:2 6:6"
    assert [chunk.first for chunk in chunks] == [5, 2, 6, 3]
    assert q.says("leader") == ["q -> a/t: 5:5 2:2 6:6 3:3!"]


# --- time to live ---------------------------------------------------------------------------------


def test_the_time_to_live_of_a_queue_ends_messages_without_anybody_looking():
    """C14."""
    q = told("queue q message_ttl_ms=100", "publish q 1", "clock 40", "publish q 2")

    assert q.says("due") == ["100"]
    assert q.says("at 100") == ["ok"]
    assert q.says("peek q") == ["2:2 ready, expires 140"]
    assert q.says("due") == ["140"]


def test_an_expired_message_behind_a_live_one_still_counts():
    """C15."""
    q = told("queue q", "publish q 1:t500 2:t10", "at 100")

    assert q.says("show q") == ["ready 2 unsettled 0 delayed 0 bytes 2"]
    q("session a", "subscribe q a/t credit=1")
    assert q.last == "subscribed\n  q -> a/t: 1:1"
    assert q.says("show q")[0] == "ready 0 unsettled 1 delayed 0 bytes 1"


def test_a_head_of_its_own_priority_expires_although_a_higher_one_is_served_first():
    """C15, C24."""
    q = told("queue q max_priority=5", "publish q 1:t10 2:p5", "at 10")

    assert q.says("peek q") == ["2:2 ready, priority 5"]


@pytest.mark.parametrize(("queue_ms", "own_ms", "ends"), [(100, 50, 50), (50, 100, 50)])
def test_the_smaller_time_to_live_wins(queue_ms: int, own_ms: int, ends: int):
    """C16."""
    q = told(f"queue q message_ttl_ms={queue_ms}", f"publish q 1:t{own_ms}")

    assert q.says("peek q") == [f"1:1 ready, expires {ends}"]


def test_a_time_to_live_given_by_a_policy_holds_for_what_is_there():
    """C14: a policy `message-ttl`."""
    q = told("queue q", "publish q 1", "clock 50", "policy q message_ttl_ms=60")

    assert q.says("due") == ["60"]
    q("policy q message_ttl_ms=20")
    assert q.says("peek q") == ["nothing"]


def test_ttl_zero_is_for_whoever_can_take_it_at_this_instant():
    """C17, C21, 1.E 6."""
    q = told("queue dead", "queue q message_ttl_ms=0 dead_letter_queue=dead", "session a")
    q("subscribe q a/t credit=1")

    assert q.says("publish q 1 2")[1:] == ["q -> a/t: 1:1"]
    assert q.says("peek dead") == ["1:2+q/expired/1 ready"]


@pytest.mark.parametrize(
    "reason",
    ["pause q", "cancel q a/t", "node-down n1", "credit q a/t 1"],
)
def test_ttl_zero_is_too_short_for_a_queue_whose_consumers_cannot_take_it(reason: str):
    """C17."""
    q = told("queue q", "session a", "subscribe q a/t credit=2", "publish q x", reason)

    assert q.says("publish q 1:t0") == ["enqueued 2-2"]
    assert q.says("peek q")[1:] == []


def test_a_clock_that_goes_back_delays_nothing_and_revives_nothing():
    """C14: time is the log's, and never goes back."""
    q = told("queue q message_ttl_ms=100", "clock 1000", "publish q 1", "clock 10", "publish q 2")

    assert q.says("peek q") == ["1:1 ready, expires 1100", "2:2 ready, expires 1100"]
    assert q.says("at 500") == ["ok"]
    assert q.says("at 1100") == ["ok"]
    assert q.says("peek q") == ["nothing"]


def test_a_tick_in_the_past_changes_nothing():
    """C14, B11."""
    q = told("queue q message_ttl_ms=100", "session a resume=10", "clock 5", "publish q 1")
    q("detach a")
    before = q.world.machine.digest()

    assert q.says("at 3") == ["ok"]
    assert q.world.machine.digest() == before


# --- delay and priority ---------------------------------------------------------------------------


def test_a_message_for_later_is_ready_then_in_its_own_place():
    """C23."""
    q = told("queue q", "publish q 1:a100 2", "session a")

    assert q.says("due") == ["100"]
    q("at 100")
    assert q.says("subscribe q a/t")[1:] == ["q -> a/t: 1:1 2:2"]


def test_a_delayed_message_cannot_go_straight_through_and_counts():
    """C23, 1.E 8."""
    q = told("queue q max_length=1 overflow=reject-publish", "session a", "subscribe q a/t")

    assert q.says("publish q 1:a100 2:a100 3")[0] == "enqueued 1-2, refused 1-1"


def test_priority_is_capped_and_the_default_is_the_lowest():
    """C24, 1.E 5."""
    q = told("queue q max_priority=3", "publish q 1 2:p0 3:p200 4:p3 5:p1", "session a")

    assert q.says("subscribe q a/t")[1:] == ["q -> a/t: 3:3 4:4 5:5 1:1 2:2"]


def test_the_order_of_delivery_within_a_batch_is_by_priority_whoever_takes_it():
    """C24."""
    q = told("queue q max_priority=3", "session a", "subscribe q a/t credit=2")

    assert q.says("publish q 1 2:p1 3:p2")[1:] == ["q -> a/t: 3:3 2:2"]


def test_a_policy_does_not_change_the_priorities_of_a_queue():
    """C24: at declare."""
    q = told("queue q max_priority=3", "policy q max_priority=0", "publish q 1 2:p2")

    assert q.says("peek q") == ["1:1 ready", "2:2 ready, priority 2"]


# --- limits ---------------------------------------------------------------------------------------


def test_drop_head_drops_what_would_be_delivered_next():
    """C19, C24: as RabbitMQ, so a high priority may go first."""
    q = told("queue dead", "queue q max_length=2 max_priority=5 dead_letter_queue=dead")

    q("publish q 1 2:p5", "publish q 3")

    assert q.says("peek q") == ["1:1 ready", "3:3 ready"]
    assert q.says("peek dead") == ["1:2+q/maxlen/1 ready"]


def test_drop_head_takes_what_was_returned_when_that_is_next():
    """C19, B08."""
    q = told("queue q max_length=2", "session a", "subscribe q a/t credit=1", "publish q 1 2 3")
    q("cancel q a/t")

    assert q.says("return q a/t 1") == ["ok 1"]
    assert q.says("peek q") == ["2:2 ready", "3:3 ready"]


def test_a_limit_counts_what_waits_and_not_what_is_in_flight():
    """1.E 8: ready and delayed ones."""
    q = told(
        "queue q max_length=2 overflow=reject-publish", "session a", "subscribe q a/t credit=2"
    )

    assert q.says("publish q 1 2 3 4 5")[0] == "enqueued 1-4, refused 4-4"
    assert q.says("settle q a/t 1")[1:] == ["q -> a/t: 3:3"]
    assert q.says("publish q 6 7") == ["enqueued 5-5, refused 1-1"]


def test_a_limit_never_overshoots_whatever_the_size_of_the_batch():
    """1.E 8, section 3 12."""
    bodies = " ".join(str(n) for n in range(50))
    q = told("queue q max_length=7", f"publish q {bodies}")

    assert q.says("show q") == ["ready 7 unsettled 0 delayed 0 bytes 14"]
    q("queue r max_length=7 overflow=reject-publish")
    assert q.says(f"publish r {bodies}") == ["enqueued 1-7, refused 7-49"]


def test_one_message_larger_than_the_limit_empties_the_queue_or_is_refused():
    """C19: RabbitMQ drops from the head until the limit holds."""
    q = told("queue q max_length_bytes=5", "publish q aa bb", "publish q cccccc")

    assert q.says("peek q") == ["nothing"]
    q("queue r max_length_bytes=5 overflow=reject-publish", "publish r aa")
    assert q.says("publish r cccccc bbb") == ["enqueued 2-2, refused 0-0"]


def test_both_limits_hold_at_once():
    """C19."""
    q = told("queue q max_length=3 max_length_bytes=6", "publish q aaaa b c d")

    assert q.says("peek q") == ["2:b ready", "3:c ready", "4:d ready"]
    assert q.says("publish q eeeee") == ["enqueued 5-5"]
    assert q.says("peek q") == ["4:d ready", "5:eeeee ready"]


def test_a_limit_of_nothing_lets_through_what_a_consumer_takes():
    """C12, 1.E 8: a queue that only hands over."""
    q = told(
        "queue q max_length=0 overflow=reject-publish", "session a", "subscribe q a/t credit=1"
    )

    assert q.says("publish q 1 2") == ["enqueued 1-1, refused 1-1", "q -> a/t: 1:1"]


def test_what_has_expired_takes_no_room_although_nobody_looked_yet():
    """C14, C19."""
    q = told("queue q max_length=1 overflow=reject-publish message_ttl_ms=10", "publish q 1")

    assert q.says("clock 11") == []
    assert q.says("publish q 2 3") == ["enqueued 2-2, refused 1-1"]
    assert q.says("peek q") == ["2:2 ready, expires 21"]


def test_a_limit_holds_even_when_one_command_cannot_hand_out_all_it_stored():
    """C19, section 3 12."""
    q = told("queue q max_length=1 overflow=reject-publish", "session a", "subscribe q a/t")
    attrs = [None, {ATTR_TTL_MS: 9_000}] * 3_000

    q.world.apply(Enqueue(QueueId(1), None, 0, [b"x"] * 6_000, attrs=attrs))

    view = q.world.machine.queue(QueueId(1))
    assert view is not None
    assert view.ready_count <= 1


def test_a_policy_that_lowers_the_limit_drops_the_head():
    """C19."""
    q = told("queue q", "publish q 1 2 3", "policy q max_length=1")

    assert q.says("peek q") == ["3:3 ready"]


def test_a_policy_that_lowers_the_limit_of_a_queue_that_refuses_only_refuses():
    """C19."""
    q = told("queue q", "publish q 1 2 3", "policy q max_length=1 overflow=reject-publish")

    assert q.says("publish q 4") == ["enqueued nothing, refused 0-0"]
    assert q.says("show q") == ["ready 3 unsettled 0 delayed 0 bytes 3"]


# --- the queue itself -----------------------------------------------------------------------------


def test_a_queue_expires_when_nobody_used_it():
    """x-expires: consumers, gets and declarations are use; publishing is not."""
    q = told("queue q expires_ms=100", "session a", "clock 50", "get q a", "clock 120", "queue q")
    q("clock 200", "publish q 1")

    assert q.says("at 219") == ["ok"]
    assert q.says("at 220") == ["ok", "q: expired"]


def test_a_queue_with_a_consumer_never_expires_and_starts_anew_when_it_leaves():
    """x-expires: also when its session is lost."""
    q = told("queue q expires_ms=100", "session a resume=30", "subscribe q a/t", "at 5000")

    assert q.last == "ok"
    q("detach a", "at 5030")
    assert q.says("due") == ["5130"]
    assert q.says("at 5130") == ["ok", "q: expired"]


def test_a_queue_whose_expiry_was_put_off_by_a_policy_is_not_reported_again():
    """x-expires: a policy `expires`."""
    q = told("queue q expires_ms=100", "at 100", "policy q expires_ms=60000")

    assert q.says("leader") == ["-"]
    assert q.says("at 10100") == ["ok"]
    assert q.says("at 60000") == ["ok", "q: expired"]


def test_deleting_a_queue_ends_its_consumers_and_forgets_what_is_in_flight():
    """C42: server-side cancel; a late settle is told that there is no queue."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1 2")

    assert q.says("delete q") == ["ok 2", "q: a/t ended: queue_deleted"]
    assert q.says("settle q a/t 1") == ["refused no_queue"]
    assert q.says("live") == ["-"]
    assert q.says("close a") == ["ok 1", "a ended: closed"]


def test_a_queue_is_in_use_only_by_consumers_and_empty_without_what_is_in_flight():
    """1.E 4: if-unused, if-empty."""
    q = told("upgrade 2", "queue q", "session a", "publish q 1 2", "get q a")

    assert q.says("delete q if-empty") == ["refused not_empty"]
    q.says("get q a")
    assert q.says("delete q if-empty") == ["ok 2"]


def test_before_version_2_a_queue_was_not_empty_while_something_was_in_flight():
    q = told("queue q", "session a", "publish q 1", "get q a")

    assert q.says("delete q if-empty") == ["refused not_empty"]
    assert q.says("delete q if-unused") == ["ok 1"]


def test_a_queue_made_again_numbers_its_deliveries_higher():
    """B12: fencing tokens are never used twice."""
    q = told("queue q", "session a", "publish q 1", "get q a")
    before = q.world.machine.queue(q.world.queue("q"))
    q("delete q", "queue q", "publish q 1", "get q a")
    after = q.world.machine.queue(q.world.queue("q"))

    assert before is not None
    assert after is not None
    assert after.last_token > before.last_token
