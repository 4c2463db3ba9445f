"""Consumers, row by row of the specification: registering, prefetch, priority, timeout."""

from __future__ import annotations

import pytest

from cluster.machine.commands import Cancel, Enqueue, QueueConfig, UpdateQueue
from cluster.machine.replies import Got, Ok, Refused
from cluster.types import QueueId
from tests.machine.told import told


def test_what_is_ready_is_delivered_at_registration():
    """A02."""
    q = told("queue q", "session a", "publish q 1 2")

    assert q.says("subscribe q a/t") == ["subscribed", "q -> a/t: 1:1 2:2"]


def test_an_empty_queue_delivers_what_is_enqueued_next():
    """A02."""
    q = told("queue q", "session a", "subscribe q a/t")

    assert q.last == "subscribed"
    assert q.says("publish q 1") == ["enqueued 1-1", "q -> a/t: 1:1"]


def test_automatic_settle_needs_no_settle_and_keeps_nothing_in_flight():
    """A12, B10."""
    q = told("queue q", "session a", "subscribe q a/t auto", "publish q 1 2 3")

    assert q.says("show q") == [
        "ready 0 unsettled 0 delayed 0 bytes 0",
        "a/t: up, active, holds 0 of any",
    ]
    assert q.says("close a") == ["ok 1", "a ended: closed"]
    assert q.says("peek q") == ["nothing"]


def test_prefetch_does_not_bound_automatic_settle():
    """A13, B10."""
    q = told("queue q", "session a", "subscribe q a/t auto credit=1")

    assert q.says("publish q 1 2 3") == ["enqueued 1-3", "q -> a/t: 1:1 2:2 3:3"]


def test_a_cancelled_consumer_gets_nothing_new_and_keeps_what_is_in_flight():
    """A16."""
    q = told("queue q", "session a", "subscribe q a/t", "publish q 1 2", "cancel q a/t")

    assert q.says("publish q 3") == ["enqueued 3-3"]
    assert q.says("settle q a/t 1") == ["ok 1"]
    assert q.says("discard q a/t 2") == ["ok 1"]
    assert q.says("peek q") == ["3:3 ready"]


def test_what_a_cancelled_consumer_holds_is_requeued_when_its_session_closes():
    """A16, B11."""
    q = told("queue q", "session a", "subscribe q a/t", "publish q 1 2", "cancel q a/t")

    assert q.says("close a") == ["ok 1", "a ended: closed"]
    assert q.says("peek q") == ["1:1! ready", "2:2! ready"]


@pytest.mark.parametrize("cancelled_before", [False, True])
def test_a_consumer_that_is_cancelled_to_give_back_leaves_nothing_behind(cancelled_before: bool):
    """A16, B11: also what was decided for it and has not reached its client."""
    q = told("queue q", "session a", "subscribe q a/t", "publish q 1 2", "session b")
    if cancelled_before:
        q("cancel q a/t")
    command = Cancel(q.world.queue("q"), q.world.consumer("a/t"), give_back=True)

    assert q.world.apply(command).reply == Ok(2)
    assert q.says("peek q") == ["1:1! ready", "2:2! ready"]
    reply = q.world.apply(command).reply
    assert isinstance(reply, Refused)
    assert reply.code == "no_consumer"


def test_what_a_cancelled_consumer_returns_goes_to_another():
    """A16."""
    q = told("queue q", "session a", "subscribe q a/t", "publish q 1 2", "cancel q a/t")
    q("session b", "subscribe q b/t")

    assert q.says("return q a/t 1") == ["ok 1", "q -> b/t: 1:1!"]
    assert q.says("return q a/t 2") == ["ok 1", "q -> b/t: 2:2!"]
    assert q.says("return q a/t 2") == ["refused no_consumer"]


def test_a_cancelled_consumer_still_times_out():
    """A16, A18."""
    q = told("queue q consumer_timeout_ms=100", "session a", "subscribe q a/t", "publish q 1")
    q("cancel q a/t")

    assert q.says("at 100") == ["ok", "q: a/t ended: timeout", "a ended: consumer_timeout"]
    assert q.says("peek q") == ["1:1! ready"]


def test_get_takes_in_order_and_an_empty_queue_gives_nothing():
    """A17."""
    q = told("queue q", "session a", "publish q 1 2")

    assert q.says("get q a") == ["got 1:1 (1 ready)"]
    assert q.says("get q a auto") == ["got 2:2 (0 ready)"]
    assert q.says("get q a") == ["got nothing (0 ready)"]


