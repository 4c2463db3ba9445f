"""What one transaction did to several queues happened in all of them, or in none.

That what was confirmed comes out at all, and nothing that was refused, `total_queue` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import (
    MessageKey,
    deliveries_by_message,
    published_keys,
    settled_keys,
)
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def transactions(ops: Sequence[Op]) -> Verdict:
    """A checker of `transaction` ops over queues that are drained in the end.

    One that published nothing, yet took away what nobody else settled, was half done too.
    """
    drained = {op.value["queue"] for op in ops if op.f == "drain" and op.type == "ok"}
    found = deliveries_by_message(ops)
    takers: dict[MessageKey, int] = {}  # how many asked for its settlement
    for op in ops:
        if op.type == "invoke":
            for key in settled_keys(op):
                takers[key] = takers.get(key, 0) + 1
    halves: list[str] = []
    undecided: list[str] = []
    taken: list[str] = []
    done = asked = 0
    for op in ops:
        if op.f != "transaction" or op.type != "invoke":
            continue
        asked += 1
        put = published_keys(op)
        came = [key for key in put if key in found]
        done += bool(put) and len(came) == len(put)
        missing = [key for key in put if key not in found]
        if came and missing:
            text = f"op {op.index}: {came[0]} came out, {missing[0]} did not"
            whole = all(queue in drained for queue, _ in missing)
            (halves if whole else undecided).append(text)
        elif put and not came and all(queue in drained for queue, _ in put):
            taken += [
                f"op {op.index}: published nothing, yet {key} is gone, and nobody else settled it"
                for key in settled_keys(op)
                if takers[key] == 1 and key[0] in drained
            ]
    return judge(
        "all-or-nothing",
        {"half done": halves, "settled without publishing": taken},
        undecided={"half done, not drained": undecided},
        reported={"transactions": asked, "done": done},
    )
