"""Settling, returning and losing clients, row by row: section 1.B, delivery counts, retries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.commands import Discard, Enqueue, QueueConfig, Return, Settle, Transaction
from cluster.machine.effects import Deliver
from cluster.machine.replies import Enqueued, Ok, Refused
from cluster.types import NodeId, QueueId
from tests.machine.told import told

HELD = ("session a", "session b", "subscribe q a/t credit=3", "publish q 1 2 3 4 5")


def test_a_second_settle_is_an_unknown_delivery_and_does_nothing():
    """B02."""
    q = told("queue q", *HELD, "settle q a/t 2")

    assert q.says("settle q a/t 2") == ["refused unknown_delivery 2"]
    assert q.says("settle q a/t 1-3") == ["refused unknown_delivery 2"]
    assert q.says("return q a/t 1 2") == ["refused unknown_delivery 2"]
    assert q.says("discard q a/t 2") == ["refused unknown_delivery 2"]
    assert q.says("show q")[0] == "ready 1 unsettled 3 delayed 0 bytes 4"


def test_a_consumer_cannot_settle_what_another_holds():
    """B02: a tag of another channel."""
    q = told("queue q", *HELD, "subscribe q b/t")

    assert q.says("settle q b/t 1") == ["refused unknown_delivery 1"]
    assert q.says("settle q b/t 4-5") == ["ok 2"]


def test_a_return_that_is_repeated_leaves_a_later_delivery_alone():
    """B11: its outcome was lost, and the message has gone to the same consumer again since."""
    q = told("queue q", *HELD)
    queue, consumer = q.world.queue("q"), q.world.consumer("a/t")
    (held,) = q.world.machine.consumer_holds(queue, consumer)
    command = Return(queue, consumer, [(1, 2)], failed=True, token=held.token)

    assert q.world.apply(command).reply == Ok(2)
    before = q.world.machine.snapshot()
    reply = q.world.apply(command).reply

    assert isinstance(reply, Refused)
    assert (reply.code, reply.detail) == ("unknown_delivery", 1)
    assert q.world.machine.snapshot() == before


@pytest.mark.parametrize("kind", [Settle, Discard, Return])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_said_of_one_delivery_leaves_a_later_one_alone(
    kind: type[Settle | Discard | Return], whole: bool
):
    """B02: a client repeats it after a break, and has the message again that it had returned."""
    q = told("queue q", *HELD)
    queue, consumer = q.world.queue("q"), q.world.consumer("a/t")
    (held,) = q.world.machine.consumer_holds(queue, consumer)
    q("return q a/t 2")
    before = q.world.machine.snapshot()

    command = kind(queue, consumer, [(1, 3)] if whole else [(2, 2)], token=held.token)
    reply = q.world.apply(command).reply

    assert isinstance(reply, Refused)
    assert (reply.code, reply.detail) == ("unknown_delivery", 2)
    assert q.world.machine.snapshot() == before
    newest = max(chunk.token for chunk in q.world.machine.consumer_holds(queue, consumer))
    later = kind(queue, consumer, [(1, 3)], token=newest)
    assert q.world.apply(later).reply == Ok(3)


def test_a_transaction_settles_no_later_delivery():
    """C28: all of it or nothing."""
    q = told("queue q", *HELD)
    queue, consumer = q.world.queue("q"), q.world.consumer("a/t")
    (held,) = q.world.machine.consumer_holds(queue, consumer)
    q("return q a/t 2")

    steps = [
        Settle(queue, consumer, [(1, 1)], held.token),
        Settle(queue, consumer, [(2, 2)], held.token),
    ]
    reply = q.world.apply(Transaction(NodeId("n1"), 1, 1, 1, steps)).reply

    assert isinstance(reply, Refused)
    assert reply.code == "unknown_delivery"
    assert q.says("settle q a/t 1-3")[0] == "ok 3"


@pytest.mark.parametrize("ranges", ["3-1", "0", "2 1", "1-2 2-3", "-1"])
def test_ranges_that_are_none_are_refused(ranges: str):
    """B02, B06."""
    q = told("queue q", *HELD)
    pairs = {"-1": [(-1, 1)]}.get(ranges)
    command = q.world.command("settle", ["q", "a/t", *([] if pairs else ranges.split())], {})
    if pairs:
        command = type(command)(command.queue, command.consumer, pairs)

    before = q.world.machine.snapshot()
    reply = q.world.apply(command).reply

    assert getattr(reply, "code", None) in ("bad_argument", "unknown_delivery")
    assert q.world.machine.snapshot() == before


def test_settling_several_lets_several_through():
    """B06, B14, B19."""
    q = told("queue q", *HELD)

    assert q.says("settle q a/t 1-2") == ["ok 2", "q -> a/t: 4:4 5:5"]


def test_four_unsettled_and_a_prefetch_of_four():
    """B20."""
    q = told("queue q", "session a", "subscribe q a/t credit=4", "publish q 5 6 7 8 9 10")

    assert q.says("settle q a/t 3") == ["ok 1", "q -> a/t: 5:9"]
    assert q.says("settle q a/t 5") == ["ok 1", "q -> a/t: 6:10"]


def test_a_returned_message_is_in_its_original_place():
    """B08."""
    q = told("queue q", *HELD, "cancel q a/t", "return q a/t 3", "return q a/t 1")

    assert [line.split()[0] for line in q.says("peek q")] == ["1:1!", "2:2", "3:3!", "4:4", "5:5"]
    assert q.says("subscribe q b/t credit=2")[1:] == ["q -> b/t: 1:1! 3:3!"]


def test_a_returned_message_is_in_its_place_within_its_priority():
    """B08, C24: and a later one of higher priority comes first."""
    q = told("queue q max_priority=5", "session a", "session b", "subscribe q a/t credit=2")
    q("publish q low:p1 high:p5 low2:p1 mid:p3", "cancel q a/t")

    assert q.says("peek q")[1] == "2:high unsettled by a/t, due 1800000, priority 5"
    q("return q a/t 4", "return q a/t 2", "publish q top:p5")
    assert q.says("subscribe q b/t")[1:] == ["q -> b/t: 2:high! 5:top 4:mid! 1:low 3:low2"]


def test_a_returned_message_whose_time_is_over_dies_and_the_next_one_is_delivered():
    """B08 with TTL and prefetch."""
    q = told("queue q message_ttl_ms=100", "session a", "subscribe q a/t credit=1", "publish q 1")
    q("clock 50", "publish q 2", "clock 120")

    assert q.says("return q a/t 1") == ["ok 1", "q -> a/t: 2:2"]
    assert q.says("peek q") == ["2:2 unsettled by a/t, due 1800120, expires 150"]


def test_a_return_does_not_renew_the_time_to_live():
    """B08, C16, 1.E 13."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1:t100", "clock 60")
    q("cancel q a/t", "return q a/t 1")

    assert q.says("peek q") == ["1:1! ready, expires 100"]


