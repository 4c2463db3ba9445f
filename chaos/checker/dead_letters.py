"""What died in one queue comes out of the queue for its dead letters, once.

Over both queues together nothing is lost: a message that was confirmed into the source is settled
there, or comes out of the target. A settle of unknown outcome may have been the end of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import (
    Delivery,
    deliveries_by_message,
    published,
    unflagged_again,
    whole_settles,
)
from chaos.checker.vanished import perhaps_settled
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def dead_letters(source: str, *targets: str, may_repeat: bool = False) -> Checker:
    """A checker of queues that were drained; nothing is published to the targets themselves.

    `may_repeat`: a letter may be stored twice, as one that a target refused may be.
    """

    def check(ops: Sequence[Op]) -> Verdict:
        attempted: set[str] = set()
        confirmed: dict[str, int] = {}
        refused: dict[str, int] = {}
        drained: set[str] = set()
        for op in ops:
            queue = op.value.get("queue")
            if op.f == "drain" and op.type == "ok":
                drained.add(op.value["queue"])
            elif op.f == "publish" and queue == source:
                attempted.update(published(op))
                if op.type == "ok":
                    confirmed.update(dict.fromkeys(published(op), op.index))
                elif op.type == "refused":
                    refused.update(dict.fromkeys(published(op), op.index))
        perhaps = {
            message for place, message in perhaps_settled(ops, discards=False) if place == source
        }
        surely = {
            message: op.index
            for op in whole_settles(ops)
            if op.f == "settle" and op.value["queue"] == source
            for message in op.value["messages"]
        }
        dead: dict[str, list[Delivery]] = {}
        for (queue, message), seen in deliveries_by_message(ops).items():
            if queue in targets:
                dead.setdefault(message, []).extend(seen)
        copies = {message: _copies(seen) for message, seen in dead.items()}
        missing = [
            f"{message} (confirmed by op {confirmed[message]})"
            for message in confirmed
            if message not in perhaps and message not in dead
        ]
        whole = {source, *targets} <= drained
        return judge(
            "dead-letters",
            {
                "lost": missing if whole else [],
                "unexpected": [
                    seen[0].describe() for message, seen in dead.items() if message not in attempted
                ],
                "stored twice": [
                    f"{message} at {', '.join(map(str, of))}"
                    for message, of in copies.items()
                    if len(of) > 1 and not may_repeat
                ],
                "duplicated without the flag": [
                    again.describe()
                    for message, of in copies.items()
                    for seen in (of.values() if may_repeat else [dead[message]])
                    for again in unflagged_again(seen)
                ],
                "refused, yet delivered": [
                    f"refused by op {refused[message]}, yet {seen[0].describe()}"
                    for message, seen in dead.items()
                    if message in refused
                ],
                "settled, yet dead": [
                    f"settled by op {surely[message]}, yet {seen[0].describe()}"
                    for message, seen in dead.items()
                    if message in surely
                ],
            },
            undecided={"missing, not drained": [] if whole else missing},
            reported={"confirmed": len(confirmed), "dead": len(dead)},
        )

    return check


def _copies(seen: Sequence[Delivery]) -> dict[tuple[str, int], list[Delivery]]:
    """The deliveries of one message by where it was stored, as far as that was told."""
    found: dict[tuple[str, int], list[Delivery]] = {}
    for each in seen:
        if each.position is not None:
            found.setdefault((each.queue, each.position), []).append(each)
    return found
