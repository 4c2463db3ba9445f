"""The real cluster on simulated machines, the faults that befall them, and the eyes of the
invariants.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from chaos.faults import Grudge
from chaos.simulator.channel import Channel
from chaos.simulator.clock import SimClock
from chaos.simulator.disk import DiskOptions, Platter, SimDisk
from chaos.simulator.disk_faults import DATA_DIR, DiskFaults
from chaos.simulator.invariants import LogWatch, Violation
from chaos.simulator.ledger import Ledger
from chaos.simulator.links import NetworkOptions, SimNetwork
from chaos.simulator.loop import Process, ProcessState, World
from chaos.simulator.machine import GroupView, Machine
from chaos.simulator.plan import Plan
from chaos.simulator.sim_broker import SimBroker
from chaos.simulator.trace import Trace
from cluster.cluster_node import ClusterConfig, ClusterNode
from cluster.groups.group import Group, Role
from cluster.log import LogOptions
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.raft.link_auth import LINK_VERSIONS
from cluster.raft.messages import (
    APPENDED,
    BEATS,
    BEATS_ANSWERED,
    BEATS_SINCE,
    INSTALL,
    VOTE,
    VOTED,
    singles,
)
from cluster.types import GroupId, NodeId
from node.node import WATCH_S
from node.settings.sections import LimitSettings

#: Digests are compared at indexes divisible by this; machines check themselves at the same ones.
DIGEST_EVERY = 8
#: From here on a clock is wrong, and counts as wrong by days.
CLOCK_MS_MAX = 2_000
A_DAY_MS = 86_400_000


class OlderCatalog(CatalogMachine):
    newest = MACHINE_VERSION - 1


class OlderQueues(QueueMachine):
    newest = MACHINE_VERSION - 1


#: The machines of this release, and of the one before as far as versions tell them apart.
RELEASE = (CatalogMachine, QueueMachine)
OLDER_RELEASE = (OlderCatalog, OlderQueues)
#: In so many runs links are of two versions.
OLDER_LINKS_SHARE = 0.3


class SimCluster(DiskFaults):
    """All machines of a run."""

    def __init__(
        self, plan: Plan, world: World, trace: Trace, watch: LogWatch, ledger: Ledger
    ) -> None:
        super().__init__(plan, trace, watch, random.Random(f"decay/{plan.seed}"))
        self.ledger = ledger
        self.world = world
        self.broken: list[Violation] = []
        self._held: dict[NodeId, set[GroupId]] = {}  # at the last look
        self.on_serving: list[Callable[[Machine], None]] = []
        self._dice = random.Random(f"cluster/{plan.seed}")
        self.network = SimNetwork(
            world,
            random.Random(f"network/{plan.seed}"),
            NetworkOptions(
                latency_ms=plan.latency_ms,
                jitter_ms=plan.jitter_ms,
                bytes_per_s=plan.bytes_per_s,
                silence_ms=plan.election_min_ms,
                bytes_max=plan.link_bytes_max,
            ),
        )
        self.network.on_send = self._sent
        self.network.on_flush = self.look
        self.network.on_deliver = self._delivered
        self.machines = {name: self._machine(name) for name in plan.nodes}
        self.gone = set[GroupId]()  # groups whose copies were all lost: nobody can serve them
        self._digests: dict[tuple[GroupId, int], tuple[NodeId, bytes]] = {}
        self._applied: dict[tuple[NodeId, GroupId], int] = {}
        self._bases: dict[tuple[NodeId, GroupId], int] = {}
        self._raised: set[tuple[NodeId, GroupId]] = set()
        self._installing: set[tuple[NodeId, GroupId, int]] = set()

    def _machine(self, name: NodeId) -> Machine:
        plan = self.plan
        platter = Platter(
            random.Random(f"platter/{plan.seed}/{name}"),
            DiskOptions(
                sync_ms_typical=plan.sync_ms,
                sync_ms_stall=plan.stall_ms,
                write_back=plan.write_back,
            ),
        )
        clock = SimClock(
            self.world,
            offset_ms=self._dice.randint(-300, 300),
            monotonic_offset_ns=self._dice.randint(0, 10**15),
        )
        return Machine(name, platter, clock)

    # --- faults

    @property
    def nodes(self) -> list[NodeId]:
        return list(self.plan.nodes)

    def start(self, node: NodeId) -> None:
        machine = self.machines[node]
        if machine.alive:
            return
        plan = self.plan
        machine.incarnation += 1
        machine.failures_known = machine.platter.failures
        machine.platter.options.fails_next = False  # it was meant for the process before
        process = Process(self.world, node)
        peers = [other for other in plan.nodes if other != node]
        links = self.network.open(
            node, process, peers, machine.incarnation, self._link_version(machine)
        )
        # The first process of a node may be of the release before: a restart is its upgrade.
        older = plan.mixed_releases and machine.incarnation == 1
        if plan.mixed_releases and machine.incarnation == 2:
            self.trace.count("nodes upgraded")
        cluster = ClusterNode(
            ClusterConfig(
                node,
                "simulated",
                plan.nodes,
                DATA_DIR,
                addresses={"peer": node},
                default_groups=plan.default_groups,
                election_min_ms=plan.election_min_ms,
                election_max_ms=plan.election_max_ms,
                heartbeat_ms=plan.heartbeat_ms,
                log=LogOptions(segment_bytes=plan.segment_bytes, hot_bytes=plan.hot_bytes),
                snapshot_entries=plan.snapshot_entries,
                snapshot_bytes=plan.snapshot_bytes,
                machines=OLDER_RELEASE if older else RELEASE,
            ),
            disk=SimDisk(machine.platter, process),
            clock=machine.clock,
            links=links,
            random=random.Random(f"node/{plan.seed}/{node}/{machine.incarnation}"),
        )
        machine.process, machine.cluster = process, cluster
        self.network.machines_off.discard(node)
        process.spawn(self._boot(machine, cluster), "boot")
        self.trace.event(node, "+", f"starts, incarnation {machine.incarnation}")
        self.trace.count("starts")

    def _link_version(self, machine: Machine) -> int:
        """In some runs a start may be of a release before the joined heartbeats, also a later one:
        whoever upgrades may go back.
        """
        seed = self.plan.seed
        if random.Random(f"links/{seed}").random() >= OLDER_LINKS_SHARE:
            return LINK_VERSIONS[1]
        dice = random.Random(f"links/{seed}/{machine.name}/{machine.incarnation}")
        version = dice.choice((BEATS_SINCE - 1, LINK_VERSIONS[1]))
        if version < BEATS_SINCE:
            self.trace.count("starts with older links")
        return version

    async def _boot(self, machine: Machine, cluster: ClusterNode) -> None:
        assert machine.process is not None
        limits = LimitSettings.model_validate(
            {"deliver_buffer_bytes_max": self.plan.deliver_buffer_bytes}
        )
        broker = SimBroker(cluster, machine.process, limits, self.ledger)
        await cluster.start()
        broker.open()
        machine.broker = broker
        machine.process.spawn(self._watch(machine, machine.process, cluster), "watch")
        for listener in self.on_serving:
            listener(machine)
        self.trace.event(machine.name, "+", "serves")

    async def _watch(self, machine: Machine, process: Process, cluster: ClusterNode) -> None:
        """A node that was removed ends by itself, and serves nobody until it is started again."""
        while not cluster.left:
            await asyncio.sleep(WATCH_S)
        if machine.serves and not cluster.stopping:
            self.trace.event(machine.name, "X", "ends by itself, it was removed")
            self.trace.count("nodes that ended when removed")
            await self._end(machine, process, cluster)

    def kill(self, node: NodeId, *, power_loss: bool = False) -> None:
        machine = self.machines[node]
        process = machine.process
        if process is None or not process.alive:
            return
        self.trace.event(node, "!", "power loss" if power_loss else "kill -9")
        self.trace.count("power losses" if power_loss else "kills")
        if power_loss:
            self.network.power_off(node)
        process.kill()
        for channel in machine.channels:
            channel.cut(told=not power_loss)
        machine.channels.clear()
        if power_loss:
            machine.platter.lose_power()
            if machine.platter.options.write_back:
                self.trace.count("power losses, written back in any order")
        self.watch.forget(node)
        machine.cluster = machine.broker = None
        for key in [key for key in self._applied if key[0] == node]:
            del self._applied[key]

    def power_loss(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            self.kill(node, power_loss=True)

    def terminate(self, node: NodeId) -> None:
        machine = self.machines[node]
        if machine.serves and machine.process is not None and machine.cluster is not None:
            self.trace.event(node, "!", "SIGTERM")
            self.trace.count("terminations")
            machine.process.spawn(self._end(machine, machine.process, machine.cluster), "end")

    async def _end(self, machine: Machine, process: Process, cluster: ClusterNode) -> None:
        for channel in machine.channels:
            channel.cut()
        machine.channels.clear()
        broker, machine.broker = machine.broker, None
        if broker is not None:
            await broker.close()
        if not cluster.stopping:
            await cluster.stop()
        # A process cannot collect itself while it runs.
        self.world.kernel.call_soon(self._ended, machine, process)

    def _ended(self, machine: Machine, process: Process) -> None:
        if machine.process is process:
            self.kill(machine.name)

    def pause(self, node: NodeId) -> None:
        machine = self.machines[node]
        if machine.running and machine.process is not None:
            machine.process.pause()
            self.trace.event(node, "!", "paused")
            self.trace.count("pauses")

    def resume(self, node: NodeId) -> None:
        process = self.machines[node].process
        if process is not None and process.state is ProcessState.PAUSED:
            self.trace.event(node, "+", "resumed")
            process.resume()

    def partition(self, grudge: Grudge, *, reset: bool = False) -> None:
        if not grudge:
            if self.network.cut:
                self.trace.event("network", "+", "healed")
                self.network.set_cut(set())
            return
        cut = {(source, target) for target, deaf in grudge.items() for source in deaf}
        self.network.set_cut(cut)
        if reset:
            for source, target in sorted(cut):
                self.network.reset(source, target)
        words = ", ".join(
            f"{target} does not hear {'/'.join(sorted(grudge[target]))}"
            for target in sorted(grudge)
        )
        self.trace.event("network", "!", f"{'reset' if reset else 'cut'}: {words}")
        one_way = any((target, source) not in cut for source, target in cut)
        self.trace.count("one-way partitions" if one_way else "partitions")

    def heal(self) -> None:
        """End all cuts, full, slow and failing disks, and wrong clocks. What is down stays down."""
        self.partition({})
        self.network.set_refused(set())
        for machine in self.machines.values():
            machine.platter.options.sync_ms_typical = self.plan.sync_ms
            machine.platter.options.stall_share = 0.0
            machine.platter.options.fails_next = False
            machine.platter.options.full = machine.platter.options.lies = False
            machine.clock.offset_ms = 0
            self.resume(machine.name)
            if machine.disk_failed:
                self.kill(machine.name)

    def check_failed(self, node: NodeId) -> None:
        """Its disk failed a while ago: it must have stopped by itself."""
        machine = self.machines[node]
        if machine.serves and machine.disk_failed and machine.cluster is not None:
            if machine.cluster.failed is None:
                self._break("a failed fsync ends a node", f"{node} goes on")
            else:
                self.trace.event(node, "X", "stopped by itself, its disk failed")
                self.trace.count("nodes that stopped themselves")

    def skew_clock(self, node: NodeId, offset_ms: int) -> None:
        self.machines[node].clock.offset_ms = offset_ms
        self.trace.event(node, "!", f"wall clock is off by {offset_ms} ms")
        self.trace.count("clock jumps")
        if abs(offset_ms) >= A_DAY_MS:
            self.trace.count("clock jumps by days")
        wrong = sum(self.clock_is_wrong(each) for each in self.machines)
        if 2 * wrong >= len(self.machines):
            self.trace.count("most clocks wrong")

    def clock_is_wrong(self, node: NodeId) -> bool:
        """By more than clocks of nodes usually differ."""
        return abs(self.machines[node].clock.offset_ms) > CLOCK_MS_MAX

    def reset_links(self, a: NodeId, b: NodeId) -> None:
        self.network.reset(a, b)
        self.trace.event("network", "!", f"connection {a}-{b} reset")
        self.trace.count("resets")

    def reject(self, node: NodeId | None) -> None:
        """Reset all links of the node, and whatever they try, from now on. None: no more."""
        others = [other for other in self.nodes if other != node]
        self.network.set_refused(
            set() if node is None else {frozenset((node, other)) for other in others}
        )
        if node is not None:
            self.trace.event("network", "!", f"a firewall resets the links of {node}")
            self.trace.count("rejected links")

    def cut_clients(self, node: NodeId) -> None:
        machine = self.machines[node]
        self.trace.event(node, "!", f"{len(machine.channels)} client connections reset")
        self.trace.count("client resets")
        for channel in machine.channels:
            channel.cut()
        machine.channels.clear()

    # --- clients

    def connect(self, client: Process, node: NodeId) -> Channel | None:
        """A connection to the node, or None when nobody answers there."""
        machine = self.machines[node]
        if machine.process is None or machine.broker is None or not machine.running:
            return None
        latency_ms = min(2.0, self.plan.latency_ms)
        channel = Channel(self.world, self._dice, latency_ms, client, machine.process, node)
        machine.channels = [each for each in machine.channels if each.open]
        machine.channels.append(channel)
        machine.broker.accept(channel)
        return channel

    # --- what is seen of it

    def serving(self) -> list[ClusterNode]:
        machines = self.machines.values()
        return [each.cluster for each in machines if each.serves and each.cluster is not None]

    def leader(self, group: GroupId) -> NodeId | None:
        """The running leader of the highest term."""
        best: tuple[int, NodeId] | None = None
        for machine in self.machines.values():
            copy = machine.groups().get(group)
            if machine.running and copy is not None and copy.role is Role.LEADER:
                best = max(best or (0, machine.name), (copy.term, machine.name))
        return None if best is None else best[1]

    def group_ids(self) -> list[GroupId]:
        """Of those that can have a leader."""
        groups = {group for machine in self.machines.values() for group in machine.groups()}
        return sorted(groups - self.gone)

    def _sent(self, source: NodeId, target: NodeId, message: list[Any]) -> None:
        group, kind, *rest = message
        if kind in (BEATS, BEATS_ANSWERED):
            for single in singles(kind, rest[0]):
                self._sent(source, target, single)
        if group < 0:
            return
        if kind == APPENDED:
            self.watch.acknowledged(source, group, rest[0], rest[1])
        elif kind == VOTED and rest[1]:
            self.watch.voted(source, group, rest[0], target)
        elif kind == VOTE:
            self.watch.voted(source, group, rest[0], source)
        elif kind == INSTALL:
            key = (target, GroupId(group), rest[1])
            if key not in self._installing:
                self._installing.add(key)
                self.trace.event(
                    source, ">", f"group {group}: sends snapshot {rest[1]} to {target}"
                )
                self.trace.count("snapshot installs")

    def _look_for_the_living(self, cluster: ClusterNode) -> None:
        for peer, state in cluster.peers.states.items():
            other = self.machines.get(peer)
            if not state.gone or other is None or other.cluster is None:
                continue
            links = other.cluster.links
            if not other.cluster.stopping and links.incarnation == state.incarnation:
                self._break("a living node is not gone", f"{cluster.node} gave {peer} up")

    def _delivered(self, source: NodeId, target: NodeId, message: list[Any], size: int) -> None:
        self.trace.mark(f"{source}{target}{size}{message[0]}")

    def look(self, node: NodeId) -> None:
        """Check every copy of one node: called before anything leaves it."""
        self.watch.now_s = self.world.now_s
        machine = self.machines[node]
        if machine.cluster is not None:
            self._look_for_the_living(machine.cluster)
        for group_id in self._held.get(node, set()) - set(machine.groups()):
            if machine.cluster is not None:  # its copy was dropped
                self.watch.dropped(node, group_id)
                self._applied.pop((node, group_id), None)
        self._held[node] = set(machine.groups())
        for group_id, group in machine.groups().items():
            change = self.watch.look(node, group_id, GroupView(group))
            if group.poisoned is not None:
                self._break("poisoned", f"{node} group {group_id}: {group.poisoned}")
            if group.skipped and (node, group_id) not in self._raised:
                self._raised.add((node, group_id))
                self._break(
                    "apply is total",
                    f"{node} group {group_id}: the machine raised, at or before index"
                    f" {group.applied_index}",
                )
            if change is None:
                continue
            if change.became_leader:
                self.trace.count("leaders elected")
                self.trace.event(
                    node,
                    "L",
                    f"leads group {group_id}, term {change.after.term},"
                    f" commit {change.after.commit_index}, last {change.after.last_index}",
                )
            elif change.before is not None and change.before.leads and not change.after.leads:
                self.trace.event(
                    node, "F", f"leads group {group_id} no more, term {change.after.term}"
                )
            if change.before is not None and change.after.last_index < change.before.last_index:
                self.trace.count("log truncations")
                self.trace.event(
                    node,
                    "T",
                    f"group {group_id}: log cut from {change.before.last_index}"
                    f" to {change.after.last_index}",
                )
            self._look_inside(node, group)

    def _look_inside(self, node: NodeId, group: Group) -> None:
        key = (node, group.id)
        base, applied = group.journal.base_index, group.applied_index
        if self._bases.get(key) != base:
            if self._bases.get(key, 1) < base:
                self.trace.count("snapshots")
            self._bases[key] = base
        if self._applied.get(key) == applied or group.poisoned is not None:
            return
        self._applied[key] = applied
        process = self.machines[node].process
        if applied % DIGEST_EVERY == 0 and process is not None:
            # Effects leave while an entry is applied: its state is looked at when it is whole.
            process.call_soon(self._check_soon, node, group)

    def _check_soon(self, node: NodeId, group: Group) -> None:
        current = self.machines[node].groups().get(group.id) is group
        if current and group.applied_index % DIGEST_EVERY == 0 and group.poisoned is None:
            self.check_state(node, group)

    def check_state(self, node: NodeId, group: Group) -> None:
        """The machine against itself, and against the others at the same index."""
        try:
            group.machine.invariants()
        except AssertionError as error:
            self._break("machine", f"{node} group {group.id} at {group.applied_index}: {error!r}")
        digest = group.machine.digest()
        other, known = self._digests.setdefault((group.id, group.applied_index), (node, digest))
        if known != digest:
            self._break(
                "state digests",
                f"{node} and {other} differ in group {group.id} at index {group.applied_index}",
            )

    def _break(self, invariant: str, text: str) -> None:
        self.broken.append(Violation(self.world.now_s, invariant, text))

    def broke(self, invariant: str, text: str) -> None:
        """What a nemesis saw."""
        self._break(invariant, text)

    def crashes(self) -> list[BaseException | str]:
        found: list[BaseException | str] = []
        for machine in self.machines.values():
            if machine.disk_failed or (machine.damaged and machine.broker is None):
                continue  # `check_failed` sees that it stops, the restart ends what it was doing
            if machine.process is not None:
                found += machine.process.crashes
            if machine.cluster is not None and machine.alive and machine.cluster.failed is not None:
                found.append(machine.cluster.failed)
        return found

    def unled(self) -> str | None:
        """A group without a leader that serves; None: there is none."""
        if not self.serving():
            return "nobody serves"
        copies = [group for m in self.machines.values() for group in m.groups().values()]
        led = {group.id for group in copies if group.ready}
        waiting = sorted({group.id for group in copies} - led - self.gone)
        return f"groups {waiting} have no leader" if waiting else None

    def converged(self) -> str | None:
        """None when all copies of all groups are equal and idle; else what is still different."""
        for machine in self.machines.values():
            if not machine.serves:
                return f"{machine.name} does not serve"
        for group_id in self.group_ids():
            copies = {
                m.name: g
                for m in self.machines.values()
                if (g := m.groups().get(group_id)) is not None
            }
            members = next(iter(copies.values())).members
            if set(members) != set(copies):
                return f"group {group_id} has copies only at {sorted(copies)}"
            if self.leader(group_id) is None:
                return f"group {group_id} has no leader"
            ends = {name: (g.applied_index, g.last_index) for name, g in copies.items()}
            applied = {end for pair in ends.values() for end in pair}
            if len(applied) != 1:
                return f"group {group_id}: (applied, last) {ends}"
        return None
