"""What one publisher sent in order is stored in order, and handed out for the first time in order.

Its publish ops say how much it promises. `ordered` true: all of it, since it repeats under the same
numbers what was lost. Not given: what was confirmed; a publish of unknown outcome may yet be stored
after a later one. False: nothing. Without tokens and positions order is known for each consumer
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from chaos.checker.deliveries import Delivery, deliveries_by_message, published
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op

Numbered = list[tuple[int, Delivery]]


def publisher_order(ops: Sequence[Op]) -> Verdict:
    first: dict[tuple[str, str, int | str | None], Numbered] = {}
    stored: dict[tuple[str, str], Numbered] = {}
    promised = _Promised(ops)
    for (queue, message), seen in deliveries_by_message(ops).items():
        publisher, _, digits = message.rpartition(":")
        if not promised.holds(queue, publisher, message):
            continue
        number = int(digits)
        stored.setdefault((queue, publisher), []).append((number, seen[0]))
        for delivery in seen:
            if delivery.acquired_count == 0 and (delivery.token is None or delivery is seen[0]):
                whose = delivery.consumer if delivery.token is None else None
                first.setdefault((queue, publisher, whose), []).append((number, delivery))
                break
    return judge(
        "publisher-order",
        {
            "stored out of order": _out_of_position(stored.values()),
            "first delivered out of order": _out_of_order(first.values()),
        },
        reported={"publishers": len(stored)},
    )


class _Promised:
    """Which messages keep the order of their publisher."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._whole: set[str] = set()  # publishers
        self._confirmed: set[tuple[str, str]] = set()
        for op in ops:
            if op.f == "publish":
                ordered = op.value.get("ordered")
                if ordered:
                    self._whole.add(op.value["publisher"])
                elif ordered is None and op.type == "ok":
                    queue = op.value["queue"]
                    self._confirmed.update((queue, message) for message in published(op))

    def holds(self, queue: str, publisher: str, message: str) -> bool:
        return publisher in self._whole or (queue, message) in self._confirmed


def _out_of_position(runs: Iterable[Numbered]) -> list[str]:
    found: list[str] = []
    for run in runs:
        placed = [(n, each, each.position) for n, each in run if each.position is not None]
        placed.sort(key=lambda each: each[0])
        found += [
            f"stored out of order: {a.message} at {p}, {b.message} at {q}"
            for (_, a, p), (_, b, q) in pairwise(placed)
            if p >= q
        ]
    return found


def _out_of_order(runs: Iterable[Numbered]) -> list[str]:
    found: list[str] = []
    for run in runs:
        run.sort(key=lambda pair: _decided(pair[1]))
        found += [
            f"{before.describe()}, then {after.describe()}"
            for (m, before), (n, after) in pairwise(run)
            if m > n
        ]
    return found


def _decided(delivery: Delivery) -> tuple[int, int]:
    if delivery.token is None or delivery.position is None:
        return (delivery.op, delivery.at)
    return (delivery.token, delivery.position)
