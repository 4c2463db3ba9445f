"""Of each key of a queue with message groups one message is in flight at a time, in order.

Deliveries are put in the order of their tokens, which the machine gave them. A message comes before
all later ones of its key, however often it is handed out; and one is handed out only when every
earlier one that was is done with: somebody began to settle or to discard it before the later one
arrived. That holds where nothing else leaves the queue, and nothing is published with a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.checker.deliveries import Delivery, MessageKey, deliveries_by_message
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op

#: From a message's id to its key; None: it has none.
KeyOf = Callable[[str], str | None]


def message_groups(key_of: KeyOf) -> Checker:
    def check(ops: Sequence[Op]) -> Verdict:
        ended = _first_ends(ops)
        by_key: dict[MessageKey, list[Delivery]] = {}
        for (queue, message), seen in deliveries_by_message(ops).items():
            key = key_of(message)
            if key is not None:
                by_key.setdefault((queue, key), []).extend(seen)
        together: list[str] = []
        overtaken: list[str] = []
        for decisions in by_key.values():
            decisions.sort(key=lambda each: (each.token or 0, each.position or 0))
            latest: Delivery | None = None
            for delivery in decisions:
                if latest is None or delivery.message == latest.message:
                    latest = delivery
                    continue
                if (delivery.position or 0) < (latest.position or 0):
                    overtaken.append(f"{latest.describe()}, then {delivery.describe()}")
                elif ended.get((latest.queue, latest.message), delivery.op) >= delivery.op:
                    together.append(f"{latest.describe()}, and {delivery.describe()}")
                latest = delivery
        return judge(
            "message-groups",
            {"two in flight": together, "overtaken": overtaken},
            reported={"keys": len(by_key), "deliveries": sum(map(len, by_key.values()))},
        )

    return check


def _first_ends(ops: Sequence[Op]) -> dict[MessageKey, int]:
    """When somebody first began to settle or discard a message."""
    found: dict[MessageKey, int] = {}
    for op in ops:
        if op.type == "invoke" and op.f in ("settle", "discard"):
            for message in op.value["messages"]:
                found.setdefault((op.value["queue"], message), op.index)
    return found
