"""A single active consumer: who is active, and how one hands over to the next (A25-A31)."""

from __future__ import annotations

from tests.machine.told import Told, told


def sac(*lines: str) -> Told:
    """Sessions a, b, c, d at nodes of their own; a/t is active and holds 1 and 2 of 1-4."""
    return told(
        "queue q single_active_consumer=true consumer_timeout_ms=90000",
        *(f"session {name} node=n{name}" for name in "abcd"),
        "subscribe q a/t credit=2",
        "publish q 1 2 3 4",
        *lines,
    )


def statuses(q: Told) -> list[str]:
    return [line.rsplit(", holds", 1)[0] for line in q.says("show q")[1:]]


def test_the_first_to_register_is_active_whatever_the_others_are():
    """A25, A28, A30, A33."""
    q = sac("subscribe q b/t credit=5", "subscribe q c/t")

    assert statuses(q) == ["a/t: up, active", "b/t: waiting", "c/t: waiting"]
    assert q.says("peek q")[2:] == ["3:3 ready", "4:4 ready"]


def test_when_the_active_one_is_cancelled_the_next_in_line_takes_over_at_once():
    """A26."""
    q = sac("subscribe q b/t", "subscribe q c/t")

    assert q.says("cancel q a/t") == ["ok 2", "q: active is b/t", "q -> b/t: 3:3 4:4"]


def test_when_the_active_one_dies_the_highest_priority_takes_over():
    """A26, A35."""
    q = sac("subscribe q b/t", "subscribe q c/t priority=-1")
    q("subscribe q d/t priority=-2")

    assert q.says("close a")[2:] == ["q: active is b/t", "q -> b/t: 1:1! 2:2! 3:3 4:4"]
    assert q.says("close b")[2] == "q: active is c/t"
    assert q.says("close c")[2] == "q: active is d/t"
    assert q.says("close d")[2] == "q: active is None"


def test_the_queue_goes_quiet_for_a_newcomer_of_higher_priority():
    """A27."""
    q = sac("subscribe q b/t priority=1")

    assert statuses(q) == ["a/t: quiescing, active", "b/t: waiting"]
    assert q.says("settle q a/t 1") == ["ok 1"]
    assert q.says("publish q 5") == ["enqueued 5-5"]
    assert q.says("settle q a/t 2") == ["ok 1", "q: active is b/t", "q -> b/t: 3:3 4:4 5:5"]


def test_an_idle_active_consumer_hands_over_at_once():
    """A27."""
    q = sac("settle q a/t 1-2", "settle q a/t 3-4")

    assert q.says("subscribe q b/t priority=1") == ["subscribed", "q: active is b/t"]


def test_the_same_priority_takes_nothing_over():
    """A27: only a higher one."""
    q = sac("subscribe q b/t priority=0")

    assert statuses(q) == ["a/t: up, active", "b/t: waiting"]


def test_what_is_returned_while_the_queue_is_quiet_goes_to_the_newcomer_in_order():
    """A27, B08: a requeue drains too."""
    q = sac("subscribe q b/t priority=1", "return q a/t 2")

    assert q.last == "ok 1"
    assert q.says("return q a/t 1") == [
        "ok 1",
        "q: active is b/t",
        "q -> b/t: 1:1! 2:2! 3:3 4:4",
    ]


def test_what_is_discarded_while_the_queue_is_quiet_drains_too():
    """A27, C09."""
    q = sac("subscribe q b/t priority=1")

    assert q.says("discard q a/t 1-2") == ["ok 2", "q: active is b/t", "q -> b/t: 3:3 4:4"]


def test_cancelling_the_quiet_one_hands_over_and_its_late_settle_counts():
    """A27, A16: with cancel, and with late acks."""
    q = sac("subscribe q b/t priority=1 credit=1")

    assert q.says("cancel q a/t") == ["ok 2", "q: active is b/t", "q -> b/t: 3:3"]
    assert q.says("settle q a/t 2") == ["ok 1"]
    assert q.says("return q a/t 1") == ["ok 1"]
    assert q.says("settle q b/t 3") == ["ok 1", "q -> b/t: 1:1!"]


def test_cancelling_the_newcomer_ends_the_quiet():
    """A27."""
    q = sac("subscribe q b/t priority=1", "settle q a/t 1")

    assert q.says("cancel q b/t") == ["ok", "q -> a/t: 3:3"]
    assert statuses(q) == ["a/t: up, active"]


def test_a_newcomer_that_dies_before_the_hand_over_ends_the_quiet():
    """A27."""
    q = sac("subscribe q b/t priority=1", "settle q a/t 1")

    assert q.says("node-down nb gone") == ["ok 1", "b ended: node_gone", "q -> a/t: 3:3"]


def test_a_newcomer_that_is_suspected_is_not_waited_for():
    """A27, A34: node down of either side."""
    q = sac("subscribe q b/t priority=1", "settle q a/t 1")

    assert q.says("node-down nb") == ["ok 1", "q -> a/t: 3:3"]
    assert q.says("node-up nb") == ["ok 1"]
    assert statuses(q) == ["a/t: quiescing, active", "b/t: waiting"]


