"""What transactions take out of one queue comes out of another, once."""

from __future__ import annotations

from chaos.checker.moves import moves
from chaos.history import OpType
from tests.checker.histories import Told

check = moves("a", "b")


def moved(told: Told, before: str, after: str, ended: OpType = "ok") -> None:
    value = {"publishes": [["b", after], ["c", after]], "settles": [["a", before]]}
    told.end(told.invoke("t", "transaction", value), ended)


def test_each_message_that_arrives_once_is_valid() -> None:
    told = Told()
    told.publish(0, queue="a")
    moved(told, "p:0", "t:0", "unknown")
    moved(told, "p:0", "t:1")
    told.deliver("t:1", token=1, queue="b")

    verdict = check(told.drained())

    assert verdict.valid is True
    assert verdict.counts["transactions"] == 2


def test_two_transactions_cannot_both_take_the_same_message() -> None:
    told = Told()
    told.publish(0, queue="a")
    moved(told, "p:0", "t:0", "unknown")
    moved(told, "p:0", "t:1")
    told.deliver("t:0", "t:1", token=1, queue="b")

    assert check(told.ops).counts["moved twice"] == 1


def test_a_message_that_was_settled_and_not_published_is_lost() -> None:
    told = Told()
    told.publish(0, queue="a")
    moved(told, "p:0", "t:0", "unknown")

    assert check(told.ops).valid == "unknown"
    assert check(told.drained()).counts["lost on its way"] == 1
