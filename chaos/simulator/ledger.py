"""What nodes handed to AMQP clients, and what became of the settles: a client is told neither.

On the wire a delivery has a tag, and an ack no answer. The checkers want to know which decision a
delivery is part of, and which acks were decided, so nodes under simulation write it down here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from chaos.history import History, Op, settle_value
from chaos.load.driver import id_of
from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Done, Outcome
from cluster.machine.commands import Discard, Settle
from cluster.machine.replies import Ok
from cluster.types import ConsumerKey, GroupId, QueueId
from node.broker.bodies import head_of
from node.broker.settle_retry import SettleCommand, SettleRetry
from node.dispatch.outgoing import MessageBatch
from node.metrics.client_counters import Counts


class Row(NamedTuple):
    """One message handed to one consumer."""

    client: str
    queue: str
    message: str
    consumer: ConsumerKey
    token: int
    position: int
    delivery_count: int
    acquired_count: int


class Ledger:
    """One a run."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._handed: dict[tuple[str, str], deque[Row]] = {}
        self._held: dict[tuple[QueueId, ConsumerKey, int], Row] = {}

    def hand(
        self,
        client: str,
        tag: str,
        queue: str,
        queue_id: QueueId,
        key: ConsumerKey,
        batches: Sequence[MessageBatch],
    ) -> None:
        """A node is about to write these."""
        for batch in batches:
            for position, body in enumerate(batch.bodies, batch.first):
                message = id_of(head_of(body))
                counts = batch.delivery_count, batch.acquired_count
                row = Row(client, queue, message, key, batch.token, position, *counts)
                self._handed.setdefault((tag, message), deque()).append(row)
                self._held[queue_id, key, position] = row

    def take(self, tag: str, message: str) -> Row | None:
        """A client was given this by the consumer of that tag, which is never used twice."""
        rows = self._handed.get((tag, message))
        return rows.popleft() if rows else None

    # --- settles ----------------------------------------------------------------------------------

    def settle(self, command: Settle | Discard) -> list[Op]:
        """A node sets out to have these settled."""
        found: dict[int, list[Row]] = {}
        for first, last in command.ranges:
            for position in range(first, last + 1):
                row = self._held.get((command.queue, command.consumer, position))
                if row is not None:
                    found.setdefault(row.token, []).append(row)
        return [
            self._history.invoke(
                rows[0].client,
                "settle" if type(command) is Settle else "discard",
                settle_value(
                    rows[0].queue, int(command.consumer), token, [row.message for row in rows]
                ),
            )
            for token, rows in found.items()
        ]

    def settled(self, ops: Sequence[Op], outcome: Outcome) -> None:
        """What was decided."""
        asked = sum(len(op.value["messages"]) for op in ops)
        reply = outcome.reply
        for op in ops:
            if type(reply) is Ok and reply.count == asked:
                self._history.end(op, "ok", None)
            else:
                kind = "unknown" if type(reply) is Ok or reply is None else "refused"
                self._history.end(op, kind, None)


class WatchedSettleRetry(SettleRetry):
    """Writes down what clients settle, and what was decided."""

    def __init__(self, cluster: ClusterNode, counts: Counts, ledger: Ledger) -> None:
        super().__init__(cluster, counts)
        self._ledger = ledger

    def settle(
        self,
        group: GroupId,
        command: SettleCommand,
        done: Done | None = None,
        *,
        by_client: bool = True,
        **how: Any,
    ) -> None:
        if not by_client or not isinstance(command, (Settle, Discard)):
            super().settle(group, command, done, by_client=by_client, **how)
            return
        ops = self._ledger.settle(command)

        def decided(outcome: Outcome) -> None:
            self._ledger.settled(ops, outcome)
            if done is not None:
                done(outcome)

        super().settle(group, command, decided, **how)
