"""Alarms: a node of the cluster is low on memory or disk, and publishers have to wait everywhere.

Consumers never wait: they are what makes room. Each node tells the others what it lacks; a node
that is down lacks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from cluster.types import NodeId
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

KIND = "alarm"
#: The alarm ends below this share of the limit, or it would come and go with every message.
CLEAR_SHARE = 0.95
#: News may be lost: it is told again every so many samples.
NOTIFY_AGAIN_SAMPLES = 5


class Lack(NamedTuple):
    """What one node is low on."""

    memory: bool = False
    disk: bool = False


class Alarms:
    """One per node. `sample` is called once a second."""

    def __init__(
        self, peer_rpc: PeerRpc, *, memory_bytes_max: int, memory_bytes: Callable[[], int]
    ) -> None:
        self.memory_bytes_max = memory_bytes_max
        self.on_change: list[Callable[[], None]] = []
        #: Told what a node lacks whenever that changes; None: this one.
        self.on_lack: Callable[[NodeId | None, Lack], None] = lambda _node, _lack: None
        #: What any node is low on. Publishers wait while that is something.
        self.lack = Lack()
        self._peer_rpc = peer_rpc
        self._memory_bytes = memory_bytes
        self._own = Lack()
        self._others: dict[NodeId, Lack] = {}
        self._notified: set[NodeId] = set()
        self._samples = 0
        peer_rpc.on(KIND, self._on_notice)

    @property
    def memory(self) -> bool:
        """Of this node."""
        return self._own.memory

    @property
    def disk(self) -> bool:
        """Of this node."""
        return self._own.disk

    @property
    def blocked(self) -> str | None:
        """Why publishers wait, in RabbitMQ's words. None: they do not."""
        words = [name for name, low in zip(Lack._fields, self.lack, strict=True) if low]
        return f"low on {' & '.join(words)}" if words else None

    @property
    def lacks(self) -> dict[NodeId, Lack]:
        """Of the other nodes that are up, those that lack something."""
        up = self._peer_rpc.others()
        return {node: lack for node, lack in self._others.items() if any(lack) and node in up}

    def sample(self, *, disk: bool) -> None:
        """`disk`: this node has too little of it now."""
        used = self._memory_bytes()
        share = CLEAR_SHARE if self._own.memory else 1.0
        own = Lack(used >= self.memory_bytes_max * share, disk)
        changed = own != self._own
        if changed:
            log.warning("alarm", memory=own.memory, disk=own.disk, memory_bytes=used)
            self.on_lack(None, own)
        self._own = own
        self._samples += 1
        self._notify(everyone=changed or self._samples % NOTIFY_AGAIN_SAMPLES == 0)
        self._conclude()

    def _notify(self, *, everyone: bool) -> None:
        others = set(self._peer_rpc.others())
        for node in sorted(others if everyone else others - self._notified):
            self._peer_rpc.notify(node, KIND, *self._own)
        self._notified = others

    def _on_notice(self, peer: NodeId, fields: list[Any]) -> None:
        match fields:
            case [bool(memory), bool(disk)]:
                lack = Lack(memory, disk)
                if lack != self._others.get(peer, Lack()):
                    self.on_lack(peer, lack)
                self._others[peer] = lack
                self._conclude()
            case _:
                log.warning("alarm_unreadable", peer=peer)

    def _conclude(self) -> None:
        every = [self._own, *self.lacks.values()]
        lack = Lack(any(each.memory for each in every), any(each.disk for each in every))
        if lack == self.lack:
            return
        self.lack = lack
        log.warning("publishers_wait" if any(lack) else "publishers_go_on", reason=self.blocked)
        for listener in self.on_change:
            listener()
