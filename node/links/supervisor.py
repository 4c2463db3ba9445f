"""Starts and stops the links of this node: what runs is compared with what is wanted, by level.

Nothing is missed that way, whatever happened in between: a parameter that changed twice, leadership
that came and went, a task that ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group
from cluster.raft.member import Role
from cluster.types import GroupId, NodeId
from node.errors import BrokerError, Refused
from node.links.link import Link, LinkKey, LinkKind, LinkSpec, nobody_runs_it
from node.peer_rpc import PeerRpc
from node.tasks import Tasks

log = structlog.get_logger(__name__)

KIND = "links"
#: Changes come in bursts: so long after one look the next.
LOOK_S_MIN = 0.25
#: Without any sign of a change they are checked all the same, this often.
LOOK_S_MAX = 5.0
#: A link that is told to end may take so long to finish what it has in hand. Then it is told again:
#: a client library may swallow a cancellation.
END_S_MAX = 2.0
#: So often, when the node stops.
ENDS_MAX = 2
#: Of the delay between two tries, more or less: links that failed together come back apart.
JITTER = 0.2
ERROR_CHARS_MAX = 500


@dataclass
class _Running:
    link: Link
    task: asyncio.Task[None]
    ended_at_s: float | None = None  # of the loop's clock; None: it may run

    def end(self) -> None:
        """Cancels it, and again if it runs on."""
        now_s = asyncio.get_running_loop().time()
        if self.ended_at_s is None or now_s - self.ended_at_s >= END_S_MAX:
            self.ended_at_s = now_s
            self.task.cancel()


class LinkSupervisor:
    """One per node. `add` the kinds before the cluster starts; `run` when it has."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc, tasks: Tasks) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._tasks = tasks
        self._kinds: dict[str, LinkKind] = {}
        self._links: dict[LinkKey, _Running] = {}
        self._wanted: dict[LinkKey, LinkSpec] = {}
        self._looked_at = -1  # how far the catalog was applied when `_wanted` was asked for
        self._waits_for_catalog = False
        self._stopping = False
        self._now = asyncio.Event()
        cluster.on_role.append(self._role_changed)
        peer_rpc.on(KIND, self._answer)

    def add(self, kind: LinkKind) -> None:
        assert kind.name not in self._kinds
        self._kinds[kind.name] = kind

    # --- what others see --------------------------------------------------------------------------

    def here(self) -> list[Link]:
        """Those that this node runs."""
        return [running.link for running in self._links.values()]

    async def statuses(self, kind: str) -> list[tuple[LinkSpec, Mapping[str, Any]]]:
        """Of all links of this kind in the cluster: what is wanted, and what its owner says."""
        answers = await self._peer_rpc.request_all(KIND, "status", kind)
        said: dict[LinkKey, Mapping[str, Any]] = {}
        for rows in answers.values():
            for vhost, name, status in rows:
                key = LinkKey(kind, vhost, name)
                known = said.get(key)
                if known is None or known["since_ms"] < status["since_ms"]:
                    said[key] = status
        nobody = nobody_runs_it(self._cluster.now_ms())
        specs = sorted(self._kinds[kind].wanted(), key=lambda spec: spec.key)
        return [(spec, said.get(spec.key, nobody)) for spec in specs]

    async def restart(self, key: LinkKey) -> bool:
        """At whichever node runs it. False: none does."""
        answers = await self._peer_rpc.request_all(KIND, "restart", *key)
        return any(answers.values())

    def _answer(self, _: NodeId, fields: list[Any]) -> Any:
        match fields:
            case ["status", str(kind)]:
                return [
                    [link.spec.key.vhost, link.spec.key.name, link.status()]
                    for link in self.here()
                    if link.spec.key.kind == kind
                ]
            case ["restart", str(kind), str(vhost), str(name)]:
                return self._restart(LinkKey(kind, vhost, name))
            case _:
                raise Refused("bad_argument", "this node does not understand what to do with links")

    def _restart(self, key: LinkKey) -> bool:
        running = self._links.get(key)
        if running is None:
            return False
        running.end()
        self._now.set()
        return True

    # --- what runs --------------------------------------------------------------------------------

    async def run(self) -> None:
        """As long as the node does."""
        while not self._stopping:
            self._now.clear()
            self._look()
            await asyncio.sleep(LOOK_S_MIN)
            ending = any(running.ended_at_s is not None for running in self._links.values())
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S_MAX if ending else LOOK_S_MAX):
                    await self._now.wait()

    async def stop(self) -> None:
        """Those that run end; none begins any more."""
        self._stopping = True
        self._now.set()
        for _ in range(ENDS_MAX):
            tasks = [each.task for each in self._links.values() if not each.task.done()]
            for task in tasks:
                task.cancel()  # whoever was told to end just before, too
            if tasks:
                await asyncio.wait(tasks, timeout=END_S_MAX)

    def _look(self) -> None:
        applied = self._cluster.catalog.applied_index
        if applied != self._looked_at:
            self._wanted = {
                spec.key: spec for kind in self._kinds.values() for spec in kind.wanted()
            }
            if not self._waits_for_catalog:
                self._waits_for_catalog = True
                self._cluster.catalog.on_next.append(self._catalog_moved)
            self._looked_at = applied
        for key, running in list(self._links.items()):
            spec = self._wanted.get(key)
            if running.task.done():
                del self._links[key]
            elif (
                running.ended_at_s is not None
                or spec is None
                or spec != running.link.spec
                or not self._owns(spec.anchor)
            ):
                running.end()  # a later look finds that it has ended
        for key, spec in self._wanted.items():
            if key not in self._links and not self._stopping and self._owns(spec.anchor):
                link = Link(spec, self._cluster.node, self._cluster.now_ms)
                task = self._tasks.start(self._keep(link), name=f"link {key}")
                task.add_done_callback(lambda _: self._now.set())
                self._links[key] = _Running(link, task)

    def _role_changed(self, group: Group, role: Role, term: int) -> None:
        self._now.set()

    def _catalog_moved(self) -> None:
        self._waits_for_catalog = False
        self._now.set()

    def _owns(self, anchor: GroupId) -> bool:
        return self._cluster.leader_of(anchor) == self._cluster.node

    async def _keep(self, link: Link) -> None:
        """Runs it, and again after it failed, until it is cancelled."""
        spec = link.spec
        kind, vhost, name = spec.key
        while True:
            failure: BaseException | None = None
            try:
                await spec.run(link)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- a library's
                failure = error
            task = asyncio.current_task()
            # However it ended, it was told to: a library hides that.
            if task is None or task.cancelling():
                log.info("link_stopped", kind=kind, vhost=vhost, link=name)
                raise asyncio.CancelledError from failure
            if failure is None:
                link.become("terminated")
                log.info("link_done", kind=kind, vhost=vhost, link=name)
                await asyncio.Event().wait()
            else:
                link.failed(_reason_of(failure))
                log.warning("link_failed", kind=kind, vhost=vhost, link=name, reason=link.error)
            delay_s = spec.reconnect_delay_s * random.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(delay_s)


def _reason_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "the connection was given up"  # by its library, not by us
    if isinstance(error, BrokerError):
        return error.reason[:ERROR_CHARS_MAX]
    return (str(error) or type(error).__name__)[:ERROR_CHARS_MAX]
