"""What one transaction published to two queues comes out of both, or of neither.

That what was confirmed comes out at all, and nothing that was refused, `total_queue` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import deliveries_by_message, published
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def all_or_nothing(one: str, other: str) -> Checker:
    """A checker of two drained queues that get the same messages, in transactions only."""

    def check(ops: Sequence[Op]) -> Verdict:
        attempted: set[str] = set()
        drained: set[str] = set()
        for op in ops:
            if op.f == "drain":
                drained.add(op.value["queue"])
            elif op.f == "publish" and op.value["queue"] in (one, other):
                attempted.update(published(op))
        found = deliveries_by_message(ops)
        here = {message for queue, message in found if queue == one}
        there = {message for queue, message in found if queue == other}
        halves = [f"{message} came out of {one} only" for message in sorted(here - there)]
        halves += [f"{message} came out of {other} only" for message in sorted(there - here)]
        both = {one, other} <= drained
        return judge(
            "all-or-nothing",
            {"half done": halves if both else []},
            undecided={"half done, not drained": [] if both else halves},
            reported={"transactions": len(attempted), "done": len(here & there)},
        )

    return check
