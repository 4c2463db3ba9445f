"""A history sorted by queue and message, once, for the checkers that ask what became of each
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.history import Op

MessageKey = tuple[str, str]  # queue, message id


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message handed to one consumer once. A repeat of the same decision carries the same
    token.
    """

    queue: str
    message: str
    position: int
    consumer: int
    token: int
    delivery_count: int
    acquired_count: int
    op: int  # index in the history

    def describe(self) -> str:
        return (
            f"op {self.op}: {self.queue} {self.message} at position {self.position}"
            f" to consumer {self.consumer} token {self.token}"
            f" delivery_count {self.delivery_count} acquired_count {self.acquired_count}"
        )


def deliveries(ops: Sequence[Op]) -> Iterator[Delivery]:
    for op in ops:
        if op.f == "deliver":
            value: dict[str, Any] = op.value
            for offset, message in enumerate(value["messages"]):
                yield Delivery(
                    value["queue"],
                    message,
                    value["first"] + offset,
                    value["consumer"],
                    value["token"],
                    value["delivery_count"],
                    value["acquired_count"],
                    op.index,
                )


def deliveries_by_message(ops: Sequence[Op]) -> dict[MessageKey, list[Delivery]]:
    """Every delivery of a message once per token, in the order of the decisions."""
    found: dict[MessageKey, dict[int, Delivery]] = {}
    for delivery in deliveries(ops):
        tokens = found.setdefault((delivery.queue, delivery.message), {})
        tokens.setdefault(delivery.token, delivery)
    return {key: [tokens[token] for token in sorted(tokens)] for key, tokens in found.items()}


def whole_settles(ops: Sequence[Op]) -> Iterator[Op]:
    """Settles and discards that were confirmed for every message they named."""
    for op in ops:
        if op.f in ("settle", "discard") and op.type == "ok":
            asked = len(op.value["messages"])
            if op.value.get("count", asked) == asked:
                yield op


def published(op: Op) -> Iterator[str]:
    """Ids of the messages of a publish op that no limit kept out."""
    value = op.value
    refused = value.get("refused") or ()
    for offset in range(value["count"]):
        if not any(first <= offset <= last for first, last in refused):
            yield f"{value['publisher']}:{value['first'] + offset}"
