"""A change of the catalog is done when every node that is up routes by it.

Each node answers how far its copy is, once that is far enough: `[-1, "applied?", index]`, and
`[-1, "applied", index]`. Each peer has one open request at most, for the highest index
that anybody waits for when it is sent.

A node without a link to us may still follow the leader of the catalog, and route by its copy. The
leader has a link to all that follow it: `[-1, "everywhere?", index]` asks it to wait for them, and
`[-1, "everywhere", index]` says that it did; 0: it does not lead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cluster.groups.group import Group
from cluster.groups.proposals import guarded
from cluster.peers.peer_rpc import Answers
from cluster.peers.peers import Peers, PeerState
from cluster.raft.messages import NODE_LEVEL
from cluster.seams import Links
from cluster.types import NodeId

APPLIED_REQUEST = "applied?"
APPLIED = "applied"
EVERYWHERE_REQUEST = "everywhere?"
EVERYWHERE = "everywhere"
#: Stands for all nodes, as the leader of the catalog answers for them.
ALL = NodeId("")
#: A node that is up and has not caught up by then is stuck, and is not waited for.
CATALOG_WAIT_S_MAX = 2.0
#: After so long a node is asked that could not be, since its link was full.
RETRY_S = 0.02


class CatalogGroup(Group):
    """The catalog's copy on this node; it reports how far it has applied."""

    moved: Callable[[int], None] | None = None

    def apply_entry(self, data: bytes, index: int, term: int) -> None:
        super().apply_entry(data, index, term)
        self._notify(index)

    def restore(self, data: bytes, index: int) -> None:
        super().restore(data, index)
        self._notify(index)

    def _notify(self, index: int) -> None:
        if self.moved is not None:
            guarded(self.name, self.moved, index)


