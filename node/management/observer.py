"""Looks at queues and clients, here and at the other nodes.

A queue is looked at in this node's own copy; only where there is none, its leader is asked. Every
few seconds the counts of all copies here are noted, so that rates can be told at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from cluster.catalog.reconcile import lost_queues
from cluster.groups.group_like import GroupLike
from cluster.log import READ_AHEAD_BYTES
from cluster.machine import QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.counters import GroupCounters, QueueCounters
from cluster.types import CATALOG_GROUP, Body, BodyRef, GroupId, NodeId, QueueId
from node.errors import BrokerError
from node.management import queue_state
from node.management.certificates import ending_certificates
from node.management.facts import (
    COUNTED,
    Moment,
    QueueFacts,
    Sample,
    capacity,
    facts_of,
    sampled,
    unpacked,
)
from node.management.host import MEASURED, host_facts, measured
from node.management.messages_here import take_here
from node.management.samples import (
    ROW_SIZE,
    SPAN_MS,
    Asked,
    NodeSamples,
    Samples,
    add_curves,
    asked,
    now_row,
    times,
)
from node.management.services import ManagementServices
from node.messages.message import as_map

SAMPLE_S = 5.0
#: Of one question, and of the work between two breaths of the loop.
QUEUES_AT_ONCE = 500
#: One answer reads so much from disk, or one entry, for the timestamps of oldest messages...
HEAD_BYTES_MAX = 4 << 20
#: ...and so many of them are remembered.
HEADS_KNOWN_MAX = 10_000

_NOTHING = QueueCounters()
EMPTY = Sample(0, (0,) * len(COUNTED), (0, 0, 0), 0, None)


class _Note(NamedTuple):
    at: Moment
    measured: dict[str, int]


class _Watched(NamedTuple):
    """One group's machine, as it was restored or made."""

    machine: QueueMachine
    counters: GroupCounters
    changed: dict[int, None]
    queues: set[QueueId]  # those with a sample


def _now() -> Moment:
    return Moment(time.monotonic(), int(time.time() * 1000))


