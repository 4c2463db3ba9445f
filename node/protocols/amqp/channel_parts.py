"""A channel as its methods see it: all its parts."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from node.protocols.amqp.declares_ahead import DeclaresAhead
from node.protocols.amqp.events import ChannelEvent
from node.protocols.amqp.publishes import Publishes, PublishingChannel


class ChannelParts(PublishingChannel, Protocol):
    publishes: Publishes
    declares_ahead: DeclaresAhead
    last_queue: str  # the queue declared last, which an empty name means
    waiting: deque[tuple[ChannelEvent, int]]

    @property
    def mode(self) -> str: ...
