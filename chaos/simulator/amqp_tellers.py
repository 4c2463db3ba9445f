"""AMQP clients with transactions: messages move from one queue to two others, in two groups."""

from __future__ import annotations

import asyncio

from pamqp import commands

from chaos.history import Op, OpType, settle_value
from chaos.simulator.amqp_clients import AmqpChannel
from chaos.simulator.amqp_consumers import AmqpConsumer
from chaos.simulator.amqp_publishers import PLAIN
from chaos.simulator.clients import Scene
from node.message import where_of
from node.protocols.amqp.events import Acks, Publish

Tx = commands.Tx
MESSAGES_MAX = 4
REFUSED = "partial tx completion"


class AmqpTeller(AmqpConsumer):
    """Publishes to both and acks, as one transaction: all of it happens, or nothing."""

    kind = "amqp-teller"

    def __init__(self, scene: Scene, name: str, queue: str, targets: tuple[str, str]) -> None:
        super().__init__(scene, name, queue)
        self._targets = targets
        self._number = 0
        self._ops: list[Op] = []

    @property
    def waits(self) -> str | None:
        return f"{self.name} waits for its transaction" if self._ops else None

    async def begin(self, channel: AmqpChannel) -> bool:
        return await channel.ask(Tx.Select, Tx.SelectOk) is not None

    async def settle_some(self, channel: AmqpChannel) -> None:
        tags = list(self.held)[:MESSAGES_MAX]
        rows = [self.held[tag] for tag in tags]
        self._number += 1
        number = self._number
        rolled_back = self.dice.random() < 0.1
        if not rolled_back:
            self._ops = self.invoke_publish(channel, number, self._targets)
            for row in rows:
                value = settle_value(row.queue, int(row.consumer), row.token, [row.message])
                value["transaction"] = f"{channel.name}:{number}"
                self._ops.append(self.scene.history.invoke(self.name, "settle", value))
        body = f"{channel.name}:{number}|".encode()
        acks = [(0, tags[-1])] if self.dice.random() < 0.5 else [(tag, tag) for tag in tags]
        channel.send(
            *[
                Publish(channel.number, where_of("", queue), False, False, PLAIN, [body])
                for queue in self._targets
            ],
            Acks(channel.number, acks),
        )
        if rolled_back:
            if await channel.ask(Tx.Rollback, Tx.RollbackOk) is not None:
                self.count("AMQP transactions rolled back")
        elif await channel.ask(Tx.Commit, Tx.CommitOk) is not None:
            self._end("ok")
            self._gone(tags, "messages settled")
            self.count("messages confirmed", len(self._targets))
            self.count("AMQP transactions committed")
        elif REFUSED in channel.why:
            self._end("refused")
            self.count("AMQP transactions refused")
        else:
            self.count("AMQP transactions unknown")
            await asyncio.sleep(0)

    def _end(self, kind: OpType) -> None:
        self.scene.history.end_all(self._ops, kind)
        self._ops = []

    def lost(self, channel: AmqpChannel) -> None:
        super().lost(channel)
        self._end("unknown")
