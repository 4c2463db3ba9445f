"""A dead letter tells where it died and why, and that is true."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op


def deaths(source: str, target: str, reasons: AbstractSet[str]) -> Checker:
    """A checker of what comes out of `target`: only what died in `source` for one of these
    `reasons`, and was rejected only if a consumer tried to.
    """

    def check(ops: Sequence[Op]) -> Verdict:
        discarded: set[str] = set()
        told: dict[str, int] = dict.fromkeys(sorted(reasons), 0)
        wrong: list[str] = []
        untrue: list[str] = []
        for op in ops:
            queue = op.value.get("queue")
            if op.f == "discard" and op.type == "invoke" and queue == source:
                discarded.update(op.value["messages"])
            elif op.f == "deliver" and queue == target:
                reason, died_in = str(op.value.get("reason")), op.value.get("died_in")
                if reason not in reasons or died_in != source:
                    wrong.append(f"op {op.index}: {op.value['messages']} {reason} in {died_in}")
                    continue
                told[reason] += len(op.value["messages"])
                if reason == "rejected":
                    untrue += [
                        f"op {op.index}: {message} was rejected by nobody"
                        for message in op.value["messages"]
                        if message not in discarded
                    ]
        return judge("deaths", {"wrong": wrong, "untrue": untrue}, reported=told)

    return check
