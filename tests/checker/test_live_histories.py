"""What clients of live nodes are not told: tokens, positions, how often it was handed out."""

from __future__ import annotations

from typing import Any

from chaos.checker import (
    ack_finality,
    dead_letters,
    delivery_count,
    publisher_order,
    sac_exclusion,
    total_queue,
    transactions,
)
from chaos.history import OpType
from tests.checker.histories import Told


class Live(Told):
    """Deliveries as AMQP tells them: a flag, and little else."""

    def got(
        self,
        *messages: str,
        consumer: str = "w/c0#1",
        again: bool = False,
        failed: int | None = 0,
        token: int | None = None,
        queue: str = "q",
    ) -> None:
        value = {
            "queue": queue,
            "consumer": consumer,
            "token": token,
            "first": None,
            "messages": list(messages),
            "delivery_count": failed,
            "acquired_count": int(again),
        }
        self.saw(consumer.partition("#")[0], "deliver", value)

    def acked(
        self, *messages: str, consumer: str = "w/c0#1", ended: OpType = "ok", token: Any = None
    ) -> None:
        value = {"queue": "q", "consumer": consumer, "token": token, "messages": list(messages)}
        self.end(self.invoke(consumer.partition("#")[0], "settle", value), ended)

    def moved(self, take: str | None, *puts: tuple[str, str], ended: OpType | None = "ok") -> None:
        value = {"publishes": [list(put) for put in puts], "settles": [["q", take]] if take else []}
        invoked = self.invoke("t", "transaction", value)
        if ended is not None:
            self.end(invoked, ended)


def test_a_second_delivery_without_flag_or_token_is_a_duplicate() -> None:
    for consumer in ("w/c0#1", "w/c1#1"):
        live = Live()
        live.publish(1)
        live.got("p:1")
        live.got("p:1", consumer=consumer)

        assert total_queue(live.ops).counts["duplicated without the flag"] == 1


def test_a_flagged_one_is_none_even_when_it_is_the_first_that_is_seen() -> None:
    live = Live()
    live.publish(1)
    live.got("p:1", again=True)
    live.got("p:1", again=True, consumer="w/c1#1")
    live.drain()

    assert total_queue(live.ops).valid is True


def test_the_first_decision_may_arrive_last_by_a_slow_connection() -> None:
    slow, same = Live(), Live()
    for live, first in ((slow, "w/c1#1"), (same, "w/c0#1")):
        live.publish(1)
        live.got("p:1", again=True, consumer="w/c0#1")
        live.got("p:1", consumer=first)
        live.drain()

    assert total_queue(slow.ops).valid is True
    assert total_queue(same.ops).valid is False  # one connection keeps the order


def test_one_message_with_a_token_and_again_without_is_judged_by_the_flag() -> None:
    live = Live()
    live.publish(1)
    live.got("p:1", token=5)
    live.got("p:1", consumer="w/c1#1")
    live.drain()

    assert total_queue(live.ops).valid is False


def test_a_refused_publish_that_is_tried_again_may_come_out() -> None:
    live, refused = Live(), Live()
    live.publish(1, ended="refused")
    live.publish(1, ended="unknown")
    refused.publish(1, ended="refused")
    refused.publish(1, ended="refused")
    for each in (live, refused):
        each.got("p:1")

    assert total_queue(live.ops).valid is True
    assert total_queue(refused.ops).valid is False


def test_what_is_settled_for_sure_is_not_delivered_later() -> None:
    live = Live()
    live.got("p:1")
    live.acked("p:1")
    live.got("p:1", again=True, consumer="w/c1#1")

    assert ack_finality(live.ops).counts["delivered after its settle"] == 1


def test_an_ack_that_nobody_answers_settles_nothing() -> None:
    live = Live()
    live.got("p:1")
    live.acked("p:1", ended="unknown")
    live.got("p:1", again=True, consumer="w/c1#1")

    assert ack_finality(live.ops).valid is True


def test_an_earlier_decision_that_arrives_after_the_settle_breaks_nothing() -> None:
    live = Live()
    live.got("p:1", again=True, consumer="w/c1#1")
    live.acked("p:1", consumer="w/c1#1")
    live.got("p:1", consumer="w/c0#1")  # from before it was handed to the other
    live.got("p:1", again=True, consumer="w/c2#1")  # perhaps

    assert ack_finality(live.ops).valid is True


def test_more_failures_than_at_the_settle_are_of_a_later_decision() -> None:
    live = Live()
    live.got("p:1", again=True, failed=1, token=7)
    live.acked("p:1", token=7)
    live.got("p:1", again=True, failed=2, consumer="w/c1#1")

    assert ack_finality(live.ops).valid is False