class Observer:
    """One per node."""

    def __init__(self, services: ManagementServices) -> None:
        self._services = services
        self._started_s = time.monotonic()
        # The two latest notes: rates are taken against the older, which is one to two periods old.
        self._older = self._newer = _Note(_now(), measured(services))
        self._watched: dict[GroupId, _Watched] = {}
        #: As of the newer note; and as of the older, of those that changed in between.
        self._latest: dict[QueueId, Sample] = {}
        self._before: dict[QueueId, Sample | None] = {}
        self._samples, self._node_samples = Samples(), NodeSamples()
        self._has_looked = False
        #: Of queues in which nothing happens, with the changes after which that was so.
        self._idle: dict[QueueId, tuple[QueueCounters, int, QueueFacts]] = {}
        #: What the oldest messages say of their time, by what was read for it.
        self._heads: dict[QueueId, tuple[BodyRef, int | None]] = {}
        peer_rpc = services.peer_rpc
        peer_rpc.on("queue_facts", self._answer_facts)
        peer_rpc.on("listing", self._answer_listing)
        peer_rpc.on("close_connection", self._answer_close)
        peer_rpc.on("group_status", self._answer_group)
        peer_rpc.on("groups_led", self._answer_led)
        peer_rpc.on("host", self._answer_host)
        peer_rpc.on("queue_history", self._answer_history)
        peer_rpc.on("led_history", self._answer_led_history)
        peer_rpc.on("login_attempts", self._answer_attempts)
        peer_rpc.on("ending_certificates", self._answer_certificates)
        peer_rpc.on("audit_lines", lambda _, __: list(services.audit.recent))
        peer_rpc.on("head_timestamps", self._answer_timestamps)
        peer_rpc.on(queue_state.KIND, self._answer_state)
        peer_rpc.on("take", lambda _, fields: take_here(services, fields))

    async def run(self) -> None:
        while True:
            await self._note()
            await asyncio.sleep(SAMPLE_S)

    async def _note(self) -> None:
        """Costs nothing for a queue in which nothing happened: there may be very many of them."""
        note = _Note(_now(), measured(self._services))
        noted_ms = self._newer.at.now_ms
        for samples in (self._samples, self._node_samples):
            samples.forget_before(note.at.now_ms - SPAN_MS)
        self._node_samples.add(note.at.now_ms, note.measured)
        found: dict[QueueId, Sample | None] = dict.fromkeys(self._forget_replaced())
        for position, (watched, queue) in enumerate(self._take_changed()):
            counters, view = watched.counters.of.get(queue), watched.machine.queue(queue)
            if counters is None or view is None:
                watched.queues.discard(queue)
                found[queue] = None
                continue
            watched.queues.add(queue)
            found[queue] = sample = sampled(counters, view)
            # A queue that was not there at the last look was empty then.
            before = self._latest.get(queue) or (EMPTY if self._has_looked else None)
            if before is not None:
                self._samples.changed(queue, note.at.now_ms, sample, (noted_ms, before))
            if position % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        self._before = {queue: self._latest.get(queue) for queue in found}
        for queue, sample in found.items():
            if sample is None:
                self._latest.pop(queue, None)
            else:
                self._latest[queue] = sample
        self._older, self._newer = self._newer, note
        self._has_looked = True
        if len(self._idle) > 2 * len(self._latest):  # most of those are gone
            self._idle.clear()

    def _forget_replaced(self) -> list[QueueId]:
        """The queues of groups that are gone, or whose state was restored; the others, and their
        new machines, are watched.
        """
        cluster = self._services.cluster
        own = cluster.transient.own
        here: list[GroupLike] = [
            each for each in cluster.groups.values() if each.id != CATALOG_GROUP
        ]
        machines = {
            group.id: cast(QueueMachine, group.machine)
            for group in ([*here, own] if own is not None else here)
        }
        forgotten: list[QueueId] = []
        for group_id, watched in list(self._watched.items()):
            machine = machines.get(group_id)
            if machine is None or machine.counters is not watched.counters:
                forgotten += self._watched.pop(group_id).queues
        for group_id, machine in machines.items():
            if group_id not in self._watched:
                changed = machine.counters.watch()
                changed.update(dict.fromkeys(machine.counters.of))
                self._watched[group_id] = _Watched(machine, machine.counters, changed, set())
        return forgotten

    def _take_changed(self) -> list[tuple[_Watched, QueueId]]:
        found: list[tuple[_Watched, QueueId]] = []
        for watched in self._watched.values():
            found += [(watched, QueueId(queue)) for queue in watched.changed]
            watched.changed.clear()
        return found

    def _noted(self, queue: QueueId) -> tuple[Sample | None, Moment]:
        """What rates are taken against."""
        latest = self._latest.get(queue)
        older = self._before.get(queue, latest)
        return (latest, self._newer.at) if older is None else (older, self._older.at)

    # --- queues -----------------------------------------------------------------------------------

    def here(self, info: QueueInfo) -> QueueFacts | None:
        """From this node's own copy; None when it has none, or the queue is not in it yet."""
        group = self._services.cluster.group(info.group)
        if group is None or info.group == CATALOG_GROUP:
            return None
        machine = cast(QueueMachine, group.machine)
        counters = machine.counters.of.get(info.queue, _NOTHING)
        idle = self._idle.get(info.queue)
        if idle is not None and idle[0] is counters and idle[1] == counters.changes:
            return idle[2]
        view = machine.queue(info.queue)
        if view is None:
            return None
        before, at = self._noted(info.queue)
        facts = facts_of(view, counters, _now(), before, at)
        if before is not None and before.changes == counters.changes and counters is not _NOTHING:
            self._idle[info.queue] = (counters, counters.changes, facts)
        return facts

    def capacity(self, queue: QueueId, counters: QueueCounters) -> float:
        """Of a queue that has consumers, in this node's copy; see `QueueFacts.capacity`."""
        return capacity(counters, _now(), *self._noted(queue))

    def _machine(self, info: QueueInfo) -> QueueMachine | None:
        """This node's copy of what holds the queue."""
        group = self._services.cluster.group(info.group)
        return None if group is None else cast(QueueMachine, group.machine)

    async def queues(self, infos: Sequence[QueueInfo]) -> dict[QueueId, QueueFacts]:
        """Those about which anybody could be asked."""
        found: dict[QueueId, QueueFacts] = {}
        elsewhere: dict[NodeId, list[QueueId]] = {}
        for position, info in enumerate(infos):
            facts = self.here(info)
            if facts is not None:
                found[info.queue] = facts
            elif (leader := self._services.broker.leader(info)) is not None:
                elsewhere.setdefault(leader, []).append(info.queue)
            if position % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        for node, queues in elsewhere.items():
            if node != self._services.cluster.node:
                for start in range(0, len(queues), QUEUES_AT_ONCE):
                    found |= await self._ask(node, queues[start : start + QUEUES_AT_ONCE])
        return found

    async def _ask(self, node: NodeId, queues: Sequence[QueueId]) -> dict[QueueId, QueueFacts]:
        try:
            rows = await self._services.peer_rpc.request(node, "queue_facts", list(queues))
        except BrokerError:
            return {}
        return {
            QueueId(queue): unpacked(row) for queue, row in cast("dict[int, Any]", rows).items()
        }

    # --- what was ---------------------------------------------------------------------------------

    def asked(self, query: Mapping[str, str]) -> Asked | None:
        """The curves that a request asks for."""
        return asked(query, _now().now_ms)

    async def add_history(
        self, wanted: Asked, rows: Sequence[tuple[QueueInfo, QueueFacts | None, dict[str, Any]]]
    ) -> None:
        """To what is shown of these queues: from the own copy, else from the leader's."""
        times = [*wanted.rates_ms, *wanted.lengths_ms]
        found: dict[int, Any] = {}
        elsewhere: dict[NodeId, list[QueueId]] = {}
        for info, _, _ in rows:
            if self._machine(info) is not None:
                found[info.queue] = self._samples.at(info.queue, times)
            elif (leader := self._services.broker.leader(info)) is not None:
                elsewhere.setdefault(leader, []).append(info.queue)
        for node, queues in elsewhere.items():
            with contextlib.suppress(BrokerError):
                ask = self._services.peer_rpc.request
                found |= await ask(node, "queue_history", queues, times)
        for info, facts, shown in rows:
            if facts is not None:
                known = found.get(info.queue) or [now_row(facts)] * len(times)
                cut = len(wanted.rates_ms)
                add_curves(shown, wanted, known[:cut], known[cut:])

    def _answer_history(self, _: NodeId, fields: list[Any]) -> dict[int, Any]:
        return {queue: self._samples.at(QueueId(queue), fields[1]) for queue in fields[0]}

    async def add_totals(
        self, wanted: Asked, infos: Sequence[QueueInfo], now: Sequence[int], shown: dict[str, Any]
    ) -> None:
        """To the sums over these queues, which are `now` so. Each leader says by how much its own
        have changed since.
        """
        times = [*wanted.rates_ms, *wanted.lengths_ms]
        vhosts = sorted({info.vhost for info in infos})
        answers = await self._services.peer_rpc.request_all("led_history", vhosts, times)
        rows = [list(now) for _ in times]
        for changes in answers.values():
            for row, changed in zip(rows, changes, strict=True):
                for place, value in enumerate(changed):
                    row[place] -= value
        cut = len(wanted.rates_ms)
        then = [tuple(max(0, value) for value in row) for row in rows]
        add_curves(shown, wanted, then[:cut], then[cut:])

    async def _answer_led_history(self, _: NodeId, fields: list[Any]) -> list[list[int]]:
        vhosts, times = set(cast("list[str]", fields[0])), cast("list[int]", fields[1])
        sums = [[0] * ROW_SIZE for _ in times]
        for position, queue in enumerate(self._samples.queues()):
            if position % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
            info = self._services.catalog.queue_by_id(queue)
            if info is None or info.vhost not in vhosts:
                continue
            if self._services.broker.leader(info) != self._services.cluster.node:
                continue
            rows = self._samples.at(queue, [*times, _now().now_ms])
            if rows is not None:
                *then, latest = rows
                for sum_, row in zip(sums, then, strict=True):
                    for place in range(ROW_SIZE):
                        sum_[place] += latest[place] - row[place]
        return sums

    # --- facts of other nodes ---------------------------------------------------------------------

    def _answer_facts(self, _: NodeId, fields: list[Any]) -> dict[int, Any]:
        rows: dict[int, Any] = {}
        for queue in cast("Iterable[int]", fields[0]):
            info = self._services.catalog.queue_by_id(QueueId(queue))
            facts = None if info is None else self.here(info)
            if facts is not None:
                rows[queue] = facts.packed()
        return rows

    def _answer_state(self, _: NodeId, fields: list[Any]) -> dict[str, Any] | None:
        """Of a queue that this node leads."""
        queue = QueueId(fields[0])
        info = self._services.catalog.queue_by_id(queue)
        if info is None:
            return None
        machine = self._services.broker.machine(info.group)
        view = machine.queue(queue)
        if view is None:
            return None
        now = sampled(machine.counters.of[queue], view)
        before = self._noted(queue)[0] or (EMPTY if self._has_looked else now)
        lost = now.expired - before.expired, now.overflowed - before.overflowed
        return queue_state.state_here(machine, queue, lost)

    async def head_timestamps(self, infos: Sequence[QueueInfo]) -> dict[QueueId, int]:
        """What the publishers of their oldest ready messages said, where they did."""
        found: dict[QueueId, int] = {}
        here: list[QueueInfo] = []
        elsewhere: dict[NodeId, list[QueueId]] = {}
        for info in infos:
            if self._machine(info) is not None:
                here.append(info)
            elif (leader := self._services.broker.leader(info)) is not None:
                elsewhere.setdefault(leader, []).append(info.queue)
        found |= await self._heads_here(here)
        for node, queues in elsewhere.items():
            with contextlib.suppress(BrokerError):
                found |= await self._services.peer_rpc.request(node, "head_timestamps", queues)
        return found

    async def _answer_timestamps(self, _: NodeId, fields: list[Any]) -> dict[QueueId, int]:
        known = map(self._services.catalog.queue_by_id, cast("list[QueueId]", fields[0]))
        return await self.head_timestamps(
            [info for info in known if info is not None and self._machine(info) is not None]
        )

    async def _heads_here(self, infos: Sequence[QueueInfo]) -> dict[QueueId, int]:
        """Those in memory, and of others as many as may be read; the rest is for the next one who
        asks, since what was found is remembered.
        """
        found: dict[QueueId, int] = {}
        read_bytes = 0
        for info in infos:
            group = self._services.cluster.group(info.group)
            machine = self._machine(info)
            rows = () if machine is None else machine.browse(info.queue, 1, 1, "ready")
            if group is None or not rows:
                continue
            ref = rows[0].chunk.bodies
            known = self._heads.get(info.queue)
            if known is None or known[0] != ref:
                read = group.read_bodies(ref)
                if read is None:
                    size_bytes = max(group.entry_bytes(ref.index), READ_AHEAD_BYTES)
                    if read_bytes and read_bytes + size_bytes > HEAD_BYTES_MAX:
                        continue
                    read_bytes += size_bytes
                    read = await group.load_bodies(ref)
                known = ref, _timestamp(read)
                if len(self._heads) >= HEADS_KNOWN_MAX:
                    self._heads.clear()
                self._heads[info.queue] = known
            if known[1] is not None:
                found[info.queue] = known[1]
        return found

    # --- clients ----------------------------------------------------------------------------------

    async def clients(self, what: str) -> list[dict[str, Any]]:
        """The "connections" or "channels" of all nodes that are up."""
        answers = await self._services.peer_rpc.request_all("listing", what)
        return [each for node in sorted(answers) for each in answers[node]]

    async def close_connection(self, name: str, reason: str) -> bool:
        answers = await self._services.peer_rpc.request_all("close_connection", name, reason)
        return any(answers.values())

    def _answer_listing(self, _: NodeId, fields: list[Any]) -> list[dict[str, Any]]:
        listing = self._services.listing
        return listing.channels() if fields[0] == "channels" else listing.connections()

    def _answer_close(self, _: NodeId, fields: list[Any]) -> bool:
        return self._services.listing.close_connection(str(fields[0]), str(fields[1]))

    # --- nodes ------------------------------------------------------------------------------------

    async def hosts(self, query: Mapping[str, str] | None = None) -> dict[NodeId, dict[str, Any]]:
        """Of the nodes that are up, with the curves that `query` asks for."""
        wanted = times(query or {}, "node_stats", _now().now_ms)
        return await self._services.peer_rpc.request_all("host", wanted)

    def _answer_host(self, _: NodeId, fields: list[Any]) -> dict[str, Any]:
        now_s = time.monotonic()
        facts = host_facts(self._services, uptime_s=now_s - self._started_s)
        wanted: list[int] = fields[0] if fields else []  # releases before 0.3 say nothing
        curves = self._node_samples.curves(MEASURED, wanted) if wanted else {}
        for name, before in self._older.measured.items():
            per_second = (facts[name] - before) / max(now_s - self._older.at.at_s, 0.001)
            facts[f"{name}_details"] = {"rate": round(per_second, 2), **curves.get(name, {})}
        return facts

    def _answer_attempts(self, _: NodeId, fields: list[Any]) -> list[Any]:
        """By protocol, and by source; forgotten first when that is asked."""
        attempts = self._services.auth.attempts
        if fields[0]:
            attempts.forget()
        by_protocol = [[protocol, counts] for protocol, counts in attempts.by_protocol.items()]
        return [by_protocol, [[*key, counts] for key, counts in attempts.by_source.items()]]

    async def certificates(self, until: dt.datetime) -> dict[NodeId, list[dict[str, Any]]]:
        """Of the nodes that are up, that end by then."""
        return await self._services.peer_rpc.request_all("ending_certificates", until.timestamp())

    def _answer_certificates(self, _: NodeId, fields: list[Any]) -> list[dict[str, Any]]:
        until = dt.datetime.fromtimestamp(float(fields[0]), dt.UTC)
        return ending_certificates(self._services.settings.tls, until)

    async def audit_lines(self) -> list[dict[str, Any]]:
        """Of the nodes that are up, the newest first."""
        answers = await self._services.peer_rpc.request_all("audit_lines")
        lines = [line for answer in answers.values() for line in answer]
        return sorted(lines, key=lambda line: str(line["time"]), reverse=True)

    async def group_statuses(self, group: GroupId) -> dict[NodeId, dict[str, Any]]:
        """Of the copies of a group on the nodes that are up."""
        answers = await self._services.peer_rpc.request_all("group_status", group)
        return {node: status for node, status in answers.items() if status is not None}

    async def led(self) -> dict[GroupId, tuple[NodeId, dict[str, Any]]]:
        """The groups whose leaders are up, with these and what they tell."""
        found: dict[GroupId, tuple[NodeId, dict[str, Any]]] = {}
        answers = await self._services.peer_rpc.request_all("groups_led")
        for node, led in answers.items():
            for group, facts in cast("dict[int, Any]", led).items():
                known = found.get(GroupId(group))
                if known is None or known[1]["term"] < facts["term"]:
                    found[GroupId(group)] = (node, facts)
        return found

    def _answer_led(self, _: NodeId, __: list[Any]) -> dict[int, Any]:
        return {
            group.id: {
                "term": group.term,
                "voters": list(group.configuration.voters),
                "learners": list(group.configuration.learners),
                "last": group.last_index,
                "lag": {str(node): lag for node, lag in group.lag().items()},
            }
            for group in self._services.cluster.groups.values()
            if group.ready
        }

    def _answer_group(self, _: NodeId, fields: list[Any]) -> dict[str, Any] | None:
        cluster = self._services.cluster
        group = cluster.group(GroupId(fields[0]))
        if group is None:
            return None
        status, machine = group.status(), group.machine
        names = ("role", "leader", "term", "commit", "applied", "last", "base", "poisoned")
        names += ("diverged", "machine_version", "needs_version")
        has_queues = isinstance(machine, QueueMachine)
        lost = lost_queues(cluster.catalog_machine, machine) if has_queues else ()
        named = [{"vhost": queue.vhost, "name": queue.name} for queue in lost]
        letters = self._services.dead_letters
        unreadable = letters.unreadable(machine) if has_queues else ()
        kept = letters.kept(machine) if has_queues else ()
        refused = letters.refused(machine) if has_queues else ()
        return {
            **{name: status[name] for name in names},
            "lost_queues": named,
            "unreadable_dead_letters": [
                {"vhost": vhost, "name": name, "count": count} for vhost, name, count in unreadable
            ],
            "waiting_dead_letters": [asdict(each) for each in kept],
            "refused_dead_letters": [asdict(each) for each in refused],
        }


def _timestamp(read: Sequence[tuple[Body, Any]]) -> int | None:
    """What the publisher of the message said."""
    found = as_map(read[0][1]) if read else None
    timestamp = cast("dict[str, Any]", found).get("timestamp") if isinstance(found, dict) else None
    if isinstance(timestamp, dt.datetime):
        return int(timestamp.timestamp())
    return timestamp if type(timestamp) is int else None