def test_get_on_a_single_active_queue_is_refused():
    """A17: 405 RESOURCE_LOCKED."""
    q = told("queue q single_active_consumer=true", "session a", "publish q 1")

    assert q.says("get q a") == ["refused single_active_consumer"]
    assert q.says("get q a auto") == ["refused single_active_consumer"]


def test_get_by_a_detached_session_is_refused():
    """A17: nobody is there to receive it."""
    q = told("queue q", "session a resume=1000", "publish q 1", "detach a")

    assert q.says("get q a") == ["refused no_session"]
    assert q.says("get q a auto") == ["refused no_session"]
    assert q.says("peek q") == ["1:1 ready"]


def test_what_a_suspected_session_got_stays_with_it_and_comes_back_when_it_dies():
    """A17, B11."""
    q = told("queue q", "session a resume=1000", "publish q 1", "get q a", "node-down n1")

    assert q.says("peek q") == ["1:1 unsettled by a/get1, due 1800000"]
    assert q.says("node-up n1") == ["ok 1"]
    assert q.says("settle q a/get1 1") == ["ok 1"]


def test_get_finds_a_delayed_message_that_is_due_at_this_very_moment():
    """A17, C23."""
    q = told("queue q", "session a", "publish q 1 at=100", "clock 100")

    assert q.says("get q a") == ["got 1:1 (0 ready)"]


def test_get_never_gives_an_expired_message_even_before_a_tick():
    """A17, C16."""
    q = told("queue q message_ttl_ms=100", "session a", "publish q 1", "clock 90", "publish q 2")
    q("clock 101")

    assert q.says("get q a 5") == ["got 2:2 (0 ready)"]


def test_one_late_delivery_returns_everything_of_its_session_in_all_queues():
    """A18."""
    q = told("queue q consumer_timeout_ms=100", "queue r", "session a")
    q("subscribe q a/t", "subscribe r a/u", "publish r x", "publish r y", "get r a")
    q("publish q 1", "clock 50", "publish q 2", "settle r a/u 1")

    assert q.says("at 100") == ["ok", "q: a/t ended: timeout", "a ended: consumer_timeout"]
    assert q.says("peek q") == ["1:1! ready", "2:2! ready"]
    assert q.says("peek r") == ["2:y! ready"]


def test_sessions_that_time_out_at_once_end_once_each():
    """A18."""
    q = told("queue q consumer_timeout_ms=100", "queue r consumer_timeout_ms=100")
    q("session a", "session b", "subscribe q a/t credit=1", "subscribe r a/u", "subscribe q b/t")
    q("publish q 1 2", "publish r 3")

    said = q.says("at 100")

    assert said.count("a ended: consumer_timeout") == 1
    assert said.count("b ended: consumer_timeout") == 1
    assert q.says("peek q") == ["1:1! ready", "2:2! ready"]
    assert q.says("peek r") == ["1:3! ready"]


def test_a_settle_that_comes_too_late_finds_no_consumer():
    """A18, B02."""
    q = told("queue q consumer_timeout_ms=100", "session a", "subscribe q a/t", "publish q 1")
    q("at 100")

    assert q.says("settle q a/t 1") == ["refused no_consumer"]


def test_a_timeout_is_no_failed_delivery():
    """A18, 2.1: a consumer timeout does not count."""
    q = told("queue q consumer_timeout_ms=100 delivery_limit=0", "session a", "subscribe q a/t")
    q("publish q 1", "at 100")

    assert q.says("peek q") == ["1:1! ready"]


def test_a_suspected_session_times_out_all_the_same():
    """A18: the deadline is the queue's, whatever became of the client."""
    q = told("queue q consumer_timeout_ms=100", "session a resume=9000", "subscribe q a/t")
    q("publish q 1", "detach a")

    assert q.says("at 100") == ["ok", "q: a/t ended: timeout", "a ended: consumer_timeout"]


def test_the_timeout_can_be_off():
    """A19: `undefined`."""
    q = told("queue q consumer_timeout_ms=none", "session a", "subscribe q a/t", "publish q 1")

    assert q.says("due") == ["never"]
    q("subscribe q a/t timeout=0", "policy q consumer_timeout_ms=50")
    assert q.says("publish q 2")[1:] == ["q -> a/t: 2:2"]
    assert q.says("due") == ["never"]


def test_the_default_timeout_is_half_an_hour():
    """A18: 1 800 000 ms."""
    assert QueueConfig().consumer_timeout_ms == 1_800_000