class CatalogReadIndex:
    """How far each node's copy of the catalog has applied, for those here who wait for an index."""

    def __init__(self, node: NodeId, links: Links, peers: Peers, answers: Answers) -> None:
        self._node = node
        self._links = links
        self._peers = peers
        self._answers = answers
        self._applied: dict[NodeId, int] = {}  # each node's copy holds all up to this, at least
        self._wanted: dict[NodeId, int] = {}
        self._requested: dict[NodeId, int] = {}  # the open requests
        self._crowded: set[NodeId] = set()  # peers whose links were full
        self._waiting: dict[NodeId, list[tuple[int, asyncio.Future[None]]]] = {}
        self._requests: dict[NodeId, int] = {}  # of peers, until our own copy is there
        # Of this node's copy, loop times in s: when what is routed by changed last, and when the
        # present term had its first entry.
        self._version = -1
        self._changed_at = 0.0
        self._term = -1
        self._led_at = 0.0
        self._back = asyncio.Event()  # a peer is up again...
        self._ups = 0  # ...and how often one was
        self._everywhere: set[asyncio.Task[None]] = set()  # those that we wait for as the leader
        #: For how long a node that is cut off may take its copy for that of the cluster.
        self.trust_s = CATALOG_WAIT_S_MAX
        #: Of the catalog, as far as is known here.
        self.leader: Callable[[], NodeId | None] = lambda: None
        self.nodes: Callable[[], Iterable[NodeId]] = tuple

    # --- waiting

    async def applied_here(self, index: int, seconds: float = CATALOG_WAIT_S_MAX) -> bool:
        """This node's copy holds all up to `index`; False: not in time."""
        return await self._wait([self._future(self._node, index)], seconds)

    async def applied_everywhere(self, index: int) -> None:
        """As many nodes as can be had within the bound hold all up to `index`. Nodes without a link
        to us may route by their copies as they are while they hear a leader: the leader waits for
        those that hear it, or all are given the time to notice that they are cut off.
        """
        time = asyncio.get_running_loop().time
        until = time() + max(CATALOG_WAIT_S_MAX, self.trust_s)
        while True:
            self._back.clear()
            ups = self._ups
            up = [node for node, state in self._peers.states.items() if state.up]
            await self._wait([self._future(node, index) for node in up], until - time())
            if self._ups > ups and time() < until:
                continue  # a node that is back was not asked yet
            waits_s = min(self._trusted_until(), until) - time()
            if waits_s <= 0:
                return
            everywhere = self._future(ALL, index)
            if everywhere is None:
                return
            back = asyncio.ensure_future(self._back.wait())
            try:
                await self._wait([back, everywhere], waits_s, at_once=True)
            finally:
                back.cancel()
            if everywhere.done() and not everywhere.cancelled():
                return

    def _trusted_until(self) -> float:
        """When the last of those without a link to us has seen the last change or knows that it is
        cut off: from this node if it leads, else from whichever leads, or with a leader of before.
        In the past where each has had the time.
        """
        states, leads = self._peers.states, self.leader() == self._node
        lost = [node for node in {*states, *self.nodes()} if not self._peers.is_up(node)]
        unheard = PeerState(up=False, incarnation=0)
        found = [states.get(node, unheard) for node in lost]
        since = [max(each.since, self._led_at) for each in found if not each.gone]
        if lost and not leads:
            since.append(max(self._changed_at, self._led_at))
        recent = [each for each in since if self._changed_at > each - CATALOG_WAIT_S_MAX]
        return max(recent, default=-math.inf) + self.trust_s

    async def _wait(
        self,
        futures: Sequence[asyncio.Future[Any] | None],
        seconds: float,
        *,
        at_once: bool = False,
    ) -> bool:
        """For all of them, or with `at_once` for the first."""
        waiting = [future for future in futures if future is not None]
        if not waiting:
            return True
        when = asyncio.FIRST_COMPLETED if at_once else asyncio.ALL_COMPLETED
        _, late = await asyncio.wait(waiting, timeout=seconds, return_when=when)
        for future in late:
            future.cancel()
        if late:
            for node, each in self._waiting.items():
                self._waiting[node] = [one for one in each if not one[1].done()]
        return not late

    def _future(self, node: NodeId, index: int) -> asyncio.Future[None] | None:
        if self._applied.get(node, 0) >= index:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, []).append((index, future))
        if node != self._node:
            self._wanted[node] = max(index, self._wanted.get(node, 0))
            self._request(node)
        return future

    def _request(self, node: NodeId) -> None:
        wanted = self._wanted.get(node, 0)
        if node in self._requested or wanted <= self._applied.get(node, 0):
            return
        to, word = (node, APPLIED_REQUEST) if node != ALL else (self.leader(), EVERYWHERE_REQUEST)
        if to == self._node:
            return
        if to is not None and self._links.send(to, [NODE_LEVEL, word, wanted]):
            self._requested[node] = wanted
            self._links.flush()
        else:
            self._request_soon(node)

    def _request_soon(self, node: NodeId) -> None:
        """The link is full, or nobody leads."""
        if node not in self._crowded:
            self._crowded.add(node)
            asyncio.get_running_loop().call_later(RETRY_S, self._request_again, node)

    def _request_again(self, node: NodeId) -> None:
        self._crowded.discard(node)
        if self._waiting.get(node):
            self._request(node)

    def _release(self, node: NodeId, index: int) -> None:
        left: list[tuple[int, asyncio.Future[None]]] = []
        for upto, future in self._waiting.pop(node, ()):
            if upto > index:
                left.append((upto, future))
            elif not future.done():
                future.set_result(None)
        if left:
            self._waiting[node] = left

    def stop(self) -> None:
        for task in self._everywhere:
            task.cancel()

    # --- what happens

    def moved(self, index: int, term: int, version: int) -> None:
        """This node's copy holds all up to `index`. `version`: another one when what is routed by
        changed.
        """
        now = asyncio.get_running_loop().time()
        if term != self._term:
            self._term = term
            self._led_at = now
        if version != self._version:
            self._version = version
            self._changed_at = now
        self._applied[self._node] = index
        self._release(self._node, index)
        for peer in [peer for peer, requested in self._requests.items() if requested <= index]:
            self._answer(peer)

    def up(self) -> None:
        """A peer is there again: it can be asked, which is quicker than to wait until it knows."""
        self._ups += 1
        self._back.set()

    def down(self, peer: NodeId) -> None:
        """What it holds when it comes back is another question."""
        for known in (self._applied, self._requested, self._requests):
            known.pop(peer, None)
        self._release(peer, self._wanted.pop(peer, 0))
        self._requested.pop(ALL, None)  # perhaps it was asked
        if self._waiting.get(ALL):
            self._request_soon(ALL)

    def on_message(self, peer: NodeId, message: list[Any]) -> None:
        match message:
            case [_, "applied?", int(index)]:
                self._requests[peer] = index
                if self._applied.get(self._node, 0) >= index:
                    self._answer(peer)
            case [_, "applied", int(index)]:
                self._applied[peer] = max(index, self._applied.get(peer, 0))
                self._requested.pop(peer, None)
                self._release(peer, index)
                self._request(peer)
            case [_, "everywhere?", int(index)]:
                task = asyncio.create_task(self._answer_for_all(peer, index), name="everywhere")
                self._everywhere.add(task)
                task.add_done_callback(self._everywhere.discard)
            case [_, "everywhere", int(index)]:
                self._applied[ALL] = max(index, self._applied.get(ALL, 0))
                self._requested.pop(ALL, None)
                self._release(ALL, index)
                if self._waiting.get(ALL):
                    self._request_soon(ALL)
            case _:
                pass

    async def _answer_for_all(self, peer: NodeId, index: int) -> None:
        leads = self.leader() == self._node
        if leads:
            await self.applied_everywhere(index)
        everywhere = [NODE_LEVEL, EVERYWHERE, index if leads else 0]
        self._answers.send(peer, everywhere, dropped=everywhere)

    def _answer(self, peer: NodeId) -> None:
        del self._requests[peer]
        applied = [NODE_LEVEL, APPLIED, self._applied[self._node]]
        self._answers.send(peer, applied, dropped=applied)
