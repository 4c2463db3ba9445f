"""No message comes before its delay has passed or long after its time to live, and none expires
before its time, or without one.

That none is lost on the way, `dead_letters` and `total_queue` say. When clocks are right the wall
clock of the history judges; a run that made them jump gives no tolerance, and only what needs no
clock is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.checker.deliveries import published
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op

#: A message may be on its way, or in the hands of a client that does not look at it yet, for so
#: long after it has expired.
OVERDUE_MS = 30_000


def expiry(
    dead: Mapping[str, str], queue_ttl_ms: Mapping[str, int], *, tolerance_ms: int | None
) -> Checker:
    """A checker of queues whose dead letters go to others: `dead` says from where, for each of
    those. `queue_ttl_ms`: of queues where every message has one.
    """

    def check(ops: Sequence[Op]) -> Verdict:
        asked: dict[tuple[str, str], Op] = {}
        early: list[str] = []
        died_early: list[str] = []
        immortal: list[str] = []
        overdue: list[str] = []
        delayed = expired = 0
        for op in ops:
            if op.f == "publish" and op.type == "invoke":
                asked.update({(op.value["queue"], message): op for message in published(op)})
            if op.f != "deliver":
                continue
            queue = op.value["queue"]
            source = dead.get(queue)
            for message in op.value["messages"]:
                publish = asked.get((source or queue, message))
                if publish is None:
                    continue  # nobody put it in: others judge that
                waited_ms = op.wall_ms - publish.wall_ms
                about = f"{message} of {queue} (op {op.index}) after {waited_ms} ms"
                delay_ms = publish.value.get("delay_ms")
                ttl_ms = _shortest(publish.value.get("ttl_ms"), queue_ttl_ms.get(source or queue))
                if source is None and delay_ms is not None:
                    delayed += 1
                    if tolerance_ms is not None and waited_ms + tolerance_ms < delay_ms:
                        early.append(f"{about}, asked for {delay_ms}")
                elif source is not None and op.value.get("reason") == "expired":
                    expired += 1
                    if ttl_ms is None:
                        immortal.append(about)
                    elif tolerance_ms is not None and waited_ms + tolerance_ms < ttl_ms:
                        died_early.append(f"{about}, its time was {ttl_ms}")
                elif (
                    source is None
                    and ttl_ms is not None
                    and tolerance_ms is not None
                    and waited_ms > ttl_ms + OVERDUE_MS
                ):
                    overdue.append(f"{about}, its time was {ttl_ms}")
        return judge(
            "expiry",
            {
                "delivered before its delay": early,
                "expired before its time": died_early,
                "expired without a time": immortal,
                "delivered long after its time": overdue,
            },
            reported={"delayed": delayed, "expired": expired},
        )

    return check


def _shortest(*spans_ms: int | None) -> int | None:
    return min((span for span in spans_ms if span is not None), default=None)
