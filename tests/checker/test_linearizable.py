"""Lengths of a queue that some order of what happened explains, or none does."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checker import linearizable_lengths
from chaos.history import History, Op, OpType

check = linearizable_lengths()


class Counted(History):
    """A history of lengths."""

    def ask(self, f: str, **value: Any) -> Op:
        return self.invoke("c", f, {"queue": "q", **value})

    def publish(self, first: int, count: int = 1) -> Op:
        return self.ask("publish", publisher="p", first=first, count=count)

    def settle(self, *numbers: int) -> Op:
        messages = [f"p:{number}" for number in numbers]
        return self.ask("settle", consumer="c", token=None, messages=messages)

    def length(self, length: int) -> None:
        self.end(self.ask("length"), "ok", {"length": length})


def test_a_length_between_is_explained() -> None:
    history = Counted()
    history.end(history.publish(0, 3), "ok")
    history.end(history.settle(0), "ok")
    history.length(2)

    assert check(history.ops).valid is True


def test_a_length_that_misses_a_confirmed_publish_is_stale() -> None:
    history = Counted()
    history.end(history.publish(0), "ok")
    history.length(0)

    verdict = check(history.ops)

    assert verdict.valid is False
    assert "read 0" in verdict.examples["no order explains it"][0]


def test_what_is_under_way_may_count_but_not_go_back() -> None:
    right, wrong = Counted(), Counted()
    for history, lengths in ((right, (0, 1)), (wrong, (1, 0))):
        pending = history.publish(0)
        for length in lengths:
            history.length(length)
        history.end(pending, "ok")

    assert check(right.ops).valid is True
    assert check(wrong.ops).valid is False


def test_a_length_under_way_may_be_of_before() -> None:
    history = Counted()
    asked = history.ask("length")
    history.end(history.publish(0), "ok")
    history.end(history.publish(1), "ok")
    history.length(2)
    history.end(asked, "ok", {"length": 1})

    assert check(history.ops).valid is True


def test_an_unknown_publish_may_happen_late_or_never_and_only_once() -> None:
    for lengths, valid in (((0, 0), True), ((0, 1), True), ((1, 0), False), ((0, 2), False)):
        history = Counted()
        history.end(history.publish(0), "unknown")
        for length in lengths:
            history.length(length)

        assert check(history.ops).valid is valid, lengths


def test_a_refused_publish_never_counts() -> None:
    history = Counted()
    history.end(history.publish(0), "refused")
    history.length(1)

    assert check(history.ops).valid is False


def test_an_unknown_settle_may_have_taken_it() -> None:
    for length, valid in ((1, True), (0, True), (2, False)):
        history = Counted()
        history.end(history.publish(0), "ok")
        history.end(history.settle(0), "unknown")
        history.length(length)

        assert check(history.ops).valid is valid


def test_one_message_that_is_settled_twice_is_taken_once() -> None:
    history = Counted()
    history.end(history.publish(0, 2), "ok")
    history.end(history.settle(0), "ok")
    history.end(history.settle(0), "ok")
    history.length(1)

    assert check(history.ops).valid is True


def test_queues_are_judged_one_by_one() -> None:
    history = Counted()
    history.end(history.publish(0), "ok")
    history.end(history.ask("length"), "ok", {"length": 1})
    history.end(history.invoke("c", "length", {"queue": "other"}), "ok", {"length": 0})

    assert check(history.ops).valid is True


def test_too_many_states_are_unknown() -> None:
    history = Counted()
    asked = history.ask("length")
    for number in range(12):
        history.publish(number)
        history.ask("settle", consumer="c", token=None, messages=[f"r:{number}"])
    history.end(asked, "ok", {"length": 50})

    assert linearizable_lengths(20)(history.ops).valid == "unknown"
    assert check(history.ops).valid is False


def _broker(seed: int) -> tuple[History, list[int]]:
    """A correct broker with some clients, each op of which happens in between its two ends, and
    the places of the lengths that were answered.
    """
    dice = random.Random(seed)
    history, length, stored = Counted(), 0, list[int]()
    waiting: list[tuple[Op, bool, int]] = []  # asked, happened, length read
    for number in range(dice.randint(5, 30)):
        if len(waiting) < 4 and dice.random() < 0.5:
            kind = dice.choice(("publish", "settle", "length"))
            if kind == "settle" and stored:
                waiting.append((history.settle(stored.pop()), False, 0))
            elif kind == "length":
                waiting.append((history.ask("length"), False, 0))
            else:
                waiting.append((history.publish(number), False, 0))
        if waiting and dice.random() < 0.6:
            at = dice.randrange(len(waiting))
            asked, happened, _ = waiting[at]
            if not happened:
                if asked.f == "publish":
                    length += 1
                    stored.append(asked.value["first"])
                length -= asked.f == "settle"
                waiting[at] = (asked, True, length)
        for each in [each for each in waiting if each[1] and dice.random() < 0.4]:
            waiting.remove(each)
            outcome: OpType = "unknown" if dice.random() < 0.15 else "ok"
            extra = {"length": each[2]} if each[0].f == "length" else {}
            history.end(each[0], outcome, extra)
    ended = [op.index for op in history if op.f == "length" and op.type == "ok"]
    return history, ended


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_a_right_broker_is_never_accused(seed: int) -> None:
    history, _ = _broker(seed)

    assert check(history.ops).valid is True


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_a_length_that_never_was_is_always_found(seed: int) -> None:
    history, lengths = _broker(seed)
    if lengths:
        wrong = history.ops[lengths[-1]]
        wrong.value["length"] += 100

        assert check(history.ops).valid is False
