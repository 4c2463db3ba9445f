"""What a node notes in its log of itself and its peers, for a later reader. No group needs it."""

from __future__ import annotations

from typing import Any

from cluster.codec.cbor import pack
from cluster.log import KIND_CLOCK, KIND_LINK_DOWN, KIND_LINK_UP, KIND_STOPPED, Log
from cluster.raft.link_protocol import ClockSample
from cluster.types import CATALOG_GROUP, NodeId


class NodeNotes:
    """Never a reason for a sync."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def link_up(self, peer: NodeId, incarnation: int) -> None:
        self._note(KIND_LINK_UP, [peer, incarnation])

    def link_down(self, peer: NodeId, incarnation: int, *, gone: bool) -> None:
        self._note(KIND_LINK_DOWN, [peer, incarnation, gone])

    def clock(self, sample: ClockSample) -> None:
        """How far a peer's clock is from ours."""
        times = [sample.sent_ns, sample.received_ns, sample.answered_ns, sample.returned_ns]
        self._note(KIND_CLOCK, [sample.peer, *times])

    def stopped(self) -> None:
        """The last word of a process that ends in order."""
        self._log.note(KIND_STOPPED, CATALOG_GROUP, 0, 0, b"")

    def _note(self, kind: int, fields: list[Any]) -> None:
        self._log.note(kind, CATALOG_GROUP, 0, 0, pack(fields))
