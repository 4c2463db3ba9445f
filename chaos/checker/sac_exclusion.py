"""At most one consumer of a single-active-consumer queue works at a time, as far as tokens can say.

No broker can stop a consumer that was declared dead and goes on; what it can do is refuse its
settles, and number the deliveries so that a store can refuse its writes. So: once a consumer holds
a delivery with a newer token, an older token of *another* consumer is worth nothing: its settle,
invoked after that, must be refused; and a guarded store never accepts an old token after a newer
one. Deliveries without a token say nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.checker.deliveries import whole_settles
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def sac_exclusion(is_single_active: Callable[[str], bool]) -> Checker:
    """A checker of the queues for which the function says so."""

    def check(ops: Sequence[Op]) -> Verdict:
        whole = {op.index for op in whole_settles(ops)}
        outcome = {op.invoke: op for op in ops if op.invoke is not None}
        newest: dict[
            str, list[tuple[int, int | str]]
        ] = {}  # queue -> [(token, consumer)], the two newest of two consumers
        owner: dict[tuple[str, int], int | str] = {}
        stored: dict[str, int] = {}
        shared: list[str] = []
        late: list[str] = []
        backward: list[str] = []
        for op in ops:
            queue = op.value.get("queue", "")
            if not is_single_active(queue):
                continue
            if op.f == "deliver":
                token, consumer = op.value["token"], op.value["consumer"]
                if token is None:
                    continue
                if owner.setdefault((queue, token), consumer) != consumer:
                    shared.append(f"op {op.index}: token {token} of {queue} went to two consumers")
                newest[queue] = _two_newest([*newest.get(queue, []), (token, consumer)])
            elif op.f == "settle" and op.type == "invoke":
                ended = outcome.get(op.index)
                if ended is None or ended.index not in whole or op.value["token"] is None:
                    continue
                late += [
                    f"op {ended.index}: {queue} settle of token {op.value['token']}"
                    f" by {op.value['consumer']} accepted"
                    f" though {consumer} held token {token} already"
                    for token, consumer in newest.get(queue, [])
                    if consumer != op.value["consumer"] and token > op.value["token"]
                ]
            elif op.f == "store" and op.value["accepted"] and op.value["token"] is not None:
                token = op.value["token"]
                if token < stored.get(queue, 0):
                    backward.append(
                        f"op {op.index}: {queue} accepted {token} after {stored[queue]}"
                    )
                stored[queue] = max(token, stored.get(queue, 0))
        return judge(
            "sac-exclusion",
            {"token shared": shared, "old token settled": late, "old token stored": backward},
            reported={"decisions": len(owner)},
        )

    return check


def _two_newest(held: list[tuple[int, int | str]]) -> list[tuple[int, int | str]]:
    """The newest token of each of the two consumers whose tokens are the newest."""
    best: dict[int | str, int] = {}
    for token, consumer in held:
        best[consumer] = max(token, best.get(consumer, 0))
    pairs = [(token, consumer) for consumer, token in best.items()]
    return sorted(pairs, key=lambda pair: pair[0], reverse=True)[:2]
