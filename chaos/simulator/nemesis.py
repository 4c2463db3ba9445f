"""Who strikes and when: random schedules, and directed ones that wait for a fragile moment and
strike then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from chaos.faults import bridge, deafen, halves, isolate, silence
from chaos.simulator.backups import Backups
from chaos.simulator.sim_cluster import SimCluster
from cluster.groups.group import Group, Role
from cluster.types import GroupId, NodeId

#: How often a directed nemesis looks whether its moment has come.
WATCH_S = 0.001
PATIENCE_S = 3.0
BATCHES_IN_FLIGHT = 3
DAY_MS = 86_400_000


class Nemesis:
    """Strikes at random until told to stop. A majority may be down: safety must hold still."""

    def __init__(self, cluster: SimCluster, backups: Backups) -> None:
        self.cluster = cluster
        self._backups = backups
        self.dice = random.Random(f"nemesis/{cluster.plan.seed}")
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "partition": self._partition,
            "one_way": self._one_way,
            "reset": self._reset,
            "kill": self._kill,
            "power_loss": self._power_loss,
            "power_loss_all": self._power_loss_all,
            "pause": self._pause,
            "slow_disk": self._slow_disk,
            "failing_fsync": self._failing_fsync,
            "skew_clock": self._skew_clock,
            "wrong_clock": self._wrong_clock,
            "cut_clients": self._cut_clients,
            "directed": self._directed,
            "conflict": self._conflict,
            "backup": self._backup,
            "reject": self._reject,
        }

    async def run(self) -> None:
        plan = self.cluster.plan
        kinds = [kind for kind, _ in plan.nemesis_weights]
        weights = [weight for _, weight in plan.nemesis_weights]
        while True:
            await asyncio.sleep(self.dice.expovariate(1.0) * plan.fault_every_s)
            kind = self.dice.choices(kinds, weights)[0]
            # Each fault mends itself after a while, in a task of its own, so faults overlap.
            self.cluster.world.kernel.spawn(self._strike(self._faults[kind]), kind)

    async def _strike(self, fault: Callable[[], Awaitable[None]]) -> None:
        await fault()

    def _node(self) -> NodeId:
        return self.dice.choice(self.cluster.nodes)

    def _group(self) -> GroupId | None:
        groups = self.cluster.group_ids()
        return self.dice.choice(groups) if groups else None

    def _target(self) -> NodeId:
        """A leader more often than chance would have it."""
        group = self._group()
        leader = None if group is None else self.cluster.leader(group)
        return leader if leader is not None and self.dice.random() < 0.5 else self._node()

    async def _wait(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self.dice.uniform(shortest_s, longest_s))

    # --- partitions

    async def _partition(self) -> None:
        nodes = self.cluster.nodes
        shape = self.dice.choice(("isolate", "halves", "bridge"))
        if shape == "isolate":
            grudge = isolate(self._target(), nodes)
        elif shape == "bridge":
            grudge = bridge(self._target(), nodes)
        else:
            shuffled = self.dice.sample(nodes, len(nodes))
            middle = self.dice.randint(1, max(1, len(nodes) - 1))
            grudge = halves(shuffled[:middle], shuffled[middle:])
        if len(nodes) > 1:
            self.cluster.partition(grudge, reset=self.dice.random() < 0.4)
            await self._wait(0.05, 6.0)
            self.cluster.heal_network()

    async def _one_way(self) -> None:
        nodes = self.cluster.nodes
        if len(nodes) > 1:
            shape = self.dice.choice((deafen, silence))
            self.cluster.partition(shape(self._target(), nodes))
            await self._wait(0.2, 6.0)
            self.cluster.heal_network()

    async def _reset(self) -> None:
        if len(self.cluster.nodes) > 1:
            for _ in range(self.dice.randint(1, 4)):
                a, b = self.dice.sample(self.cluster.nodes, 2)
                self.cluster.reset_links(a, b)
                await self._wait(0.0, 0.3)

    async def _reject(self) -> None:
        """For seconds a firewall resets what a living node sends and is sent."""
        node = self._target()
        if len(self.cluster.nodes) > 1:
            self.cluster.reject(node)
            await self._wait(1.0, 4.0)
            self.cluster.reject(None)

    async def _cut_clients(self) -> None:
        self.cluster.cut_clients(self._target())

    # --- processes and machines

    async def _kill(self, node: NodeId | None = None, *, power_loss: bool = False) -> None:
        node = node or self._target()
        self.cluster.kill(node, power_loss=power_loss)
        await self._wait(0.01, 4.0)
        self.cluster.start(node)

    async def _power_loss(self) -> None:
        await self._kill(power_loss=True)

    async def _power_loss_all(self) -> None:
        nodes = self.dice.sample(self.cluster.nodes, len(self.cluster.nodes))
        for node in nodes:
            self.cluster.kill(node, power_loss=True)
        await self._wait(0.1, 1.0)
        for node in nodes:
            await self._wait(0.0, 0.8)
            self.cluster.start(node)

    async def _pause(self) -> None:
        node = self._target()
        self.cluster.pause(node)
        # Often longer than an election: it wakes up believing that it leads.
        await self._wait(0.1, 3.0 * self.cluster.plan.election_max_ms / 1e3)
        self.cluster.resume(node)

    async def _slow_disk(self) -> None:
        node = self._target()
        self.cluster.slow_disk(node, self.dice.choice((20.0, 100.0, 400.0)))
        await self._wait(1.0, 5.0)
        self.cluster.slow_disk(node, self.cluster.plan.sync_ms)

    async def _failing_fsync(self) -> None:
        """The next fsync fails; the node must end itself, and comes back as after a crash."""
        node = self._target()
        machine = self.cluster.machines[node]
        process = machine.process
        self.cluster.fail_fsync(node)
        await self._until(lambda: machine.disk_failed or machine.process is not process)
        # What has to happen happens at once; a process manager looks once a second.
        await self._wait(0.1, 1.0)
        if machine.process is process and machine.disk_failed:
            self.cluster.check_failed(node)
            await self._kill(node, power_loss=self.dice.random() < 0.5)

    async def _skew_clock(self) -> None:
        jump = self.dice.choice((200, 5_000, 300_000)) * self.dice.choice((-1, 1))
        self.cluster.skew_clock(self._node(), jump)

    @property
    def _nobody_starts(self) -> bool:
        """While the faults go on: a node that starts believes a majority of clocks at once."""
        plan = self.cluster.plan
        ends = {"kill", "power_loss", "power_loss_all", "failing_fsync", "directed"}
        kinds = {kind for kind, _ in plan.nemesis_weights}
        return not (plan.disk_weights or plan.members or kinds & ends)

    async def _wrong_clock(self) -> None:
        """Days off for a moment or for longer: one clock, the only wrong one; seldom all."""
        cluster, dice = self.cluster, self.dice
        if len(cluster.nodes) == 1:
            return  # it believes the only clock there is when it starts, and may expire all by that
        everywhere = dice.random() < 0.1 and self._nobody_starts
        struck = cluster.nodes if everywhere else [self._target()]
        for node in cluster.nodes:
            if cluster.clock_is_wrong(node):
                cluster.skew_clock(node, 0)
        days = dice.choice((1, 8, 30)) * dice.choice((1, 1, -1))
        for node in struck:
            cluster.skew_clock(node, days * DAY_MS)
        shortest, longest = dice.choice(((0.0, 0.3), (1.0, 8.0)))
        if len(struck) > 1:  # for longer they would be believed
            shortest, longest = 0.0, 0.3
        await self._wait(shortest, longest)
        for node in struck:
            cluster.skew_clock(node, 0)

    # --- directed: wait for a fragile moment

    async def _directed(self) -> None:
        strike = self.dice.choice(
            (
                self._kill_leader_with_batches_in_flight,
                self._kill_during_install,
                self._kill_after_vote,
                self._kill_while_syncing,
                self._lose_power_while_syncing,
                self._pause_leader_through_an_election,
                self._isolate_leader_with_batches_in_flight,
            )
        )
        await strike()

    async def _moment(self, come: Callable[[], bool]) -> bool:
        come_in_time = await self._until(come)
        if come_in_time:
            self.cluster.trace.count("directed strikes")
        return come_in_time

    async def _until(self, come: Callable[[], bool]) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while loop.time() < until:
            if come():
                return True
            await asyncio.sleep(WATCH_S)
        return False

    def _copy(self, node: NodeId, group: GroupId) -> Group | None:
        machine = self.cluster.machines[node]
        return machine.groups().get(group) if machine.running else None

    def _in_flight(self, leader: NodeId) -> int:
        network = self.cluster.network
        found = [
            network.connection(leader, other) for other in self.cluster.nodes if other != leader
        ]
        return max((len(c.ways[leader].queue) for c in found if c is not None), default=0)

    async def _kill_leader_with_batches_in_flight(self) -> None:
        """One follower is cut off, and the leader dies while the other has several batches under
        way to it.
        """
        group = self._group()
        leader = None if group is None else self.cluster.leader(group)
        others = [node for node in self.cluster.nodes if node != leader]
        if leader is None or not others:
            return
        cut = self.dice.choice(others)
        self.cluster.partition(isolate(cut, self.cluster.nodes), reset=True)
        await self._moment(lambda: self._in_flight(leader) >= BATCHES_IN_FLIGHT)
        self.cluster.kill(leader, power_loss=self.dice.random() < 0.3)
        await self._wait(0.0, 0.2)
        self.cluster.heal_network()
        await self._wait(1.0, 5.0)
        self.cluster.start(leader)

    async def _isolate_leader_with_batches_in_flight(self) -> None:
        group = self._group()
        leader = None if group is None else self.cluster.leader(group)
        if leader is None or len(self.cluster.nodes) == 1:
            return
        await self._moment(lambda: self._in_flight(leader) >= BATCHES_IN_FLIGHT)
        self.cluster.partition(isolate(leader, self.cluster.nodes), reset=self.dice.random() < 0.5)
        await self._wait(0.5, 6.0)
        self.cluster.heal_network()

    async def _backup(self) -> None:
        """Not a fault, but it holds all groups for a moment, while others strike."""
        serving = [machine for machine in self.cluster.machines.values() if machine.serves]
        if serving:
            await self._backups.take(self.dice.choice(serving))

    async def _conflict(self) -> None:
        """A leader with a minority goes on taking what the others will not have, until it steps
        down; they elect another, whose log goes on from the same place. So theirs must be cut.
        """
        nodes = self.cluster.nodes
        for _ in range(self.dice.randint(1, 3)):
            groups = self.cluster.group_ids()
            leaders = {group: self.cluster.leader(group) for group in groups}
            led = [group for group, leader in leaders.items() if leader is not None]
            if not led or len(nodes) < 3:
                return
            group = self.dice.choice(led)
            leader = leaders[group]
            assert leader is not None
            others = [node for node in nodes if node != leader]
            few = self.dice.sample(others, self.dice.randint(0, (len(nodes) - 1) // 2 - 1))
            minority = [leader, *few]
            majority = [node for node in nodes if node not in minority]
            self.cluster.partition(halves(minority, majority))
            self.cluster.trace.count("conflicts provoked")
            await self._moment(lambda group=group, leader=leader: self._pending(leader, group))
            await self._moment(
                lambda majority=majority, group=group: self._led_among(majority, group)
            )
            await self._wait(0.0, 0.5)
            self.cluster.heal_network()
            await self._wait(0.5, 2.0)

    def _pending(self, node: NodeId, group: GroupId) -> bool:
        copy = self._copy(node, group)
        return copy is not None and copy.last_index > copy.commit_index

    def _led_among(self, nodes: list[NodeId], group: GroupId) -> bool:
        copies = [self._copy(node, group) for node in nodes]
        return any(copy is not None and copy.role is Role.LEADER for copy in copies)

    async def _kill_during_install(self) -> None:
        """Keep a follower away until the log has moved past it, and kill an end of the snapshot's
        way.
        """
        cluster = self.cluster
        group = self._group()
        leader = None if group is None else cluster.leader(group)
        others = [node for node in cluster.nodes if node != leader]
        if group is None or leader is None or not others:
            return
        away = self.dice.choice(others)
        cluster.kill(away)
        await self._wait(1.0, 4.0)
        installs = cluster.trace.counts["snapshot installs"]
        cluster.start(away)
        if await self._moment(lambda: cluster.trace.counts["snapshot installs"] > installs):
            await self._wait(0.0, 0.02)
            await self._kill(self.dice.choice((away, leader)), power_loss=self.dice.random() < 0.5)

    async def _kill_after_vote(self) -> None:
        """A vote that is not on the disk is cast twice: kill voters in an election."""
        group = self._group()
        leader = None if group is None else self.cluster.leader(group)
        if group is None or leader is None:
            return
        terms = {
            node: copy.term for node in self.cluster.nodes if (copy := self._copy(node, group))
        }
        self.cluster.kill(leader, power_loss=True)

        def voted() -> bool:
            copies = [(node, self._copy(node, group)) for node in terms if node != leader]
            return any(copy is not None and copy.term > terms[node] for node, copy in copies)

        if await self._moment(voted):
            await self._wait(0.0, 0.01)
            victim = self.dice.choice(
                [node for node in self.cluster.nodes if node != leader] or [leader]
            )
            self.cluster.kill(victim, power_loss=True)
            await self._wait(0.0, 0.3)
            self.cluster.start(victim)
        await self._wait(0.0, 1.0)
        self.cluster.start(leader)

    async def _kill_while_syncing(self) -> None:
        """Between the write and the end of its fsync: the leader's appends are out, its own copy is
        not safe.
        """
        node = self._target()
        platter = self.cluster.machines[node].platter
        await self._moment(lambda: platter.syncing > 0)
        await self._kill(node, power_loss=self.dice.random() < 0.7)

    async def _lose_power_while_syncing(self) -> None:
        """All machines at once, while some of them sync: only what was confirmed must be there
        afterwards.
        """
        platters = [machine.platter for machine in self.cluster.machines.values()]
        wanted = self.dice.randint(1, len(platters))
        await self._moment(lambda: sum(platter.syncing > 0 for platter in platters) >= wanted)
        await self._power_loss_all()

    async def _pause_leader_through_an_election(self) -> None:
        """It wakes up with a term that is over and clients that still ask it."""
        group = self._group()
        leader = None if group is None else self.cluster.leader(group)
        if group is None or leader is None:
            return
        self.cluster.pause(leader)
        await self._moment(lambda: self.cluster.leader(group) is not None)
        await self._wait(0.0, 1.0)
        self.cluster.resume(leader)
