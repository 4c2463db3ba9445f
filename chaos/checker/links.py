"""What a link takes from one place arrives at another.

Publishers publish to the source and consumers take from the destination; nobody else does either.
Where the link promises to store each message once, one at two positions, or one that comes twice as
if for the first time, was stored twice. Without that promise it may come any number of times.

Ops of links, besides those of queues:
- runs-links: nodes: these own links
- run-links: ok when all links run after the faults; refused, which adds `states`: not in time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from chaos.checker.deliveries import (
    deliveries_by_message,
    positions,
    published,
    unflagged_again,
)
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op

#: How long after the last fault and the last restart a link may take to run.
RUNNING_AGAIN_S: Final = 30.0


def arrivals(source: str, destination: str, *, once: bool) -> Checker:
    """A loss is only proved when both ends were found empty."""

    def check(ops: Sequence[Op]) -> Verdict:
        attempted: set[str] = set()
        confirmed: dict[str, int] = {}
        refused: set[str] = set()
        drained: set[str] = set()
        for op in ops:
            queue = str(op.value.get("queue"))
            if op.f == "drain" and op.type == "ok":
                drained.add(queue)
            elif op.f == "publish" and queue == source:
                if op.type == "invoke":
                    attempted.update(published(op))
                elif op.type == "ok":
                    confirmed.update(dict.fromkeys(published(op), op.index))
                elif op.type == "refused":
                    refused.update(published(op))
        arrived = {
            message: seen
            for (queue, message), seen in deliveries_by_message(ops).items()
            if queue == destination
        }
        missing = [
            f"{message} (confirmed by op {index})"
            for message, index in confirmed.items()
            if message not in arrived
        ]
        again = [seen for seen in arrived.values() if len(positions(seen)) > 1]
        unflagged = [each for seen in arrived.values() for each in unflagged_again(seen)]
        twice = [f"{seen[0].message} at positions {positions(seen)}" for seen in again]
        twice += [f"not flagged: {each.describe()}" for each in unflagged if each.position is None]
        both = {source, destination} <= drained
        return judge(
            f"arrivals at {destination}",
            {
                "lost on its way": missing if both else [],
                "from nowhere": [
                    seen[0].describe()
                    for message, seen in arrived.items()
                    if message not in attempted
                ],
                "refused, yet arrived": [
                    seen[0].describe() for message, seen in arrived.items() if message in refused
                ],
                "arrived twice": twice if once else [],
            },
            undecided={"not arrived, not drained": [] if both else missing},
            reported={
                "confirmed": len(confirmed),
                "arrived": len(arrived),
                **({} if once else {"came again": len(twice)}),
            },
        )

    return check


def at_destination(source: str, destination: str, checker: Checker) -> Checker:
    """Judges the destination as if publishers had published to it."""

    def check(ops: Sequence[Op]) -> Verdict:
        return checker(
            [
                replace(op, value={**op.value, "queue": destination})
                if op.f == "publish" and op.value.get("queue") == source
                else op
                for op in ops
                if op.value.get("queue") in (source, destination)
            ]
        )

    return check


def running_again(ops: Sequence[Op]) -> Verdict:
    """All links run soon after the faults, whether or not anything waits to be moved."""
    ended = [op for op in ops if op.f == "run-links" and op.type != "invoke"]
    owners = [op.value["nodes"] for op in ops if op.f == "runs-links"]
    return judge(
        "running-again",
        {
            f"not running after {RUNNING_AGAIN_S:g} s": [
                str(op.value["states"]) for op in ended if op.type != "ok"
            ]
        },
        undecided={"never looked at after the faults": [] if ended else ["links"]},
        reported={"changes of owners": max(0, len(owners) - 1)},
    )
