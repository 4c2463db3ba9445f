"""What nodes tell each other of NATS: where they listen, who wants which subjects, and messages.

All of it goes over the one link between two nodes, as notices of the kind "nats":

- `["hello", [address, TLS address]]`: forget what you know of me. The answer is all that is wanted
  at the other node. Said when a link comes up, and again after something found no room on it.
- `["interest", [[vhost, subject, queue, wanted], ...]]`: what is wanted there from now on, or no
  longer. The first who wants something is told of, and the last who goes.
- `["messages", [message, ...]]`: each as `Routed`.

What happens in one turn of the event loop is one notice of each. Interest goes before messages: who
is asked something knows where the answer is wanted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId
from node.peer_rpc import PeerRpc

KIND: Final = "nats"
#: Unsent towards a node, its Raft included: from here on no messages are sent there.
LINK_BYTES_MAX: Final = 8 << 20
#: From here on publishers are slowed down.
LINK_BYTES_SLOW: Final = 1 << 20
#: Of messages in one notice, or a little more.
NOTICE_BYTES: Final = 1 << 20
SUBJECTS_A_NOTICE: Final = 2_000
#: After something found no room on a link.
AGAIN_S: Final = 1.0

log = structlog.get_logger(__name__)

#: What somebody wants: vhost, subject, queue group or nothing.
Want = tuple[str, bytes, bytes]
#: Where clients connect without and with TLS.
Addresses = tuple[str | None, str | None]


class Routed(NamedTuple):
    """A message for another node, or several that differ only in their bytes."""

    vhost: str
    subject: bytes
    reply: bytes
    header_bytes: int
    size: int
    plain: bool  # for those that are in no queue group
    queues: list[bytes]  # for one member of each of these
    payloads: bytes  # each of `size`, with its CRLF
    to: bytes = b""  # who subscribed to this gets it, instead of to `subject`


class LocalInterest(Protocol):
    """Where interest is known: see `node.protocols.nats.subjects`."""

    def wanted(self, node: NodeId, want: Want) -> None: ...
    def unwanted(self, node: NodeId, want: Want) -> None: ...
    def arrived(self, message: Routed) -> None: ...
    def peers_changed(self) -> None:
        """Others listen, or at other addresses."""
        ...


@dataclass(slots=True)
class _Peer:
    """A node that has said hello over the link of now."""

    addresses: Addresses
    since_s: float
    wants: dict[Want, None] = field(default_factory=dict[Want, None])


class Routes:
    """One per node. Says nothing before `start`: its listener may be off."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc, local: LocalInterest) -> None:
        self.dropped = 0  # messages for which a link had no room
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._local = local
        self._addresses: Addresses | None = None
        self._peers: dict[NodeId, _Peer] = {}
        self._wants: Counter[Want] = Counter()  # here, by how many
        self._changes: dict[Want, bool] = {}  # not told yet
        self._outgoing: dict[NodeId, list[Routed]] = {}
        self._outgoing_bytes: Counter[NodeId] = Counter()
        self._flush_soon = False
        self._again: dict[NodeId, asyncio.TimerHandle] = {}
        peer_rpc.on(KIND, self._receive)
        cluster.on_link_up.append(self._hello)
        cluster.on_link_lost.append(self._link_lost)

    def start(self, addresses: Addresses) -> None:
        """Clients connect here; or elsewhere from now on, or nowhere any more."""
        self._addresses = addresses
        for node in self._peer_rpc.others():
            self._hello(node)

    def stop(self) -> None:
        self._addresses = None
        for timer in self._again.values():
            timer.cancel()
        self._again.clear()

    def addresses(self, *, tls: bool) -> list[str]:
        """Of the other nodes."""
        found = (peer.addresses[tls] for _, peer in sorted(self._peers.items()))
        return [address for address in found if address is not None]

    def others(self) -> list[tuple[NodeId, int]]:
        """The nodes that are linked, and how much is wanted there."""
        return [(node, len(peer.wants)) for node, peer in sorted(self._peers.items())]

    def up_s(self, node: NodeId) -> float:
        """Since when it is linked."""
        peer = self._peers.get(node)
        return 0.0 if peer is None else asyncio.get_running_loop().time() - peer.since_s

    # --- interest ---------------------------------------------------------------------------------

    def want(self, want: Want) -> None:
        self._wants[want] += 1
        if self._wants[want] == 1:
            self._changed(want, wanted=True)

    def unwant(self, want: Want) -> None:
        self._wants[want] -= 1
        if not self._wants[want]:
            del self._wants[want]
            self._changed(want, wanted=False)

    def _changed(self, want: Want, *, wanted: bool) -> None:
        if self._peers:
            self._changes[want] = wanted
            self._look_later()

    # --- messages ---------------------------------------------------------------------------------

    def send(self, node: NodeId, message: Routed) -> bool:
        """Once this turn is over. True: there is so much for that node that publishers shall go
        slower.
        """
        self._outgoing.setdefault(node, []).append(message)
        self._outgoing_bytes[node] += len(message.payloads)
        if self._outgoing_bytes[node] >= NOTICE_BYTES:
            self.flush()
        else:
            self._look_later()
        return self._cluster.links.buffered(node) > LINK_BYTES_SLOW

    def _look_later(self) -> None:
        if not self._flush_soon:
            self._flush_soon = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_soon = False
        changes, self._changes = self._changes, {}
        if changes:
            rows = [[*want, wanted] for want, wanted in changes.items()]
            for node in list(self._peers):
                self._tell(node, rows)
        outgoing, self._outgoing = self._outgoing, {}
        self._outgoing_bytes.clear()
        for node, messages in outgoing.items():
            room = self._cluster.links.buffered(node) < LINK_BYTES_MAX
            if not room or not self._peer_rpc.notify(node, KIND, "messages", messages):
                self._drop(messages)

    def _drop(self, messages: Iterable[Routed]) -> None:
        self.dropped += sum(len(each.payloads) // (each.size + 2) for each in messages)

    # --- from node to node ------------------------------------------------------------------------

    def _hello(self, node: NodeId) -> None:
        self._unschedule(node)
        if self._addresses is None:
            return
        if not self._peer_rpc.notify(node, KIND, "hello", list(self._addresses)):
            self._later(node)
        elif node in self._peers:  # which knows nothing of this node any more
            self._tell_all(node)

    def _tell_all(self, node: NodeId) -> None:
        self._tell(node, [[*want, True] for want in self._wants])

    def _tell(self, node: NodeId, rows: list[list[Any]]) -> None:
        for first in range(0, len(rows), SUBJECTS_A_NOTICE):
            some = rows[first : first + SUBJECTS_A_NOTICE]
            if not self._peer_rpc.notify(node, KIND, "interest", some):
                self._later(node)
                return

    def _later(self, node: NodeId) -> None:
        """What was not sent must not be missing for ever: all of it again, if there is a link."""
        if node not in self._again and node in self._peer_rpc.others():
            loop = asyncio.get_running_loop()
            self._again[node] = loop.call_later(AGAIN_S, self._hello, node)

    def _unschedule(self, node: NodeId) -> None:
        timer = self._again.pop(node, None)
        if timer is not None:
            timer.cancel()

    def _link_lost(self, node: NodeId) -> None:
        self._unschedule(node)
        if self._forget(node):
            self._local.peers_changed()

    def _forget(self, node: NodeId) -> bool:
        self._drop(self._outgoing.pop(node, ()))
        peer = self._peers.pop(node, None)
        if peer is None:
            return False
        for want in peer.wants:
            self._local.unwanted(node, want)
        return True

    def _receive(self, node: NodeId, fields: list[Any]) -> None:
        match fields:
            case ["hello", [address, tls_address, *_]]:
                self._forget(node)
                since_s = asyncio.get_running_loop().time()
                self._peers[node] = _Peer((address, tls_address), since_s)
                if self._addresses is not None:
                    self._tell_all(node)
                self._local.peers_changed()
            case ["interest", rows] if node in self._peers:
                wants = self._peers[node].wants
                for vhost, subject, queue, wanted in cast("list[Any]", rows):
                    self._learn(node, wants, (vhost, subject, queue), wanted=wanted)
            case ["messages", messages]:
                for each in cast("list[Any]", messages):
                    self._local.arrived(Routed(*each[: len(Routed._fields)]))
            case _:
                log.warning("nats_notice_unknown", peer=node)

    def _learn(self, node: NodeId, wants: dict[Want, None], want: Want, *, wanted: bool) -> None:
        if wanted:
            wants[want] = None
            self._local.wanted(node, want)
        elif want in wants:
            del wants[want]
            self._local.unwanted(node, want)
