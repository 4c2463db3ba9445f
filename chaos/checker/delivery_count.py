"""How often a message was handed out, and how often that failed, only ever grows, and within its
limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from chaos.checker.deliveries import Delivery, deliveries_by_message
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def delivery_count(limit: int | None) -> Checker:
    """A checker for queues with this delivery limit (None: no limit)."""

    def check(ops: Sequence[Op]) -> Verdict:
        backward: list[str] = []
        over: list[str] = []
        most = 0
        for seen in deliveries_by_message(ops).values():
            backward += [
                f"{before.describe()}, then {after.describe()}"
                for before, after in _in_order(seen)
                if _went_back(before, after)
            ]
            for delivery in seen:
                failed = delivery.delivery_count or 0
                most = max(most, failed)
                if limit is not None and failed > limit:
                    over.append(delivery.describe())
                if failed > delivery.acquired_count and _tells_all(delivery):
                    over.append(f"more failures than deliveries: {delivery.describe()}")
        return judge(
            "delivery-count",
            {"count went back": backward, "over the limit": over},
            reported={"highest": most},
        )

    return check


def _tells_all(delivery: Delivery) -> bool:
    """A flag says little about how often, but when it is missing: never before."""
    return delivery.counts_acquired or not delivery.acquired_count


def _in_order(seen: Sequence[Delivery]) -> Iterator[tuple[Delivery, Delivery]]:
    """Pairs of which the second was surely decided later, whatever they say."""
    if len(seen) > 1 and all(delivery.token is not None for delivery in seen):
        yield from pairwise(seen)
        return
    last: dict[int | str, Delivery] = {}
    for delivery in seen:
        before = last.get(delivery.consumer)
        if before is not None:
            yield before, delivery
        last[delivery.consumer] = delivery


def _went_back(before: Delivery, after: Delivery) -> bool:
    if None not in (before.delivery_count, after.delivery_count) and (
        (after.delivery_count or 0) < (before.delivery_count or 0)
    ):
        return True
    if before.counts_acquired and after.counts_acquired:
        return after.acquired_count <= before.acquired_count
    return not after.acquired_count
