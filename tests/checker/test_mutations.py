"""A tiny broker that does everything right writes histories; what is then changed in them is found,
by the checker whose business it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chaos.checker import (
    ack_finality,
    check_all,
    delivery_count,
    merge,
    publisher_order,
    sac_exclusion,
    total_queue,
)
from chaos.history import Op
from tests.checker.broker import broker

CHECKERS = {
    "total-queue": total_queue,
    "ack-finality": ack_finality,
    "publisher-order": publisher_order,
    "delivery-count": delivery_count(None),
    "sac-exclusion": sac_exclusion(lambda _: True),
}


def _rejected(ops: list[Op], by: str) -> bool:
    """By this checker; a history is in order whatever was put in or taken out."""
    (verdict,) = check_all(ops, {by: CHECKERS[by]})
    return verdict.valid is False


def _of(ops: list[Op], f: str, type_: str = "ok") -> list[Op]:
    return [op for op in ops if op.f == f and op.type == type_]


def _changed(ops: list[Op], op: Op, **value: Any) -> list[Op]:
    return [replace(each, value={**each.value, **value}) if each is op else each for each in ops]


def _then(ops: list[Op], op: Op) -> list[Op]:
    return [*ops, replace(op, index=len(ops))]


def _again(ops: list[Op], op: Op, **value: Any) -> list[Op]:
    """Delivered once more at the end."""
    token = None if op.value["token"] is None else 10_000
    return _then(ops, replace(op, value={**op.value, "token": token, **value}))


SEEDS, TELLS = st.integers(0, 10**9), st.booleans()
many = settings(max_examples=60, deadline=None)


@many
@given(SEEDS, TELLS)
def test_a_right_broker_is_never_accused(seed: int, tells: bool) -> None:
    assert merge(check_all(broker(seed, tells=tells), CHECKERS)) is True


@many
@given(SEEDS, TELLS, st.data())
def test_a_confirmed_message_that_is_taken_out_is_lost(
    seed: int,
    tells: bool,
    data: st.DataObject,
) -> None:
    ops = broker(seed, tells=tells)
    confirmed = _of(ops, "publish")
    assume(confirmed)
    message = f"p:{data.draw(st.sampled_from(confirmed)).value['first']}"

    left = [op for op in ops if op.f != "deliver" or op.value["messages"] != [message]]

    assert _rejected(left, "total-queue")


@many
@given(SEEDS, TELLS, st.data())
def test_a_delivery_that_is_repeated_without_the_flag_is_a_duplicate(
    seed: int,
    tells: bool,
    data: st.DataObject,
) -> None:
    ops = broker(seed, tells=tells)
    assume(_of(ops, "deliver"))
    op = data.draw(st.sampled_from(_of(ops, "deliver")))

    repeated = _again(ops, op, acquired_count=0, consumer="w/late")

    assert _rejected(repeated, "total-queue")


@many
@given(SEEDS, TELLS, st.data())
def test_a_flagged_delivery_after_the_only_one_was_settled_breaks_finality(
    seed: int,
    tells: bool,
    data: st.DataObject,
) -> None:
    ops = broker(seed, tells=tells)
    settled = {op.value["messages"][0] for op in _of(ops, "settle")}
    times = [op.value["messages"][0] for op in _of(ops, "deliver")]
    once = [
        op
        for op in _of(ops, "deliver")
        if (message := op.value["messages"][0]) in settled and times.count(message) == 1
    ]
    assume(once)
    op = data.draw(st.sampled_from(once))

    assert _rejected(_again(ops, op, acquired_count=1, consumer="w/late"), "ack-finality")


@many
@given(SEEDS, TELLS)
def test_a_message_of_nowhere_is_unexpected(seed: int, tells: bool) -> None:
    ops = broker(seed, tells=tells)
    assume(_of(ops, "deliver"))

    assert _rejected(_again(ops, _of(ops, "deliver")[0], messages=["x:0"]), "total-queue")


@many
@given(SEEDS, st.data())
def test_positions_that_change_places_break_the_order(seed: int, data: st.DataObject) -> None:
    ops = broker(seed, tells=True)
    confirmed = {f"p:{op.value['first']}" for op in _of(ops, "publish")}
    firsts = [
        op
        for op in _of(ops, "deliver")
        if not op.value["acquired_count"] and op.value["messages"][0] in confirmed
    ]
    assume(len(firsts) > 1)
    at = data.draw(st.integers(0, len(firsts) - 2))
    a, b = firsts[at], firsts[at + 1]

    swapped = _changed(ops, a, first=b.value["first"])
    swapped = _changed(swapped, b, first=a.value["first"])

    assert _rejected(swapped, "publisher-order")


@many
@given(SEEDS, st.data())
def test_an_old_token_that_is_settled_late_breaks_exclusion(seed: int, data: st.DataObject) -> None:
    ops = broker(seed, tells=True)
    delivered = _of(ops, "deliver")
    assume(delivered)
    old = data.draw(st.sampled_from(delivered))
    newest = delivered[-1].value
    assume(newest["consumer"] != old.value["consumer"])
    value = {name: old.value[name] for name in ("queue", "consumer", "token", "messages")}

    asked = Op(len(ops), "w", "invoke", "settle", value)
    ended = Op(len(ops) + 1, "w", "ok", "settle", value, invoke=asked.index)

    assert _rejected([*ops, asked, ended], "sac-exclusion")


@many
@given(SEEDS, TELLS)
def test_failures_that_are_forgotten_are_found(seed: int, tells: bool) -> None:
    ops = broker(seed, tells=tells)
    failed = [op for op in _of(ops, "deliver") if op.value["delivery_count"]]
    assume(failed)

    forgotten = _again(ops, failed[-1], delivery_count=0, acquired_count=1)

    assert _rejected(forgotten, "delivery-count")
