"""The end of channels and connections, in the words of the wire, and of what a connection owned."""

from __future__ import annotations

import asyncio
from typing import Final

from pamqp import commands

from cluster.machine.replies import NO_QUEUE
from node.broker.broker import Broker
from node.messages.amqp_errors import AmqpError
from node.protocols.amqp.methods import encode_method, made

CONNECTION: Final = 10
CHANNEL: Final = 20
#: Classes whose methods are the connection's own business.
OURS: Final = frozenset({CONNECTION, CHANNEL})

_CLOSE_OK: Final = encode_method(0, commands.Connection.CloseOk())
REMOVE_S_MAX: Final = 10.0
RETRY_S: Final = 0.1


class Search:
    """connection.close-ok among all that a client still sends. Frames are not told apart: what we
    close for may be that they cannot be.
    """

    def __init__(self) -> None:
        self._tail = b""

    def found_in(self, data: bytes) -> bool:
        joined = self._tail + data
        self._tail = joined[-len(_CLOSE_OK) + 1 :]
        return _CLOSE_OK in joined


def connection_close(error: AmqpError) -> commands.Connection.Close:
    return made(
        commands.Connection.Close,
        reply_code=error.code,
        reply_text=error.reply_text,
        class_id=error.class_id,
        method_id=error.method_id,
    )


def channel_close(error: AmqpError) -> commands.Channel.Close:
    return made(
        commands.Channel.Close,
        reply_code=error.code,
        reply_text=error.reply_text,
        class_id=error.class_id,
        method_id=error.method_id,
    )


async def remove_queue(broker: Broker, vhost: str, name: str, owner: str) -> None:
    """Tried again while nobody leads; should that last, the start of this node clears it away."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REMOVE_S_MAX
    while True:
        outcome = await broker.cluster.remove_queue(vhost, name, owner=owner)
        answered = outcome.kind == "ok" or (outcome.kind == "refused" and outcome.reply is not None)
        # An auto-delete queue may have gone already, with its last consumer.
        if answered or outcome.code == NO_QUEUE:
            return
        if loop.time() >= deadline:
            return
        await asyncio.sleep(RETRY_S)
