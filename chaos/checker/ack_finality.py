"""A message whose settle was confirmed is gone: it is never delivered by a later decision, nor
settled again.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import MessageKey, deliveries_by_message, whole_settles
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def ack_finality(ops: Sequence[Op]) -> Verdict:
    settled: dict[
        MessageKey, tuple[int, int]
    ] = {}  # message -> (token of the settled delivery, op)
    twice: list[str] = []
    for op in whole_settles(ops):
        token = op.value["token"]
        for message in op.value["messages"]:
            key = (op.value["queue"], message)
            before = settled.setdefault(key, (token, op.index))
            if before[0] != token:
                twice.append(
                    f"{key[0]} {message}: token {before[0]} (op {before[1]}),"
                    f" {token} (op {op.index})"
                )
    after = [
        f"settled with token {settled[key][0]} by op {settled[key][1]}, then {delivery.describe()}"
        for key, seen in deliveries_by_message(ops).items()
        if key in settled
        for delivery in seen
        if delivery.token > settled[key][0]
    ]
    return judge(
        "ack-finality",
        {"delivered after its settle": after, "settled twice": twice},
        reported={"settled": len(settled)},
    )