def test_order_without_tokens_is_that_of_one_consumer() -> None:
    same, others = Live(), Live()
    for live, second in ((same, "w/c0#1"), (others, "w/c1#1")):
        live.publish(1, 2)
        live.got("p:2")
        live.got("p:1", consumer=second)

    assert publisher_order(same.ops).valid is False
    assert publisher_order(others.ops).valid is True


def test_a_publish_of_unknown_outcome_may_be_stored_late() -> None:
    unknown, whole = Live(), Live()
    unknown.publish(1, ended="unknown")
    whole.publish(1, ended="unknown", ordered=True)
    for live in (unknown, whole):
        live.publish(2)
        live.got("p:2", "p:1")

    assert publisher_order(unknown.ops).valid is True
    assert publisher_order(whole.ops).valid is False


def test_a_flag_is_no_count() -> None:
    live = Live()
    live.got("p:1")
    live.got("p:1", again=True, failed=2)
    live.got("p:1", again=True, failed=3)
    live.got("p:1", again=True, failed=None)

    assert delivery_count(3)(live.ops).valid is True
    assert delivery_count(2)(live.ops).counts["over the limit"] == 1


def test_failures_go_back_only_where_order_is_known() -> None:
    same, others = Live(), Live()
    for live, second in ((same, "w/c0#1"), (others, "w/c1#1")):
        live.got("p:1", again=True, failed=2)
        live.got("p:1", again=True, failed=1, consumer=second)

    assert delivery_count(None)(same.ops).valid is False
    assert delivery_count(None)(others.ops).valid is True


def test_failures_of_what_was_never_handed_out_are_wrong() -> None:
    live = Live()
    live.got("p:1", failed=1)

    assert delivery_count(None)(live.ops).valid is False


def test_deliveries_without_a_token_exclude_nobody() -> None:
    live = Live()
    live.got("p:1", consumer="w/c0#1")
    live.got("p:1", again=True, consumer="w/c1#1")
    live.acked("p:1", consumer="w/c0#1")

    assert sac_exclusion(lambda _: True)(live.ops).valid is True


def test_exclusion_knows_consumers_by_name() -> None:
    live = Live()
    live.got("p:1", consumer="w/c0#1", token=1)
    live.got("p:1", again=True, consumer="w/c1#1", token=2)
    live.acked("p:1", consumer="w/c0#1", token=1)

    assert sac_exclusion(lambda _: True)(live.ops).counts["old token settled"] == 1


def test_a_dead_letter_that_comes_out_again_must_be_flagged() -> None:
    live = Live()
    live.publish(1)
    live.got("p:1", queue="dead")
    live.got("p:1", queue="dead", consumer="w/c1#1")

    assert dead_letters("q", "dead")(live.ops).counts["duplicated without the flag"] == 1


def _drained(live: Live) -> Live:
    for queue in ("q", "a", "b"):
        live.drain(queue)
    return live


def test_a_transaction_comes_out_of_all_its_queues_or_of_none() -> None:
    whole, half, none = Live(), Live(), Live()
    for live, came in ((whole, "ab"), (half, "a"), (none, "")):
        live.moved(None, ("a", "t:1"), ("b", "t:2"), ended="unknown")
        for queue, message in zip("ab", ("t:1", "t:2"), strict=True):
            if queue in came:
                live.got(message, queue=queue)

    assert transactions(half.ops).valid == "unknown"
    assert transactions(_drained(whole).ops).valid is True
    assert transactions(_drained(none).ops).valid is True
    assert transactions(_drained(half).ops).counts["half done"] == 1


def test_a_transaction_that_published_nothing_must_not_settle() -> None:
    alone, helped = Live(), Live()
    for live in (alone, helped):
        live.got("p:1")
        live.moved("p:1", ("a", "t:1"), ended=None)
    helped.acked("p:1", ended="unknown")

    assert transactions(_drained(alone).ops).counts["settled without publishing"] == 1
    assert transactions(_drained(helped).ops).valid is True


def test_what_a_transaction_published_counts_as_published() -> None:
    lost, refused = Live(), Live()
    lost.moved(None, ("a", "t:1"))
    refused.moved(None, ("a", "t:1"), ended="refused")
    refused.got("t:1", queue="a")

    assert total_queue(_drained(lost).ops).counts["lost"] == 1
    assert total_queue(refused.ops).counts["refused, yet delivered"] == 1
