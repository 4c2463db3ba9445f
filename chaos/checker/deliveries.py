"""A history sorted by queue and message, once, for the checkers that ask what became of each
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chaos.history import Op

MessageKey = tuple[str, str]  # queue, message id


class Delivery(NamedTuple):  # there are millions
    """One message handed to one consumer once. A repeat of the same decision carries the same
    token; where the protocol tells none, every delivery is a decision of its own.
    """

    queue: str
    message: str
    position: int | None
    consumer: int | str
    token: int | None
    delivery_count: int | None
    acquired_count: int
    op: int  # index in the history
    at: int  # place among the messages of that op

    @property
    def counts_acquired(self) -> bool:
        """Clients of live nodes, whose names are words, are told a flag, not how often."""
        return isinstance(self.consumer, int)

    def describe(self) -> str:
        return (
            f"op {self.op}: {self.queue} {self.message} at position {self.position}"
            f" to consumer {self.consumer} token {self.token}"
            f" delivery_count {self.delivery_count} acquired_count {self.acquired_count}"
        )


def deliveries(ops: Sequence[Op]) -> Iterator[Delivery]:
    for op in ops:
        if op.f == "deliver":
            value = op.value
            queue, consumer, token = value["queue"], value["consumer"], value["token"]
            first, failed = value["first"], value["delivery_count"]
            acquired = value["acquired_count"] or 0
            for at, message in enumerate(value["messages"]):
                position = None if first is None else first + at
                yield Delivery(
                    queue, message, position, consumer, token, failed, acquired, op.index, at
                )


def deliveries_by_message(ops: Sequence[Op]) -> dict[MessageKey, list[Delivery]]:
    """Every delivery of a message once per decision: in the order of their tokens, or of the
    history where one of them has none.
    """
    found: dict[MessageKey, list[Delivery]] = {}
    for delivery in deliveries(ops):
        found.setdefault((delivery.queue, delivery.message), []).append(delivery)
    for seen in found.values():
        if len(seen) > 1:
            seen[:] = _decisions(seen)
    return found


def _decisions(seen: list[Delivery]) -> list[Delivery]:
    by_token: dict[int, Delivery] = {}
    others: list[Delivery] = []
    for delivery in seen:
        if delivery.token is None:
            others.append(delivery)
        else:
            by_token.setdefault(delivery.token, delivery)
    if others:
        return sorted([*by_token.values(), *others], key=lambda each: (each.op, each.at))
    return [by_token[token] for token in sorted(by_token)]


def surely_after(later: Delivery, earlier: Delivery) -> bool:
    """Whether this one of two deliveries of a message was decided after the other.

    Tokens tell. Without them the history alone does not: what a slow connection still held arrives
    after what was decided later. But the first decision is never flagged, failures only add up, and
    one consumer gets things in order.
    """
    if later.token is not None and earlier.token is not None:
        return later.token > earlier.token
    if (later.op, later.at) == (earlier.op, earlier.at):
        return False
    if later.acquired_count and not earlier.acquired_count:
        return True
    if earlier.acquired_count and not later.acquired_count:
        return False
    failed = (later.delivery_count or 0, earlier.delivery_count or 0)
    if failed[0] != failed[1]:
        return failed[0] > failed[1]
    return later.consumer == earlier.consumer and later.op > earlier.op


def unflagged_again(seen: Sequence[Delivery]) -> list[Delivery]:
    """Of one message's deliveries: those that were not the first, and not flagged."""
    if len(seen) < 2:
        return []
    if all(delivery.token is not None for delivery in seen):
        return [again for again in seen[1:] if again.acquired_count == 0]
    flagged_to: set[int | str] = set()
    found: list[Delivery] = []
    unflagged = 0
    for delivery in seen:
        if delivery.acquired_count:
            flagged_to.add(delivery.consumer)
            continue
        unflagged += 1
        if unflagged > 1 or delivery.consumer in flagged_to:
            found.append(delivery)
    return found


def positions(seen: Sequence[Delivery]) -> list[int]:
    """Where a message was stored, as far as that was told; more than one: it was stored twice."""
    return sorted({each.position for each in seen if each.position is not None})


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
    kept_out = {
        offset for first, last in value.get("refused") or () for offset in range(first, last + 1)
    }
    for offset in range(value["count"]):
        if offset not in kept_out:
            yield f"{value['publisher']}:{value['first'] + offset}"


def published_keys(op: Op) -> list[MessageKey]:
    """What a publish or a transaction put into queues, if it happened; empty for other ops."""
    if op.f == "publish":
        return [(op.value["queue"], message) for message in published(op)]
    if op.f == "transaction":
        return [(queue, message) for queue, message in op.value["publishes"]]
    return []


def settled_keys(op: Op) -> list[MessageKey]:
    """What a settle, discard or transaction took out of queues, if it happened."""
    if op.f in ("settle", "discard"):
        return [(op.value["queue"], message) for message in op.value["messages"]]
    if op.f == "transaction":
        return [(queue, message) for queue, message in op.value["settles"]]
    return []