def test_a_redelivery_says_so_whoever_gets_it():
    """B12."""
    q = told("queue q", *HELD, "cancel q a/t", "return q a/t 1")

    assert q.says("get q b") == ["got 1:1! (2 ready)"]


def test_whatever_was_ever_handed_out_is_a_redelivery():
    """B12: also when the session was lost, timed out or closed."""
    q = told("queue q consumer_timeout_ms=100", "session a", "session b", "session c resume=10")
    q("subscribe q a/t credit=1", "subscribe q b/t credit=1", "subscribe q c/t credit=1")
    q("publish q 1 2 3 4", "close a", "detach c", "at 10", "at 100")

    assert [line.split()[0] for line in q.says("peek q")] == ["1:1!", "2:2!", "3:3!#1", "4:4"]


def test_a_change_of_leader_repeats_what_is_in_flight_under_the_same_tokens():
    """B11, B12: nothing is requeued, so nothing is counted."""
    q = told("queue q", *HELD)
    first = q.world.machine.on_leader()
    again = q.world.machine.on_leader()

    assert isinstance(first[0], Deliver)
    assert first == again
    assert q.says("settle q a/t 1-3")[0] == "ok 3"


def test_a_closed_session_returns_all_it_holds_once():
    """B11."""
    q = told("queue q", *HELD, "close a")

    assert q.says("close a") == ["ok"]
    assert q.says("detach a") == ["ok"]
    assert q.says("show q") == ["ready 5 unsettled 0 delayed 0 bytes 5"]


def test_a_session_that_was_only_cut_off_settles_when_it_is_back():
    """B11: no double requeue when it was only partitioned."""
    q = told("queue q", *HELD, "subscribe q b/t", "node-down n1", "node-up n1")

    assert q.says("settle q a/t 1-3")[0] == "ok 3"
    assert q.says("show q")[0] == "ready 0 unsettled 2 delayed 0 bytes 2"


def test_a_settle_by_a_suspected_session_counts():
    """B11: its ack arrives on another way before its notice of life."""
    q = told("queue q", *HELD, "node-down n1")

    assert q.says("settle q a/t 1") == ["ok 1"]
    assert q.says("at 60000")[1:] == ["a ended: lost", "b ended: lost"]
    assert [line.split()[0] for line in q.says("peek q")] == ["2:2!", "3:3!", "4:4", "5:5"]


def test_a_session_that_moved_to_another_node_survives_the_old_one():
    """B11."""
    q = told("queue q", "session a resume=500", "subscribe q a/t", "publish q 1", "detach a")
    q("session a node=n2 resume=500")

    assert q.says("detach a") == ["ok"]
    assert q.says("node-down n1 gone") == ["ok"]
    assert q.says("at 60001") == ["ok"]
    assert q.says("settle q a/t 1") == ["ok 1"]


