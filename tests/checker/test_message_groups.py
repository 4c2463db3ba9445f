"""Of each key one message is in flight at a time, in order."""

from __future__ import annotations

from chaos.checker.message_groups import message_groups
from tests.checker.histories import Told


def key_of(message: str) -> str | None:
    """Even and odd numbers, and those from ten on have none."""
    number = int(message.rpartition(":")[2])
    return None if number >= 10 else "odd" if number % 2 else "even"


check = message_groups(key_of)


def test_one_after_the_other_is_valid() -> None:
    told = Told()
    told.deliver("p:1", "p:2", token=1, first=1)
    told.deliver("p:1", token=2, first=1, consumer=2, acquired=1)
    told.settle("p:1", token=2, consumer=2)
    told.deliver("p:3", token=3, first=3)
    told.settle("p:2", token=1, ended="unknown")
    told.deliver("p:4", token=4, first=4)

    verdict = check(told.ops)

    assert verdict.valid is True
    assert (verdict.counts["keys"], verdict.counts["deliveries"]) == (2, 5)


def test_two_at_once_are_seen() -> None:
    told = Told()
    told.deliver("p:1", token=1, first=1)
    told.deliver("p:3", token=2, first=3, consumer=2)
    told.settle("p:1", token=1)

    verdict = check(told.ops)

    assert verdict.valid is False
    assert verdict.counts["two in flight"] == 1


def test_two_in_one_decision_are_seen() -> None:
    told = Told()
    told.deliver("p:1", "p:2", "p:3", token=1)

    assert check(told.ops).counts["two in flight"] == 1


def test_one_that_comes_again_after_a_later_one_is_seen() -> None:
    told = Told()
    told.deliver("p:1", token=1, first=1)
    told.settle("p:1", token=1, ended="refused")
    told.deliver("p:3", token=2, first=3)
    told.deliver("p:1", token=3, first=1, acquired=1)

    verdict = check(told.ops)

    assert verdict.valid is False
    assert verdict.counts["overtaken"] == 1


def test_messages_without_a_key_are_free() -> None:
    told = Told()
    told.deliver("p:11", "p:12", token=1, first=1)
    told.deliver("p:10", token=2, first=5)

    assert check(told.ops).valid is True
