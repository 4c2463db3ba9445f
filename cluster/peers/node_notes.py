"""What a node notes in its log of itself and its peers, for a later reader. No group needs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cluster.codec.cbor import pack
from cluster.log import Log
from cluster.log import format as fmt
from cluster.machine.versions import MACHINE_VERSION
from cluster.raft.link_protocol import ClockSample
from cluster.types import CATALOG_GROUP, NodeId


@cache
def release() -> str:
    """Of this process; empty when it was never installed."""
    try:
        return version("quorate")
    except PackageNotFoundError:
        return ""


class NodeNotes:
    """Never a reason for a sync. A log that takes nothing any more is told nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def started(self, incarnation: int) -> None:
        """The first word of a process: by this number the others know it."""
        self._note(fmt.KIND_STARTED, [incarnation, release(), MACHINE_VERSION, fmt.FORMAT_VERSION])

    def settings(self, values: Mapping[str, str]) -> None:
        """All that this process was told, secrets left out."""
        self._note(fmt.KIND_SETTINGS, [dict(values)])

    def link_up(self, peer: NodeId, incarnation: int) -> None:
        self._note(fmt.KIND_LINK_UP, [peer, incarnation])

    def link_down(self, peer: NodeId, incarnation: int, *, gone: bool) -> None:
        self._note(fmt.KIND_LINK_DOWN, [peer, incarnation, gone])

    def clock(self, sample: ClockSample) -> None:
        """How far a peer's clock is from ours."""
        times = [sample.sent_ns, sample.received_ns, sample.answered_ns, sample.returned_ns]
        self._note(fmt.KIND_CLOCK, [sample.peer, *times])

    def alarm(self, node: NodeId, *, memory: bool, disk: bool) -> None:
        """What that node is low on from now on: this one, or one that said so."""
        self._note(fmt.KIND_ALARM, [node, memory, disk])

    def publishers(self, blocked: str | None) -> None:
        """Why they have to wait from now on; None: they go on."""
        self._note(fmt.KIND_PUBLISHERS, [blocked])

    def failed(self, reason: str, at_ns: int) -> None:
        """What ended the process before this one, which could not say so itself."""
        self._note(fmt.KIND_FAILED, [reason, at_ns])

    def archive(self, problem: str | None) -> None:
        """Why segments cannot be archived from now on; None: they can."""
        self._note(fmt.KIND_ARCHIVE, [problem])

    def stall(self, *, loop_ms: int, process_ms: int) -> None:
        """So long the event loop did not turn; so long of it no other thread ran either."""
        self._note(fmt.KIND_STALL, [loop_ms, process_ms])

    def stopped(self) -> None:
        """The last word of a process that ends in order."""
        self._log.note(fmt.KIND_STOPPED, CATALOG_GROUP, 0, 0, b"")

    def _note(self, kind: int, fields: list[Any]) -> None:
        if self._log.wal.failure is None:
            self._log.note(kind, CATALOG_GROUP, 0, 0, pack(fields))
