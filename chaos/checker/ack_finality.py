"""A message whose settle was confirmed is gone: it is never delivered by a later decision, nor
settled again.

An acknowledgement that nobody answers settles nothing for sure, nor does a transaction, which skips
what was taken from its client meanwhile. Where no token tells which of two decisions was the later
one, only what is surely later counts (`surely_after`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.checker.deliveries import (
    Delivery,
    MessageKey,
    deliveries_by_message,
    settled_keys,
    surely_after,
    whole_settles,
)
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


@dataclass(frozen=True, slots=True)
class Settled:
    """What a confirmed settle says of the delivery that it was for."""

    token: int | None
    consumer: int | str
    op: int
    invoke: int  # it was for something delivered before this

    def of(self, seen: Sequence[Delivery]) -> Delivery | None:
        """The delivery that was settled, of all of this message; None: it is not in the history."""
        if self.token is not None:
            return next((each for each in seen if each.token == self.token), None)
        held = (each for each in reversed(seen) if each.consumer == self.consumer)
        return next((each for each in held if each.op < self.invoke), None)


def ack_finality(ops: Sequence[Op]) -> Verdict:
    settled: dict[MessageKey, Settled] = {}
    twice: list[str] = []
    for key, end in _confirmed(ops):
        before = settled.setdefault(key, end)
        if before.token != end.token and None not in (before.token, end.token):
            twice.append(
                f"{key[0]} {key[1]}: token {before.token} (op {before.op}),"
                f" {end.token} (op {end.op})"
            )
    after: list[str] = []
    for key, seen in deliveries_by_message(ops).items():
        end = settled.get(key)
        if end is not None:
            after += [
                f"settled with token {end.token} by op {end.op}, then {delivery.describe()}"
                for delivery in _after(end, seen)
            ]
    return judge(
        "ack-finality",
        {"delivered after its settle": after, "settled twice": twice},
        reported={"settled": len(settled)},
    )


def _confirmed(ops: Sequence[Op]) -> Iterator[tuple[MessageKey, Settled]]:
    for op in whole_settles(ops):
        invoked = op.index if op.invoke is None else op.invoke
        end = Settled(op.value["token"], op.value["consumer"], op.index, invoked)
        for key in settled_keys(op):
            yield key, end


def _after(end: Settled, seen: Sequence[Delivery]) -> Iterator[Delivery]:
    done = end.of(seen)
    for delivery in seen:
        if end.token is not None and delivery.token is not None:
            if delivery.token > end.token:
                yield delivery
        # What came while the settle was asked for may have been on its way already.
        elif done is not None and delivery.op > end.op and surely_after(delivery, done):
            yield delivery
