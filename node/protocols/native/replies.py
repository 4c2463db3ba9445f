"""Frames to clients: what the node has to say, as CBOR arrays (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

import cbor2

from cluster.types import LargeBody
from node.dispatch.outgoing import (
    Active,
    Delivery,
    Ended,
    Failure,
    GetAnswer,
    MessageBatch,
    Moved,
    Outgoing,
    PublishConfirms,
    RequestAnswer,
    Shards,
    StreamMessages,
    SubscribeAnswer,
)
from node.messages.message import as_map
from node.protocols.native.requests import VERSION, Opcode

#: A node's name to the URL of its WebSocket, or None when it is not known.
UrlOf = Callable[[str], str | None]


def encode(frame: Outgoing, url_of: UrlOf) -> bytes:
    """One frame."""
    return cbor2.dumps(_array(frame, url_of))


def _array(frame: Outgoing, url_of: UrlOf) -> list[Any]:
    match frame:
        case PublishConfirms(confirms):
            return [Opcode.CONFIRM.value, [list(confirm) for confirm in confirms]]
        case Delivery(queue, consumer, batches):
            return [Opcode.DELIVER.value, queue, consumer, chunks(batches)]
        case RequestAnswer(request, value):
            return [Opcode.OK.value, request, value]
        case SubscribeAnswer(request, consumer, active):
            return [Opcode.SUBSCRIBED.value, request, consumer, active]
        case GetAnswer(request, queue, consumer, ready, batches):
            return [Opcode.GOT.value, request, queue, consumer, ready, chunks(batches)]
        case StreamMessages(request, queue, following, batches):
            return [Opcode.MESSAGES.value, request, queue, following, chunks(batches)]
        case Failure(request, code, reason, detail):
            return [Opcode.ERROR.value, request, code, reason, detail]
        case Moved(request, queue, leader):
            url = None if leader is None else url_of(leader)
            return [Opcode.REDIRECT.value, request, queue, leader, url]
        case Ended(queue, consumer, reason):
            return [Opcode.ENDED.value, queue, consumer, reason]
        case Active(queue, consumer, active, token):
            return [Opcode.ACTIVE.value, queue, consumer, active, token]
        case Shards(queue, names):
            return [Opcode.SHARDS.value, queue, list(names)]
        case _:
            assert_never(frame)


def chunks(batches: list[MessageBatch]) -> list[list[Any]]:
    """Of a large body only that it is there: it went in parts, before."""
    return [
        list(
            batch._replace(
                meta=as_map(batch.meta),
                bodies=[None] if type(batch.bodies[0]) is LargeBody else batch.bodies,  # type: ignore[list-item]
            )
        )
        for batch in batches
    ]


def part(queue: str, consumer: int, position: int, data: bytes) -> bytes:
    return cbor2.dumps([Opcode.DELIVER_PART.value, queue, consumer, position, data])


def welcome(
    *,
    node: str,
    cluster: str,
    session: str,
    resumed: bool,
    limits: Mapping[str, int],
    nodes: Mapping[str, str],
) -> bytes:
    about = {
        "node": node,
        "cluster": cluster,
        "session": session,
        "resumed": resumed,
        **limits,
        "nodes": dict(nodes),
    }
    return cbor2.dumps([Opcode.WELCOME.value, VERSION, about])


def error(request: int, code: str, reason: str, detail: Any = None) -> bytes:
    return cbor2.dumps([Opcode.ERROR.value, request, code, reason, detail])


def pong(number: int) -> bytes:
    return cbor2.dumps([Opcode.PONG.value, number])


def goodbye(code: int, reason: str) -> bytes:
    return cbor2.dumps([Opcode.CLOSE.value, code, reason])