def test_the_timeout_of_a_consumer_wins_over_the_one_of_its_queue():
    """A21: 4.3 adds an argument of the consumer."""
    q = told("queue q consumer_timeout_ms=1000", "session a", "subscribe q a/t timeout=70")
    q("publish q 1")

    assert q.says("due") == ["70"]


def test_a_policy_sets_the_timeout_of_what_is_delivered_from_then_on():
    """A20."""
    q = told("queue q", "session a", "subscribe q a/t", "policy q consumer_timeout_ms=500")
    q("publish q 1")

    assert q.says("due") == ["500"]


def test_an_extended_lease_may_be_longer_than_the_timeout_of_the_queue():
    """2.1: renewal of a lock."""
    q = told("queue q consumer_timeout_ms=100", "session a", "subscribe q a/t", "publish q 1 2")
    q("extend q a/t 1 timeout=5000")

    assert q.says("at 100")[1:] == ["q: a/t ended: timeout", "a ended: consumer_timeout"]
    q("session a", "subscribe q a/t", "extend q a/t 1-2 timeout=5000")
    assert q.says("at 5099") == ["ok"]
    assert q.says("at 5100")[1:] == ["q: a/t ended: timeout", "a ended: consumer_timeout"]


def test_only_what_is_held_can_be_extended():
    """2.1."""
    q = told("queue q consumer_timeout_ms=100", "session a", "subscribe q a/t", "publish q 1")

    assert q.says("extend q a/t 1-2") == ["refused unknown_delivery 2"]
    assert q.says("peek q") == ["1:1 unsettled by a/t, due 100"]


def test_an_exclusive_consumer_is_the_only_one():
    """A24."""
    q = told("queue q", "session a", "session b", "subscribe q a/t")

    assert q.says("subscribe q b/t exclusive") == ["refused exclusive_use"]
    q("cancel q a/t", "subscribe q b/t exclusive")
    assert q.last == "subscribed"
    assert q.says("subscribe q a/t") == ["refused exclusive_use"]
    assert q.says("subscribe q b/u") == ["refused exclusive_use"]


def test_an_exclusive_consumer_that_is_suspected_still_excludes_and_a_dead_one_does_not():
    """A24."""
    q = told("queue q", "session a resume=50", "session b", "subscribe q a/t exclusive", "detach a")

    assert q.says("subscribe q b/t") == ["refused exclusive_use"]
    q("at 50")
    assert q.says("subscribe q b/t") == ["subscribed"]


def test_a_consumer_that_only_has_unsettled_messages_does_not_prevent_exclusive_use():
    """A24, A16."""
    q = told("queue q", "session a", "session b", "subscribe q a/t", "publish q 1", "cancel q a/t")

    assert q.says("subscribe q b/t exclusive") == ["subscribed"]


def test_a_get_is_allowed_beside_an_exclusive_consumer_without_credit():
    """A24: basic.get is no consumer."""
    q = told("queue q", "session a", "session b", "subscribe q a/t exclusive credit=1")
    q("publish q 1 2")

    assert q.says("get q b") == ["got 2:2 (0 ready)"]


def test_without_a_single_active_consumer_all_take_turns():
    """A32, A36, C31."""
    q = told("queue q", "session a", "session b", "subscribe q a/t", "subscribe q b/t")

    got = [q.says(f"publish q {n}")[1][5:6] for n in range(6)]

    assert got == ["a", "b"] * 3


def test_turns_are_kept_when_one_has_no_credit_for_a_while():
    """A36."""
    q = told("queue q", "session a", "session b", "subscribe q a/t credit=1", "subscribe q b/t")

    got = [q.says(f"publish q {n}")[1][5:6] for n in range(4)]

    assert got == ["a", "b", "b", "b"]
    q("settle q a/t 1")
    assert [q.says(f"publish q {n}")[1][5:6] for n in range(2)] == ["b", "a"]


def test_a_suspected_consumer_is_not_active_and_gets_nothing():
    """A34."""
    q = told("queue q", "session a node=n1", "session b node=n2", "subscribe q a/t")
    q("subscribe q b/t", "node-down n1")

    assert q.says("publish q 1 2") == ["enqueued 1-2", "q -> b/t: 1:1 2:2"]
    assert q.says("show q")[1:] == [
        "a/t: suspected, holds 0 of any",
        "b/t: up, active, holds 2 of any",
    ]


