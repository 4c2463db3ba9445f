"""Where a backup cuts the logs of all groups: one moment for the whole cluster.

A message that went from one group to another, as a dead letter or in a transaction, or that a
client acked because what it made of it was confirmed elsewhere, must not be missing from both. So
every node holds what is proposed to it for the moment it takes to ask all: first each leader
commits a barrier, which proves that it leads, then it appends nothing more and says where its log
ends. When all have answered they are asked for their terms: a group that has another leader since
was not cut at that moment. Then all go on. Nothing that was confirmed before is missing, and
nothing is contained whose cause is not.

A node lets go by itself after `HOLD_S`; a cut that took longer counts for nothing and is made anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import astuple
from typing import Any

import structlog

from cluster.cluster_node import ClusterNode
from cluster.log import LogIdentity, SystemClock
from cluster.recovery.backup import KEPT_S, Cut, NotContained, cut, stream
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.errors import BrokerError, Refused
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

KIND = "backup"
HOLD_S = 3.0
ATTEMPTS_MAX = 5
AGAIN_S = 0.5

BUSY = "overloaded"


class Backups:
    """One per node."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._number = 0  # of the last cut that was tried from here
        self._holder = ""  # the cut for which this node holds back; empty: none
        self._timer: asyncio.TimerHandle | None = None
        peer_rpc.on(KIND, self._on_request)

    async def cut(self) -> list[Cut]:
        """Every group at one moment. Refused: there was none; the reason says why."""
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))  # another may be cut
            try:
                return await self.attempt()
            except BrokerError as error:
                reason = error.reason
                log.info("backup_not_cut", reason=reason)
        raise Refused(BUSY, f"no moment was found for a backup: {reason}; try again")

    async def attempt(self) -> list[Cut]:
        """Once."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        self._number += 1
        holder = f"{self._cluster.node}:{self._cluster.links.incarnation}:{self._number}"
        try:
            answers = await self._request_each("hold", holder)
            terms = await self._request_each("terms", holder)
        finally:
            self._peer_rpc.notify_others(KIND, "release", holder)
            self._let_go(holder)
        held_s = loop.time() - started_s
        if held_s > HOLD_S:
            raise Refused(BUSY, "the nodes took too long to answer")
        found: dict[GroupId, Cut] = {}
        for answer in answers.values():
            for row in answer:
                each = Cut(*row)
                if each.group in found:
                    raise Refused(BUSY, f"two nodes say that they lead {each.name}")
                found[each.group] = each
        for group, term in (pair for answer in terms.values() for pair in answer):
            if group in found and term > found[group].term:  # its leader appended last
                raise Refused(BUSY, f"{found[group].name} got another leader")
        if not await self._cluster.names.barrier():  # or it might not know what is missing
            raise Refused(BUSY, "the catalog has no leader")
        catalog = self._cluster.catalog_machine
        names = {CATALOG_GROUP: "catalog", **{info.id: info.name for info in catalog.groups()}}
        missing = [name for group, name in names.items() if group not in found]
        if missing:
            raise Refused(BUSY, f"no leader answered for {', '.join(missing)}")
        log.info("backup_cut", held_ms=round(held_s * 1000))
        return [found[group] for group in sorted(found)]

    async def _request_each(self, word: str, holder: str) -> dict[NodeId, Any]:
        """Who does not hold back might come to lead, so all that are up must answer."""
        nodes = {self._cluster.node, *self._peer_rpc.others()}
        answers = await self._peer_rpc.request_all(KIND, word, holder)
        if silent := nodes - answers.keys():
            raise Refused(BUSY, f"no answer from {', '.join(sorted(silent))}")
        return answers

    # --- on every node ----------------------------------------------------------------------------

    def _on_request(self, _: NodeId, fields: list[Any]) -> Any:
        match fields:
            case ["hold", str(holder)]:
                return self._hold(holder)
            case ["terms", str(holder)]:
                if self._holder != holder:
                    raise Refused(BUSY, "the other nodes took too long")
                return [[group.id, group.term] for group in self._cluster.groups.values()]
            case ["release", str(holder)]:
                self._let_go(holder)
                return None
            case _:
                raise Refused("bad_argument", "this node does not understand what to back up")

    async def _hold(self, holder: str) -> list[Any]:
        if self._holder:
            raise Refused(BUSY, "another backup is being cut")
        self._holder = holder
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._let_go, holder)
        groups = list(self._cluster.groups.values())
        led = [group for group in groups if group.ready]
        for group in groups:
            group.held = not group.ready  # nor would one that comes to lead meanwhile
        proven = await asyncio.gather(*(group.barrier() for group in led))
        if self._holder != holder:
            raise Refused(BUSY, "the barrier took too long")
        for group in groups:
            group.held = True
        sure = [group for group, outcome in zip(led, proven, strict=True) if outcome.kind == "ok"]
        await asyncio.gather(*(group.keep_entries(KEPT_S) for group in sure))
        cuts = await asyncio.gather(*(cut(group) for group in sure))
        return [list(astuple(each)) for each in cuts if each is not None]

    def _let_go(self, holder: str) -> None:
        """Only of the cut that is meant: another one may rely on it."""
        if self._holder != holder:
            return
        self._holder = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for group in self._cluster.groups.values():
            group.held = False
            group.wake()

    # --- reading ----------------------------------------------------------------------------------

    async def open(self, wanted: Cut) -> AsyncIterator[bytes]:
        """The file of a group. Refused: it is not to be had here."""
        group = self._cluster.groups.get(wanted.group)
        if group is None:
            raise Refused("no_group", f"this node has no copy of group {wanted.group}")
        config = self._cluster.config
        identity = LogIdentity(config.node, config.cluster)
        chunks = stream(group, wanted, identity, SystemClock())
        try:
            first = await anext(chunks)
        except NotContained as error:
            raise Refused("gone", f"{error}: begin the backup again") from error
        return _after(first, chunks)


async def _after(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk
