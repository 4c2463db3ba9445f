"""Every confirmed message comes out, and nothing comes out that nobody put in.

Multiset algebra after Jepsen's total-queue: lost = confirmed - delivered; unexpected = delivered -
attempted; recovered = delivered, and its publish had an unknown outcome (allowed); duplicated =
delivered again (allowed when flagged as redelivered). Only a history that drained the queue can
prove a loss; without a drain it is undecided.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import MessageKey, deliveries_by_message, published
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def total_queue(ops: Sequence[Op]) -> Verdict:
    attempted: set[MessageKey] = set()
    confirmed: dict[MessageKey, int] = {}
    refused: dict[MessageKey, int] = {}
    drained: set[str] = set()
    for op in ops:
        if op.f == "publish":
            queue = op.value["queue"]
            keys = [(queue, message) for message in published(op)]
            if op.type == "invoke":
                attempted.update(keys)
            elif op.type == "ok":
                confirmed.update(dict.fromkeys(keys, op.index))
            elif op.type == "refused":
                refused.update(dict.fromkeys(keys, op.index))
        elif op.f == "drain" and op.type == "ok":
            drained.add(op.value["queue"])
    delivered = deliveries_by_message(ops)
    missing = [key for key in confirmed if key not in delivered]
    duplicated = [seen for seen in delivered.values() if len(seen) > 1]
    unflagged = [
        again.describe() for seen in duplicated for again in seen[1:] if again.acquired_count == 0
    ]
    stored_twice = [
        f"{key[0]} {key[1]} at positions {sorted({d.position for d in seen})}"
        for key, seen in delivered.items()
        if len({d.position for d in seen}) > 1
    ]
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
                f"refused by op {refused[key]}, yet {seen[0].describe()}"
                for key, seen in delivered.items()
                if key in refused
            ],
            "duplicated without the flag": unflagged,
            "stored twice": stored_twice,
        },
        undecided={"missing, not drained": [f"{q} {m}" for q, m in missing if q not in drained]},
        reported={
            "attempted": len(attempted),
            "confirmed": len(confirmed),
            "recovered": sum(1 for key in delivered if key in attempted and key not in confirmed),
            "redelivered": len(duplicated),
        },
    )