def test_a_dead_node_returns_what_its_sessions_hold_without_counting():
    """B11, 2.1: partition and node failures do not count."""
    q = told("queue q delivery_limit=0", *HELD)

    assert q.says("node-down n1 gone")[1:] == ["a ended: node_gone", "b ended: node_gone"]
    assert [line.split()[0] for line in q.says("peek q")][:3] == ["1:1!", "2:2!", "3:3!"]


def test_repeated_news_of_a_dead_node_does_not_prolong_the_wait():
    """B11."""
    q = told("queue q", "session a resume=1000", "subscribe q a/t", "publish q 1")
    q("node-down n1 gone", "clock 900", "node-down n1 gone")

    assert q.says("at 1000") == ["ok", "a ended: lost"]


def test_a_node_first_silent_then_gone_is_waited_for_no_longer_than_its_sessions_asked():
    """B11."""
    q = told("queue q", "session a resume=1000", "subscribe q a/t", "publish q 1")
    q("node-down n1", "clock 500", "node-down n1 gone")

    assert q.says("at 1499") == ["ok"]
    assert q.says("at 1500") == ["ok", "a ended: lost"]


def test_news_of_a_predecessor_ends_nothing():
    """B11."""
    q = told("queue q", "session a incarnation=7", "subscribe q a/t", "publish q 1")

    assert q.says("node-down n1 incarnation=6 gone") == ["ok"]
    assert q.says("detach a incarnation=6") == ["ok"]
    assert q.says("session b incarnation=6") == ["refused no_session 7"]
    assert q.says("settle q a/t 1") == ["ok 1"]


