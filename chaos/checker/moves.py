"""What transactions move out of a queue arrives exactly once.

A transaction of unknown outcome may be done or not; the message that it takes comes again if not,
and another transaction moves it then. Two of them cannot both have settled the same message.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import deliveries_by_message, published
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def moves(source: str, target: str) -> Checker:
    """A checker of two drained queues. Only transactions take out of the source, and each of them
    puts as many into the target as it takes.
    """

    def check(ops: Sequence[Op]) -> Verdict:
        confirmed: dict[str, int] = {}
        moved_as: dict[str, list[str]] = {}  # source message -> what it became, by each attempt
        drained: set[str] = set()
        attempts = 0
        for op in ops:
            if op.f == "drain" and op.type == "ok":
                drained.add(op.value["queue"])
            elif op.f == "publish" and op.type == "ok" and op.value["queue"] == source:
                confirmed.update(dict.fromkeys(published(op), op.index))
            elif op.f == "transaction" and op.type == "invoke":
                attempts += 1
                taken = [message for queue, message in op.value["settles"] if queue == source]
                put = [message for queue, message in op.value["publishes"] if queue == target]
                for before, after in zip(taken, put, strict=True):
                    moved_as.setdefault(before, []).append(after)
        arrived = {message for queue, message in deliveries_by_message(ops) if queue == target}
        twice: list[str] = []
        for message, became in moved_as.items():
            found = [each for each in became if each in arrived]
            if len(found) > 1:
                twice.append(f"{message} became {', '.join(found)}")
        missing = [
            f"{message} (confirmed by op {index})"
            for message, index in confirmed.items()
            if arrived.isdisjoint(moved_as.get(message, ()))
        ]
        both = {source, target} <= drained
        return judge(
            "moves",
            {"moved twice": twice, "lost on its way": missing if both else []},
            undecided={"not arrived, not drained": [] if both else missing},
            reported={"transactions": attempts, "moved": len(moved_as)},
        )

    return check