def test_the_lower_priority_gets_something_only_while_the_higher_is_blocked():
    """A35."""
    q = told("queue q", "session a", "subscribe q a/low", "subscribe q a/high priority=2 credit=2")

    assert q.says("publish q 1 2 3")[1:] == ["q -> a/high: 1:1 2:2", "q -> a/low: 3:3"]
    assert q.says("settle q a/high 1") == ["ok 1"]
    assert q.says("publish q 4")[1:] == ["q -> a/high: 4:4"]


def test_a_large_batch_is_given_to_the_highest_priority_first():
    """A35."""
    bodies = " ".join(f"m{n}" for n in range(1, 31))
    q = told("queue q", "session a", "subscribe q a/low", "subscribe q a/high priority=9 credit=29")

    said = q.says(f"publish q {bodies}")[1:]

    assert [line.split(":")[0] for line in said] == ["q -> a/high", "q -> a/low"]
    assert said[1] == "q -> a/low: 30:m30"


def test_a_consumer_comes_back_with_its_priority_its_credit_and_what_it_holds():
    """A34, B11: a resumed session."""
    q = told("queue q", "session a resume=100", "session b", "subscribe q b/t credit=5")
    q("subscribe q a/t priority=3 credit=2", "publish q 1", "detach a", "publish q 2")

    assert q.says("session a resume=100 node=n2") == ["ok 1"]
    assert q.says("show q")[1:] == [
        "b/t: up, active, holds 1 of 5",
        "a/t: up, active, holds 1 of 2",
    ]
    assert q.says("publish q 3 4")[1:] == ["q -> a/t: 3:3", "q -> b/t: 4:4"]


def test_less_credit_than_is_held_takes_nothing_back():
    """B15."""
    q = told("queue q", "session a", "subscribe q a/t credit=3", "publish q 1 2 3 4")

    assert q.says("credit q a/t 1") == ["ok"]
    assert q.says("settle q a/t 1-2") == ["ok 2"]
    assert q.says("settle q a/t 3") == ["ok 1", "q -> a/t: 4:4"]


def test_credit_zero_is_unlimited():
    """B16, B17."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1 2 3")

    assert q.says("credit q a/t 0") == ["ok", "q -> a/t: 2:2 3:3"]


def test_a_paused_queue_hands_out_nothing_at_all():
    """2.1: pause."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1", "pause q")

    assert q.says("publish q 2") == ["enqueued 2-2"]
    assert q.says("settle q a/t 1") == ["ok 1"]
    assert q.says("get q a") == ["got nothing (1 ready)"]
    assert q.says("subscribe q a/u") == ["subscribed"]
    assert q.says("resume q") == ["ok 1", "q -> a/t: 2:2"]


def test_messages_expire_in_a_paused_queue():
    """2.1, C14."""
    q = told("queue q message_ttl_ms=10", "pause q", "publish q 1")

    assert q.says("due") == ["10"]
    assert q.says("at 10") == ["ok"]
    assert q.says("peek q") == ["nothing"]


def test_single_active_is_not_for_a_policy_to_say():
    """A31."""
    q = told("queue q", "session a", "subscribe q a/t", "subscribe q a/u")

    q.world.apply(UpdateQueue(QueueId(1), QueueConfig(single_active_consumer=True)))

    assert q.says("publish q 1 2")[1:] == ["q -> a/t: 1:1", "q -> a/u: 2:2"]


def test_a_get_and_a_batch_agree_on_what_was_given():
    """A17: several at once are one decision under one token."""
    q = told("queue q", "session a")
    q.world.apply(Enqueue(QueueId(1), None, 0, [b"1", b"2", b"3"]))

    reply = q.world.apply(q.world.command("get", ["q", "a", "2"], {})).reply

    assert isinstance(reply, Got)
    assert [(c.first, c.bodies.count) for c in reply.chunks] == [(1, 2)]


def test_two_decisions_of_one_command_have_two_tokens():
    """B12: who is fenced by a token is told apart from who was served in the same moment."""
    q = told(
        "queue q",
        "session a",
        "subscribe q a/t credit=1",
        "subscribe q a/u credit=1",
        "publish q 1 2",
    )
    world = q.world

    held = [
        world.machine.consumer_holds(world.queue("q"), world.consumer(name))
        for name in ("a/t", "a/u")
    ]

    tokens = [chunk.token for chunks in held for chunk in chunks or ()]
    assert len(tokens) == len(set(tokens)) == 2
