"""AMQP 0-9-1, as it is fuzzed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import aiormq
from pamqp.commands import Channel, Connection

from quorate.local import LocalCluster, LocalNode
from tests.acceptance.fuzz.amqp import wire
from tests.acceptance.fuzz.amqp.found import FOUND
from tests.acceptance.fuzz.amqp.kinds import KINDS
from tests.acceptance.fuzz.amqp.steady import SteadyAmqp
from tests.acceptance.fuzz.attack import Answers

QUEUE_LENGTH_MAX = 500
QUEUE_BYTES_MAX = 2_000_000

_FRAME = struct.Struct(">BHI")
_CLOSES = {Channel.Close.index: "channel", Connection.Close.index: "connection"}
_LISTS = ("queues", "exchanges", "bindings", "consumers", "definitions")


class AmqpAnswers(Answers):
    """Frames."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = b""

    def feed(self, data: bytes) -> None:
        data = self._kept + data
        at = 0
        while len(data) - at >= _FRAME.size:
            if data.startswith(b"AMQP", at):
                self.codes["protocol header"] += 1
                at += 8
                continue
            kind, _, size = _FRAME.unpack_from(data, at)
            stop = at + _FRAME.size + size
            if stop >= len(data):
                break
            if kind == wire.METHOD:
                self._method(data[at + 7 : stop])
            at = stop + 1
        self._kept = data[at:]

    def _method(self, payload: bytes) -> None:
        index = int.from_bytes(payload[:4])
        if index in _CLOSES:
            self.codes[f"{int.from_bytes(payload[4:6])} {_CLOSES[index]}"] += 1
        if index in (Connection.Close.index, Connection.CloseOk.index):
            self.ended = True


class AmqpTarget:
    kinds = KINDS
    found = FOUND
    goodbye = wire.goodbye()
    answers = AmqpAnswers

    def port(self, node: LocalNode) -> int:
        return node.amqp

    def steady(self, nodes: list[LocalNode]) -> SteadyAmqp:
        return SteadyAmqp(nodes)

    async def prepare(self, cluster: LocalCluster) -> None:
        """The queues that inputs name, of bounded length."""
        connection = await aiormq.connect(cluster.nodes[0].amqp_url)
        channel = await connection.channel()
        bounds = {"x-max-length": QUEUE_LENGTH_MAX, "x-max-length-bytes": QUEUE_BYTES_MAX}
        for name in wire.QUEUES:
            await channel.queue_declare(name, durable=True, arguments=dict(bounds))
        await connection.close()

    def questions(self, nodes: Sequence[LocalNode]) -> list[tuple[str, str, Any]]:
        url = f"{nodes[0].url}/api"
        get = {"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"}
        lists: list[tuple[str, str, Any]] = [("GET", f"{url}/{each}", None) for each in _LISTS]
        return lists + [("POST", f"{url}/queues/%2F/{each}/get", get) for each in wire.QUEUES]
