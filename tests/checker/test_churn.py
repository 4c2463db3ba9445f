"""Queues of reused names: what was confirmed while one was surely there must come out of it."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker.churn import churn
from chaos.history import OpType
from tests.checker.histories import Told

ALIKE = "406: PRECONDITION_FAILED - inequivalent arg 'x-max-length'"


class Churned(Told):
    """Ops that a line may begin and a later one end."""

    def did(self, f: str, ended: OpType = "ok", **value: Any) -> None:
        invoked = self.invoke("d0", f, {k: v for k, v in value.items() if k != "reason"})
        self.end(invoked, ended, {k: v for k, v in value.items() if k == "reason"})

    def routed(self, first: int, ended: OpType = "ok", **value: Any) -> None:
        about = {"queue": None, "exchange": "x", "key": "q", "publisher": "p", **value}
        self.did("publish", ended, first=first, count=1, **about)

    def emptied(self, queue: str = "q") -> None:
        self.did("drain", queue=queue)


def bound() -> Churned:
    told = Churned()
    told.did("declare", queue="q", arguments={})
    told.did("declare", exchange="x", kind="direct")
    told.did("bind", queue="q", exchange="x", key="q")
    return told


def test_what_comes_out_is_valid() -> None:
    told = bound()
    told.publish(0)
    told.routed(1)
    told.deliver("p:0", "p:1", token=1)
    told.emptied()
    told.did("delete", queue="q")
    told.did("length", "refused", queue="q")

    verdict = churn(told.ops)

    assert verdict.valid is True
    assert verdict.counts["publishes judged"] == 2


def test_a_confirmed_message_that_does_not_come_out_is_lost() -> None:
    told = bound()
    told.publish(0)
    told.emptied()

    assert churn(told.ops).counts["lost"] == 1


def test_what_went_through_a_binding_is_lost_as_well() -> None:
    told = bound()
    told.routed(0)
    told.routed(1, key="nobody bound this")
    told.emptied()

    assert churn(told.ops).counts["lost"] == 1


def test_a_fanout_needs_no_key() -> None:
    told = bound()
    told.did("declare", exchange="f", kind="fanout")
    told.did("bind", queue="q", exchange="f", key="whatever")
    told.routed(0, exchange="f")
    told.emptied()

    assert churn(told.ops).counts["lost"] == 1


@pytest.mark.parametrize("ended", ["ok", "unknown"])
@pytest.mark.parametrize(
    "gone",
    [
        ("delete", {"queue": "q"}),
        ("delete", {"exchange": "x"}),
        ("unbind", {"queue": "q", "exchange": "x", "key": "q"}),
    ],
)
def test_what_may_have_been_taken_away_before_is_not_judged(
    gone: tuple[str, dict[str, str]], ended: OpType
) -> None:
    told = bound()
    told.did(gone[0], ended, **gone[1])
    told.routed(0)
    told.emptied()

    assert churn(told.ops).valid is True


def test_a_delete_of_unknown_outcome_counts_for_ever() -> None:
    told = Churned()
    told.did("delete", "unknown", queue="q")
    told.did("declare", queue="q", arguments={})
    told.publish(0)
    told.emptied()

    assert churn(told.ops).valid is True


def test_a_refused_delete_did_nothing() -> None:
    told = bound()
    told.did("delete", "refused", queue="q")
    told.publish(0)
    told.emptied()

    assert churn(told.ops).counts["lost"] == 1


def test_what_was_in_a_queue_goes_with_it() -> None:
    told = bound()
    told.publish(0)
    told.did("delete", queue="q")
    told.did("declare", queue="q", arguments={})
    told.emptied()

    assert churn(told.ops).valid is True


def test_a_message_that_outlives_its_queue_is_a_ghost() -> None:
    told = bound()
    told.publish(0)
    told.did("delete", queue="q")
    told.did("declare", queue="q", arguments={})
    told.did("consume", queue="q", consumer=2)
    told.deliver("p:0", token=9, consumer=2)

    assert churn(told.ops).counts["outlived its queue"] == 1


def test_a_message_of_unknown_outcome_may_come_to_the_next_queue() -> None:
    told = bound()
    told.publish(0, ended="unknown")
    told.did("delete", queue="q")
    told.did("declare", queue="q", arguments={})
    told.did("consume", queue="q", consumer=2)
    told.deliver("p:0", token=9, consumer=2)

    assert churn(told.ops).valid is True


def test_a_deleted_queue_that_is_found_was_not_deleted() -> None:
    told = bound()
    told.did("delete", queue="q")
    told.did("length", queue="q")

    assert churn(told.ops).counts["deleted, yet there"] == 1


def test_a_declare_that_is_not_answered_may_be_why_it_is_there() -> None:
    told = Churned()
    told.did("declare", "unknown", queue="q", arguments={})
    told.did("delete", queue="q")
    told.did("length", queue="q")

    assert churn(told.ops).valid is True


def test_the_same_arguments_never_contradict_each_other() -> None:
    told = bound()
    told.did("declare", "refused", queue="q", arguments={}, reason=ALIKE)
    told.did("declare", "refused", queue="q", arguments={}, reason="no node lets us in")

    assert churn(told.ops).counts["declared alike and contradicted"] == 1


def test_a_message_cannot_be_returned_while_a_queue_is_bound() -> None:
    told = bound()
    told.routed(0, "refused", reason="routed nowhere")
    told.routed(1, "refused", reason="routed nowhere", key="other")

    assert churn(told.ops).counts["nowhere to go, though bound"] == 1


def test_messages_that_nobody_sent_there_are_unexpected() -> None:
    told = bound()
    told.publish(0, ended="refused")
    told.routed(1, key="other")
    told.deliver("p:0", "p:1", "p:7", token=1)

    assert churn(told.ops).counts["unexpected"] == 3
