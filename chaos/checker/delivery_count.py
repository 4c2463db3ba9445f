"""How often a message was handed out, and how often that failed, only ever grows, and within its
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chaos.checker.deliveries import deliveries_by_message
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def delivery_count(limit: int | None) -> Checker:
    """A checker for queues with this delivery limit (None: no limit)."""

    def check(ops: Sequence[Op]) -> Verdict:
        backward: list[str] = []
        over: list[str] = []
        most = 0
        for seen in deliveries_by_message(ops).values():
            for before, after in pairwise(seen):
                fell = after.delivery_count < before.delivery_count
                if fell or after.acquired_count <= before.acquired_count:
                    backward.append(f"{before.describe()}, then {after.describe()}")
            for delivery in seen:
                most = max(most, delivery.delivery_count)
                if limit is not None and delivery.delivery_count > limit:
                    over.append(delivery.describe())
                if delivery.delivery_count > delivery.acquired_count:
                    over.append(f"more failures than deliveries: {delivery.describe()}")
        return judge(
            "delivery-count",
            {"count went back": backward, "over the limit": over},
            reported={"highest": most},
        )

    return check
