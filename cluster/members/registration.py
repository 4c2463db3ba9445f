"""A start of this node becomes known to the cluster, once its disk is known to be the right one."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from cluster.catalog.cluster_parts import ClusterParts
from cluster.catalog.queue_names import QueueNames
from cluster.catalog.upgrading import versions_of
from cluster.machine.commands import RegisterNode
from cluster.machine.versions import VERSIONS
from cluster.members.disk_identity import DiskIdentity
from cluster.members.unknown_peers import UnknownPeers
from cluster.peers.forwarding import Retries
from cluster.types import CATALOG_GROUP

AGAIN_S = 0.05
#: A node that waits to be let in says so after so long, and then this often.
LOG_FIRST_S = 3.0
LOG_AGAIN_S = 30.0

log = structlog.stdlib.get_logger(__name__)


class Registering(ClusterParts, Protocol):
    """The node that starts."""

    names: QueueNames
    retries: Retries
    unknown_peers: UnknownPeers

    def renumber(self, incarnation: int) -> None: ...
    def start_groups(self) -> None: ...


class Registration:
    """Runs once a start. Until that is on disk others may say that they know more than it does."""

    def __init__(self, cluster: Registering, disk_identity: DiskIdentity) -> None:
        self._cluster = cluster
        self.disk_identity = disk_identity
        self.stale = False  # the others know of a later start than our disk does
        self.records = False  # that, and which copies have suspended votes: none may start now

    def renumber_above(self, known: int) -> None:
        """Starts are numbered by the wall clock when the folder knows no higher number, so a clock
        that was ahead can leave one behind that this start does not reach.
        """
        cluster = self._cluster
        if known >= cluster.links.incarnation:
            log.warning("start_numbered_again", node=cluster.node, known=known)
            cluster.renumber(known + 1)

    def on_known_incarnation(self, incarnation: int) -> None:
        """The start that the catalog knows of, as far as somebody has it."""
        if incarnation <= self.disk_identity.registered or self.stale:
            return
        self.stale = True
        log.warning(
            "votes_suspended",
            node=self._cluster.node,
            reason="the others know of a later start of this node than its own folder does:"
            " the folder is new or an older copy; it votes when it is brought up to date",
        )
        for group in self._cluster.groups.values():
            group.suspend_votes()

    async def _log_waiting(self) -> None:
        """A node can do nothing but wait; whoever started it should know for what."""
        cluster = self._cluster
        links = cluster.links
        address = cluster.config.addresses.get("peer", "HOST:PORT")
        let_in = f"`quorate node add {cluster.node} {address}`"
        wait_s = LOG_FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = LOG_AGAIN_S
            if cluster.unknown_peers.waits_to_be_let_in:
                was = (
                    "it was removed from the cluster; "
                    if cluster.unknown_peers.removal_heard
                    else ""
                )
                event, reason = "waiting_to_be_let_in", f"{was}the others wait for {let_in}"
            elif not any(map(links.connected, links.peers())):
                event = "waiting_for_others"
                reason = (
                    "none of the other nodes is connected: start them; if this one was removed"
                    f" from the cluster: {let_in} lets it in again"
                )
            else:
                event, reason = "waiting_for_majority", "the catalog has no leader yet"
            log.warning(event, node=cluster.node, reason=reason)

    async def run(self) -> None:
        cluster = self._cluster
        logging = asyncio.create_task(self._log_waiting(), name="log_waiting")
        try:
            while not await cluster.names.barrier():  # noqa: ASYNC110 -- it is no event
                await asyncio.sleep(AGAIN_S)
        finally:
            logging.cancel()
        info = cluster.catalog_machine.node(cluster.node)
        known = 0 if info is None else info.incarnation
        self.on_known_incarnation(known)
        self.renumber_above(known)
        incarnation = cluster.links.incarnation
        cluster.start_groups()
        if self.stale:
            await self._keep_suspended()
        await self.disk_identity.record(max(incarnation, self.disk_identity.registered))
        self.stale = self.records = False
        versions = versions_of(cluster.catalog_machine.newest)
        addresses = {**cluster.config.addresses, VERSIONS: versions}
        command = RegisterNode(cluster.node, incarnation, addresses)
        while True:
            outcome = await cluster.retries.ask(CATALOG_GROUP, command)
            if outcome.kind == "ok":
                log.info("node_registered", node=cluster.node, incarnation=incarnation)
                await self._tell_voting()
                return
            if outcome.reply is not None:
                # A newer process of this node's name is about: this one must not act for it.
                log.error("node_not_registered", node=cluster.node, reason=outcome.reason)
                return
            await asyncio.sleep(AGAIN_S)

    async def _keep_suspended(self) -> None:
        """From here on each copy says by itself, on disk, that its votes are suspended, until its
        leader has readmitted it. So this start may be recorded at once: no restart gives a vote
        back, and a folder that is wiped again is older than this start.

        Nothing is missed. What an earlier folder promised, it promised in groups that its catalog
        had committed. That was before this process began, so they are in the catalog that was just
        read, and their copies have started. A copy that was dropped, or is needed here again, is
        seen to where it starts. A group that is created from now on is another matter: no
        vote in it was forgotten. It starts when this start is recorded, since a restart before
        that would suspend votes that it had not forgotten.

        To wait for the leaders instead would be no safer, and endless where there is none any more:
        in a group whose copies were all lost. Votes of its copies here stay suspended.
        """
        self.records = True
        self._cluster.log.write()
        await self._cluster.log.sync()

    async def _tell_voting(self) -> None:
        """Whoever replaces one disk after the other waits for this."""
        copies = self._cluster.groups
        if not any(group.votes_suspended for group in copies.values()):
            return
        while any(group.votes_suspended for group in copies.values()):  # noqa: ASYNC110 -- nor is this
            await asyncio.sleep(AGAIN_S)
        log.info("votes_again", node=self._cluster.node)
