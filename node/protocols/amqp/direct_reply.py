"""Direct reply-to: answers that go straight to the channel that asked, through no queue.

A client consumes from `amq.rabbitmq.reply-to` and names it as reply_to; the broker puts a name of
its own there, which only this channel answers to, and whoever publishes to that name reaches it, at
whichever node. Nothing is stored: a requester that is gone gets nothing.
"""

from __future__ import annotations

import secrets
from typing import Any, Protocol, cast

from cluster.types import NodeId
from node.broker.ingress import REPLY_TO
from node.peer_rpc import PeerRpc

PSEUDO_QUEUE = REPLY_TO
PREFIX = PSEUDO_QUEUE + "."


class Requester(Protocol):
    """The channel that waits for answers."""

    def direct_reply(self, where: bytes, properties: bytes, bodies: list[bytes]) -> None: ...


class DirectReplies:
    """One per node: who waits here, and the way to those that wait elsewhere."""

    def __init__(self, node: NodeId, peer_rpc: PeerRpc) -> None:
        self._node = node
        self._peer_rpc = peer_rpc
        self._waiting: dict[str, Requester] = {}
        peer_rpc.on("direct_reply", self._receive)
        peer_rpc.on("direct_reply_exists", lambda _, fields: fields[0] in self._waiting)

    def open(self, requester: Requester) -> str:
        """The name that reaches this channel."""
        name = f"{PREFIX}{self._node}.{secrets.token_urlsafe(18)}"
        self._waiting[name] = requester
        return name

    def close(self, name: str) -> None:
        self._waiting.pop(name, None)

    def deliver(self, name: str, where: bytes, properties: bytes, bodies: list[bytes]) -> bool:
        """False: nobody waits there, as far as can be told."""
        requester = self._waiting.get(name)
        if requester is not None:
            requester.direct_reply(where, properties, bodies)
            return True
        node = node_of(name)
        if node is None or node == self._node:
            return False
        return self._peer_rpc.notify(node, "direct_reply", name, where, properties, bodies)

    async def exists(self, name: str) -> bool:
        node = node_of(name)
        if node is None:
            return False
        return bool(await self._peer_rpc.request(node, "direct_reply_exists", name))

    def _receive(self, _: NodeId, fields: list[Any]) -> None:
        match fields:
            case [str(name), bytes(where), bytes(properties), bodies]:
                requester = self._waiting.get(name)
                if requester is not None:
                    requester.direct_reply(where, properties, cast("list[bytes]", bodies))
            case _:
                pass


def node_of(name: str) -> NodeId | None:
    """Node names may have dots; the secret has none."""
    node, dot, _ = name.removeprefix(PREFIX).rpartition(".")
    return NodeId(node) if dot and name.startswith(PREFIX) else None
