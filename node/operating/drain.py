"""A node that is about to be stopped: leaderships go to others first, then clients.

What is done can be taken back (`undo`) until the process ends. While it is drained the node goes on
to hold its copies, to vote and to answer probes; clients find its listeners closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group
from cluster.raft.member import Role
from cluster.types import NodeId
from node.clients.sessions import Sessions
from node.errors import BrokerError, Refused
from node.operating.health import Health
from node.operating.quorum import Critical, Quorum
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

KIND = "drain"
LOOK_S = 0.2
#: A successor that lacks no more entries takes over in a moment.
NEAR_ENTRIES = 100
#: How long it may take to hear who leads instead.
LED_S_MAX = 2.0
#: How long what clients have published may take to get its outcome.
SETTLE_S_MAX = 2.0
#: How long native clients may take to hear the goodbye.
GOODBYE_S_MAX = 1.0
NAMED_MAX = 3
GOODBYE = "the node is about to stop: connect to another one"

QUORUM_CRITICAL = "quorum_critical"
TAKEN_BACK = ("not_draining", "the drain was taken back")
Report = dict[str, Any]


class Listener(Protocol):
    """Where clients of a protocol come in."""

    protocol: str

    @property
    def unconfirmed(self) -> int: ...
    def stop_reading(self) -> None: ...
    async def listen(self) -> None: ...
    async def expel(self, text: str) -> tuple[int, int]:
        """How many connections were closed, and consumers told before that."""
        ...


class Drain:
    """One per node. `listeners`: once there are any."""

    def __init__(
        self,
        cluster: ClusterNode,
        peer_rpc: PeerRpc,
        *,
        quorum: Quorum,
        health: Health,
        sessions: Sessions,
    ) -> None:
        self.listeners: list[Listener] = []
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._quorum = quorum
        self._health = health
        self._sessions = sessions
        self._work: asyncio.Task[Report] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._emptied: Report | None = None
        peer_rpc.on(KIND, self._on_request)

    # --- asked for --------------------------------------------------------------------------------

    async def drain(self, node: NodeId, *, timeout_s: float, force: bool, by: str) -> Report:
        """What was done. Refused, `quorum_critical`: the others cannot do without it yet. One that
        is under way is joined.
        """
        if node == self._cluster.node:
            work = self._begin(timeout_s, force=force, by=by)
            await asyncio.wait({work})
            if work.cancelled():
                raise Refused(*TAKEN_BACK)
            return work.result()
        await self._peer_rpc.request(node, KIND, "drain", round(timeout_s * 1000), force, by)
        while True:
            match await self._peer_rpc.request(node, KIND, "state", 0, False, by):
                case ["done", report]:
                    return cast(Report, report)
                case ["failed", str(code), str(reason)]:
                    raise Refused(code, reason)
                case _:
                    await asyncio.sleep(LOOK_S)

    async def undo(self, node: NodeId, *, by: str) -> None:
        if node == self._cluster.node:
            await self._undo(by)
        else:
            await self._peer_rpc.request(node, KIND, "undo", 0, False, by)

    async def _on_request(self, peer: NodeId, fields: list[Any]) -> Any:
        match fields:
            case ["drain", int(timeout_ms), bool(force), str(by)]:
                self._begin(timeout_ms / 1000, force=force, by=f"{by} at {peer}")
            case ["undo", *_, str(by)]:
                await self._undo(f"{by} at {peer}")
            case ["state", *_]:
                return self._state()
            case _:
                raise Refused("bad_argument", "this node does not understand what to drain")
        return None

    def _state(self) -> list[Any]:
        work = self._work
        if work is None:
            return ["failed", *TAKEN_BACK]
        if not work.done():
            return ["working"]
        error = None if work.cancelled() else work.exception()
        if error is None:
            return ["done", {} if work.cancelled() else work.result()]
        code = error.code if isinstance(error, BrokerError) else "failed"
        return ["failed", code, str(error)]

    def _begin(self, timeout_s: float, *, force: bool, by: str) -> asyncio.Task[Report]:
        if self._health.stopping:
            raise Refused("stopping", "this node is stopping already")
        work = self._work
        if work is None or (work.done() and (work.cancelled() or work.exception() is not None)):
            log.info("drain_asked", by=by, force=force, timeout_s=timeout_s)
            work = self._work = asyncio.create_task(self._run(timeout_s, force=force), name="drain")
            work.add_done_callback(_log_end)
        return work

    async def _run(self, timeout_s: float, *, force: bool) -> Report:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await self._until_spared(begun_s + timeout_s, force=force)
        waited_s = loop.time() - begun_s
        report = await self.empty(transfer=True)
        self._keeper = asyncio.create_task(self._keep_away(), name="drained")
        took_s = loop.time() - begun_s - waited_s
        return {
            "node": self._cluster.node,
            "forced": force,
            "waited_ms": round(waited_s * 1000),
            "took_ms": round(took_s * 1000),
            **report,
        }

    async def _undo(self, by: str) -> None:
        if self._health.stopping:
            raise Refused("stopping", "this node is stopping: its next start ends the drain")
        for task in (self._work, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._work is None and not self._health.draining:
            return
        self._work = self._keeper = self._emptied = None
        self._cluster.liveness.stay()
        self._sessions.open()
        for listener in self.listeners:
            await listener.listen()
        self._health.draining = False
        log.info("drain_undone", by=by)

    # --- not before the others can do without it --------------------------------------------------

    async def _until_spared(self, deadline_s: float, *, force: bool) -> None:
        try:
            await self._wait_until_spared(deadline_s, force=force)
        except BaseException:
            self._cluster.liveness.stay()
            raise

    async def _wait_until_spared(self, deadline_s: float, *, force: bool) -> None:
        loop = asyncio.get_running_loop()
        logged: Sequence[Critical] = ()
        while True:
            critical = await self._quorum.critical()
            if critical and all(map(self._all_leave, critical)):
                log.info("drain_does_not_wait", reason="the others leave, too")
                self._cluster.liveness.leave()
                return
            if force or not critical:
                self._cluster.liveness.leave()
                if force:
                    return
                # Who leaves at the same moment has said so by now; the first by name goes on.
                critical = await self._quorum.critical()
                if all(self._goes_first(each) for each in critical):
                    return
            self._cluster.liveness.wait()
            if loop.time() >= deadline_s or not all(each.lacks for each in critical):
                raise Refused(QUORUM_CRITICAL, why_critical(self._cluster.node, critical))
            if critical != logged:
                logged = critical
                log.info("drain_waits", reason=why_critical(self._cluster.node, critical))
            await asyncio.sleep(LOOK_S)

    def _goes_first(self, critical: Critical) -> bool:
        peers, own = self._cluster.peers, self._cluster.node
        rivals = [node for node in critical.lacks if peers.is_up(node) and not peers.stays(node)]
        return len(rivals) == len(critical.lacks) > 0 and own < min(rivals)

    def _all_leave(self, critical: Critical) -> bool:
        """Even if this node stayed, those that do not leave were no majority."""
        cluster = self._cluster
        peers, voters = cluster.peers, cluster.groups[critical.group].configuration.voters
        others = [node for node in voters if node != cluster.node]
        stay = [node for node in others if peers.is_up(node) and not peers.wants_to_leave(node)]
        go = [node for node in others if peers.is_up(node) and peers.wants_to_leave(node)]
        return len(go) > 0 and len(stay) + 1 <= len(voters) // 2

    async def until_others_came_back(self, deadline_s: float) -> None:
        """Before a stop that is not to be refused: while what the others lack will be there soon,
        since they are up and only have to catch up.
        """
        loop = asyncio.get_running_loop()
        peers = self._cluster.peers
        while self._emptied is None:
            critical = await self._quorum.critical()
            soon = [each for each in critical if each.lacks and all(map(peers.stays, each.lacks))]
            if not soon or len(soon) < len(critical) or loop.time() >= deadline_s:
                if critical:
                    reason = why_critical(self._cluster.node, critical)
                    log.warning("stopping_though_critical", reason=reason)
                return
            await asyncio.sleep(LOOK_S)

    # --- what is done -----------------------------------------------------------------------------

    async def empty(self, *, transfer: bool) -> Report:
        """Leaderships first, while clients still have their connections: those who can follow a
        leader have moved by the time that they are told to go.
        """
        if self._emptied is not None:
            return self._emptied
        self._health.draining = True
        cluster = self._cluster
        led = [group for group in cluster.groups.values() if group.role is Role.LEADER]
        if transfer:
            await cluster.liveness.hand_over()
        kept = [group.name for group in led if group.role is Role.LEADER]
        if transfer:
            gone = [group for group in led if group.name not in kept]
            await _within(LED_S_MAX, lambda: self._led_elsewhere(gone))
        native = len(self._sessions)
        self._sessions.stop_reading()
        for listener in self.listeners:
            listener.stop_reading()
        await _within(SETTLE_S_MAX, self._settled)
        told = {each.protocol: await each.expel(GOODBYE) for each in self.listeners}
        self._sessions.stop()
        await _within(GOODBYE_S_MAX, lambda: not len(self._sessions))
        own = cluster.transient.own
        transient = 0 if own is None else len(cluster.catalog_machine.queues_of(own.id))
        self._emptied = {
            "leaderships": {
                group.name: cluster.leader_of(group.id) for group in led if group.name not in kept
            },
            "leaderships_kept": kept,
            "consumers_cancelled": sum(cancelled for _, cancelled in told.values()),
            **{f"{protocol}_connections": count for protocol, (count, _) in told.items()},
            "native_connections": native,
            "transient_queues": transient,
        }
        return self._emptied

    def _led_elsewhere(self, groups: Sequence[Group]) -> bool:
        """Who leads instead is known, as clients have to know it to move."""
        return all(self._cluster.leader_of(group.id) is not None for group in groups)

    def _settled(self) -> bool:
        """What clients have published has its outcome."""
        open_here = any(group.pending_bytes for group in self._cluster.groups.values())
        return not open_here and not any(each.unconfirmed for each in self.listeners)

    async def _keep_away(self) -> None:
        """An election may choose this node, as the one that lacks least: it is handed on, once the
        successor is near. A group that is being handed over takes nothing new, and a copy that is
        far behind would not take over in time: again and again, for as long as it is.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            if any(group.ready for group in self._cluster.groups.values()):
                await self._cluster.liveness.hand_over(lacks_max=NEAR_ENTRIES)

    def stop(self) -> None:
        """With the node."""
        for task in (self._work, self._keeper):
            if task is not None:
                task.cancel()


def why_critical(node: NodeId, critical: Sequence[Critical]) -> str:
    more = len(critical) - NAMED_MAX
    named = "; ".join(map(str, critical[:NAMED_MAX])) + (f"; and {more} more" if more > 0 else "")
    lacks = sorted({lacking for each in critical for lacking in each.lacks})
    advice = "give them more copies"
    if lacks:
        advice = f"start {', '.join(lacks)}, or wait until they have caught up"
    return f"without {node} groups would have no majority: {named}; {advice}, or force it"


def _log_end(work: asyncio.Task[Report]) -> None:
    if work.cancelled():
        log.info("drain_ended", outcome="taken back")
    elif (error := work.exception()) is not None:
        log.warning("drain_ended", outcome="failed", reason=str(error))
    else:
        log.info("drain_ended", outcome="drained", **work.result())


async def _within(limit_s: float, done: Callable[[], bool]) -> None:
    """Until it is so, or the time is up."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not done() and loop.time() < deadline_s:  # noqa: ASYNC110 -- it is no event
        await asyncio.sleep(0.01)
