"""What one publisher sent in order is stored in order, and handed out for the first time in order.

Of publishers that say so (`ordered` in their publish ops): one without a name cannot resend, so it
promises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chaos.checker.deliveries import Delivery, deliveries_by_message
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def publisher_order(ops: Sequence[Op]) -> Verdict:
    first: dict[tuple[str, str], list[tuple[int, Delivery]]] = {}
    stored: dict[tuple[str, str], list[tuple[int, Delivery]]] = {}
    ordered = {
        op.value["publisher"] for op in ops if op.f == "publish" and op.value.get("ordered", True)
    }
    for (queue, message), seen in deliveries_by_message(ops).items():
        publisher, _, number = message.rpartition(":")
        if publisher not in ordered:
            continue
        stored.setdefault((queue, publisher), []).append((int(number), seen[0]))
        if seen[0].acquired_count == 0:
            first.setdefault((queue, publisher), []).append((int(number), seen[0]))
    out_of_position: list[str] = []
    for numbered in stored.values():
        numbered.sort(key=lambda pair: pair[0])
        out_of_position += [
            f"stored out of order: {a.message} at {a.position}, {b.message} at {b.position}"
            for (_, a), (_, b) in pairwise(numbered)
            if a.position >= b.position
        ]
    out_of_order: list[str] = []
    for numbered in first.values():
        numbered.sort(key=lambda pair: (pair[1].token, pair[1].position))
        out_of_order += [
            f"{before.describe()}, then {after.describe()}"
            for (m, before), (n, after) in pairwise(numbered)
            if m > n
        ]
    return judge(
        "publisher-order",
        {"stored out of order": out_of_position, "first delivered out of order": out_of_order},
        reported={"publishers": len(stored)},
    )