# --- what counts as a failed delivery -------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "counted"),
    [
        ("return q a/t 1", False),  # released, nack
        ("return q a/t 1 failed", True),  # rejected and requeued, modified
        ("detach a", True),  # the client crashed
        ("close a", False),  # it said goodbye
        ("node-down n1 gone", False),  # its node crashed
        ("node-up n1 incarnation=2", False),
        ("at 1800000", False),  # consumer timeout
    ],
)
def test_what_counts_as_a_failed_delivery(how: str, counted: bool):
    """2.1, 1.E 9."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1", "pause q", how)

    assert q.says("peek q")[0].split()[0] == ("1:1!#1" if counted else "1:1!")


def test_a_client_lost_beyond_its_time_counts():
    """2.1."""
    q = told("queue q", "session a resume=50", "subscribe q a/t", "publish q 1", "detach a")
    q("node-down n1 gone", "node-up n1", "at 50")

    assert q.says("peek q") == ["1:1!#1 ready"]


def test_over_the_limit_means_dead_at_the_limit_means_alive():
    """2.1: delivery_count > delivery_limit, checked on return."""
    q = told("queue dead", "queue q delivery_limit=2 dead_letter_queue=dead", "session a")
    q("subscribe q a/t credit=1", "publish q 1")

    assert q.says("return q a/t 1 failed") == ["ok 1", "q -> a/t: 1:1!#1"]
    assert q.says("return q a/t 1 failed") == ["ok 1", "q -> a/t: 1:1!#2"]
    assert q.says("return q a/t 1 failed") == ["ok 1", "q: 1 over the delivery limit"]
    assert q.says("peek dead") == ["1:1+q/delivery_limit/1 ready"]


def test_a_limit_of_zero_allows_no_failure():
    """2.1."""
    q = told("queue q delivery_limit=0", "session a", "subscribe q a/t credit=1", "publish q 1")

    assert q.says("return q a/t 1") == ["ok 1", "q -> a/t: 1:1!"]
    assert q.says("return q a/t 1 failed") == ["ok 1", "q: 1 over the delivery limit"]
    assert q.says("peek q") == ["nothing"]


def test_a_lowered_limit_is_checked_on_the_next_return_of_any_kind():
    """2.1: checked on return."""
    q = told("queue q", "session a", "subscribe q a/t credit=1", "publish q 1")
    q("return q a/t 1 failed", "return q a/t 1 failed", "policy q delivery_limit=1")

    assert q.says("return q a/t 1") == ["ok 1", "q: 1 over the delivery limit"]
    assert q.says("peek q") == ["nothing"]


def test_the_default_limit_is_twenty():
    """2.1: 20 since 4.0."""
    assert QueueConfig().delivery_limit == 20


def test_no_limit_is_none():
    """2.1: -1."""
    q = told("queue q delivery_limit=none", "session a", "subscribe q a/t credit=1", "publish q 1")
    for _ in range(30):
        q("return q a/t 1 failed")

    assert q.last.endswith("1:1!#30")


# --- delayed retry --------------------------------------------------------------------------------


def test_the_delay_grows_linearly_up_to_its_maximum():
    """2.1: min(min x delivery_count, max)."""
    q = told("queue q delayed_retry_type=all delayed_retry_min_ms=10 delayed_retry_max_ms=25")
    q("session a", "subscribe q a/t credit=1", "publish q 1")

    for due_ms in (10, 30, 55, 80):
        q("return q a/t 1 failed")
        assert q.says("peek q")[0].endswith(f"delayed, due {due_ms}")
        q(f"at {due_ms}")


def test_a_delayed_message_goes_back_to_its_place():
    """2.1, B08."""
    q = told("queue q delayed_retry_type=all delayed_retry_min_ms=10", "session a")
    q("subscribe q a/t credit=1", "publish q 1 2 3", "return q a/t 1", "at 10")

    assert q.says("settle q a/t 2") == ["ok 1", "q -> a/t: 1:1!"]


def test_purge_drops_what_is_delayed_and_spares_what_is_in_flight():
    """2.1: delayed messages count like ready ones."""
    q = told("queue q", *HELD, "return q a/t 1 delay=50", "publish q x at=90")

    assert q.says("purge q") == ["ok 3"]
    assert q.says("show q")[0] == "ready 0 unsettled 3 delayed 0 bytes 3"
    assert q.says("at 100") == ["ok"]


def test_what_waits_for_its_retry_counts_to_the_limit():
    """2.1: count to limits."""
    q = told(
        "queue q max_length=1 overflow=reject-publish", "session a", "subscribe q a/t credit=1"
    )
    q("publish q 1", "return q a/t 1 delay=50", "cancel q a/t")

    assert q.says("publish q 2") == ["enqueued nothing, refused 0-0"]


def test_a_message_may_expire_while_it_waits_for_its_retry():
    """2.1, C16: it is never delivered again."""
    q = told("queue q message_ttl_ms=100", "session a", "subscribe q a/t", "publish q 1")
    q("return q a/t 1 delay=200")

    assert q.says("at 200") == ["ok"]
    assert q.says("peek q") == ["nothing"]


@pytest.mark.parametrize(
    ("before", "after", "left", "comes"),
    [("100", "", "1:1! delayed, due 200", ["q -> a/t: 1:1!"]), ("", "50", "nothing", [])],
)
def test_what_is_put_aside_follows_the_ttl(before: str, after: str, left: str, comes: list[str]):
    ttl = [each and f" message_ttl_ms={each}" for each in (before, after)]
    q = told("upgrade 5", "queue q" + ttl[0], "session a", "subscribe q a/t credit=1")
    q("publish q 1", "return q a/t 1 delay=200", "policy q" + ttl[1])

    assert (q.says("at 150"), q.says("peek q")) == (["ok"], [left])
    assert q.says("at 200") == ["ok", *comes]


# --- exactly one outcome --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 0)), min_size=1, max_size=12),
    st.sampled_from(["reject-publish", "reject-publish-dlx", "drop-head"]),
)
def test_every_message_of_a_batch_has_exactly_one_outcome_and_keeps_it(
    batches: list[tuple[int, int]], overflow: str
):
    """B27: stored, refused or duplicate, and the same again when it is resent."""
    q = told(f"queue q max_length=5 overflow={overflow}")
    outcomes: dict[int, bool] = {}  # number -> was it refused
    following = 1
    for count, back in batches:
        first = max(1, following + back)
        bodies = [b"x"] * count
        reply = q.world.apply(Enqueue(QueueId(1), "p", first, bodies)).reply
        assert isinstance(reply, Enqueued)
        refused = {n for start, end in reply.refused for n in range(start, end + 1)}
        assert reply.stored + reply.duplicates + len(refused) == count
        assert refused <= set(range(count))
        for offset in range(count):
            known = outcomes.setdefault(first + offset, offset in refused)
            assert known == (offset in refused), "another outcome than the first time"
        following = max(following, first + count)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9
    )
)
def test_a_batch_with_refused_and_repeated_messages_answers_for_each(
    parts: list[tuple[str | None, bool]],
):
    """B27: ids of the window, the limit, and cycles in one batch."""
    q = told("queue q max_length=2 overflow=reject-publish dedup_window_ms=1000")
    deaths = [{"queue": "q", "reason": "expired", "count": 1}]
    attrs = [({4: name} if name else {}) | ({5: deaths} if dead else {}) for name, dead in parts]

    reply = q.world.apply(Enqueue(QueueId(1), None, 0, [b"x"] * len(parts), attrs=attrs)).reply

    assert isinstance(reply, Enqueued)
    refused = sum(end - start + 1 for start, end in reply.refused)
    assert reply.stored + reply.duplicates + refused == len(parts)
    assert reply.stored <= 2