def test_of_several_newcomers_the_highest_gets_it_and_of_equals_the_first():
    """A27: several newcomers of rising priority."""
    q = sac(
        "subscribe q b/t priority=1", "subscribe q c/t priority=7", "subscribe q d/t priority=7"
    )

    assert q.says("settle q a/t 1-2")[1] == "q: active is c/t"
    assert q.says("settle q c/t 3-4") == ["ok 2"]
    assert q.says("cancel q c/t") == ["ok", "q: active is d/t"]


def test_the_next_newcomer_makes_the_one_before_go_quiet_in_turn():
    """A27."""
    q = sac("subscribe q b/t priority=1 credit=1", "settle q a/t 1-2")
    q("subscribe q c/t priority=2 credit=1")

    assert statuses(q) == ["a/t: waiting", "b/t: quiescing, active", "c/t: waiting"]
    assert q.says("settle q b/t 3") == ["ok 1", "q: active is c/t", "q -> c/t: 4:4"]


def test_the_active_one_may_raise_its_priority_and_stay():
    """A27: registering again under the same tag."""
    q = sac("subscribe q b/t priority=1", "settle q a/t 1")

    assert q.says("subscribe q a/t priority=1 credit=2") == ["subscribed", "q -> a/t: 3:3"]
    assert statuses(q) == ["a/t: up, active", "b/t: waiting"]


def test_the_quiet_one_suspected_is_waited_for_until_it_is_dead():
    """A27, B11: node down of the active side."""
    q = sac("subscribe q b/t priority=1", "node-down na")

    assert q.says("publish q 5") == ["enqueued 5-5"]
    assert q.says("at 59999") == ["ok"]
    assert q.says("at 60000")[1:] == [
        "a ended: lost",
        "q: active is b/t",
        "q -> b/t: 1:1! 2:2! 3:3 4:4 5:5",
    ]


def test_a_suspected_active_one_that_settles_all_hands_over():
    """A27, A34: late acks of a suspected session."""
    q = sac("subscribe q b/t", "node-down na", "settle q a/t 1")

    assert q.says("settle q a/t 2") == ["ok 1", "q: active is b/t", "q -> b/t: 3:3 4:4"]


def test_an_active_one_that_is_back_in_time_stays_active():
    """A27, A34."""
    q = sac("subscribe q b/t", "node-down na", "node-up na")

    assert q.last == "ok 1"
    assert statuses(q) == ["a/t: up, active", "b/t: waiting"]
    assert q.says("settle q a/t 1") == ["ok 1", "q -> a/t: 3:3"]


def test_the_quiet_one_that_times_out_hands_over():
    """A27, A18: timeouts drain it."""
    q = sac("subscribe q b/t priority=1")

    assert q.says("at 90000")[1:] == [
        "q: a/t ended: timeout",
        "a ended: consumer_timeout",
        "q: active is b/t",
        "q -> b/t: 1:1! 2:2! 3:3 4:4",
    ]


def test_going_quiet_survives_a_change_of_leader():
    """A27: the state is the log's, not the leader's. Snapshots are compared by the world."""
    q = sac("subscribe q b/t priority=1")

    assert q.says("leader") == ["q: active is a/t", "q -> a/t: 1:1 2:2"]
    q("settle q a/t 1-2")
    assert q.says("leader") == ["q: active is b/t", "q -> b/t: 3:3 4:4"]


def test_a_hand_over_fences_with_a_larger_token():
    """A27: the old one's tokens are all smaller."""
    q = sac("subscribe q b/t priority=1")
    queue = q.world.queue("q")
    before = max(c.token for c in q.world.machine.consumer_holds(queue, q.world.consumer("a/t")))

    effects = q.world.apply(q.world.command("settle", ["q", "a/t", "1-2"], {})).effects
    tokens = [effect.token for effect in effects if hasattr(effect, "token")]  # ActiveChanged

    assert tokens
    assert min(tokens) > before


def test_an_exclusive_consumer_is_an_error():
    """A29."""
    q = told("queue q single_active_consumer=true", "session a")

    assert q.says("subscribe q a/t exclusive") == ["refused single_active_consumer"]


def test_a_full_prefetch_makes_nobody_else_active():
    """A30."""
    q = sac("subscribe q b/t")

    assert q.says("publish q 5") == ["enqueued 5-5"]
    assert q.says("settle q a/t 1") == ["ok 1", "q -> a/t: 3:3"]


def test_a_paused_queue_still_hands_over():
    """A27, 2.1."""
    q = sac("pause q", "subscribe q b/t priority=1")

    assert q.says("settle q a/t 1-2") == ["ok 2", "q: active is b/t"]
    assert q.says("resume q") == ["ok 2", "q -> b/t: 3:3 4:4"]


def test_what_no_active_consumer_holds_still_counts_for_the_limit():
    """A30: nothing goes straight through while the queue is quiet."""
    q = told("queue q single_active_consumer=true max_length=1 overflow=reject-publish")
    q("session a", "subscribe q a/t", "publish q 1", "session b", "subscribe q b/t priority=1")

    assert q.says("publish q 2 3") == ["enqueued 2-2, refused 1-1"]
