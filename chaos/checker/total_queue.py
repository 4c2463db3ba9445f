"""Every confirmed message comes out, and nothing comes out that nobody put in.

Multiset algebra after Jepsen's total-queue: lost = confirmed - delivered; unexpected = delivered -
attempted; recovered = delivered, and its publish had an unknown outcome (allowed); duplicated =
delivered again (allowed when flagged as redelivered). Only a history that drained the queue can
prove a loss; without a drain it is undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from chaos.checker.deliveries import (
    MessageKey,
    deliveries_by_message,
    positions,
    published_keys,
    unflagged_again,
)
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def total_queue(ops: Sequence[Op]) -> Verdict:
    attempted: set[MessageKey] = set()
    confirmed: dict[MessageKey, int] = {}
    refused: dict[MessageKey, int] = {}
    drained: set[str] = set()
    for op in ops:
        if op.f == "drain" and op.type == "ok":
            drained.add(op.value["queue"])
            continue
        keys = published_keys(op)
        if op.type == "invoke":
            attempted.update(keys)
        elif op.type == "ok":
            confirmed.update(dict.fromkeys(keys, op.index))
        elif op.type == "refused":
            refused.update(dict.fromkeys(keys, op.index))
    delivered = deliveries_by_message(ops)
    for key in _tried_again(ops, refused):
        del refused[key]
    missing = [key for key in confirmed if key not in delivered]
    duplicated = [seen for seen in delivered.values() if len(seen) > 1]
    return judge(
        "total-queue",
        {
            "lost": [
                f"{q} {m} (confirmed by op {confirmed[q, m]})" for q, m in missing if q in drained
            ],
            "unexpected": [
                seen[0].describe() for key, seen in delivered.items() if key not in attempted
            ],
            "refused, yet delivered": [
                f"refused by op {refused[key]}, yet {delivered[key][0].describe()}"
                for key in refused
                if key in delivered
            ],
            "duplicated without the flag": [
                again.describe() for seen in duplicated for again in unflagged_again(seen)
            ],
            "stored twice": [
                f"{seen[0].queue} {seen[0].message} at positions {positions(seen)}"
                for seen in duplicated
                if len(positions(seen)) > 1
            ],
        },
        undecided={"missing, not drained": [f"{q} {m}" for q, m in missing if q not in drained]},
        reported={
            "attempted": len(attempted),
            "confirmed": len(confirmed),
            "recovered": sum(1 for key in delivered if key in attempted and key not in confirmed),
            "redelivered": len(duplicated),
        },
    )


def _tried_again(ops: Sequence[Op], refused: Collection[MessageKey]) -> set[MessageKey]:
    """Those of which not every attempt was refused."""
    if not refused:
        return set()
    open_attempts: Counter[MessageKey] = Counter()
    for op in ops:
        if op.type in ("invoke", "refused"):
            change = 1 if op.type == "invoke" else -1
            for key in published_keys(op):
                if key in refused:
                    open_attempts[key] += change
    return {key for key, count in open_attempts.items() if count > 0}
