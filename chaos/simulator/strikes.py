"""How faults befall simulated nodes, and those that only they can have: that wait for a fragile
moment inside of a node and strike then.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from chaos.faults import Damage, halves, isolate
from chaos.nemesis import strikes
from chaos.nemesis.strikes import Strike, damage, partition, power_loss, take_down, wrong_clock
from chaos.simulator.backups import Backups
from chaos.simulator.plan import DISK_KINDS
from chaos.simulator.sim_cluster import SimCluster
from cluster.groups.group import Group, Role
from cluster.types import GroupId, NodeId

#: How often it is looked whether a moment has come, and for how long: nodes with slow disks take
#: theirs until they refuse to start.
WAIT_S = (0.001, 3.0)
DISKS_WAIT_S = (0.01, 20.0)
#: A node whose disk is full must end itself within this.
END_S_MAX = 3.0
BATCHES_IN_FLIGHT = 3
RESET_SHARE = 0.4
#: Members of a group, however many nodes there are.
REPLICATION = 3
#: `log_end` is not drawn: a log whose newest end is gone cannot be told from one that was never
#: written further, so such a node may have forgotten and not know it.
DAMAGES: tuple[Damage, ...] = ("log_bit", "snapshot_bit")
#: How long nodes are down, cut off or slow.
LASTS_S: Mapping[str, tuple[float, float]] = {
    "partition": (0.05, 6.0),
    "one_way": (0.2, 6.0),
    "reject": (1.0, 4.0),
    "power_loss_all": (0.1, 1.0),
    "slow_disk": (1.0, 5.0),
    "wipe": (0.0, 2.0),
    "old_copy": (0.5, 5.0),
    "damage": (0.0, 1.0),
    "disk_full": (0.2, 4.0),
    "terminate": (0.0, 1.0),
}
DOWN_S = (0.01, 4.0)


class SimStrike(Strike[SimCluster]):
    """A fault of this kind. A disk that forgot is as good as new once its node is trusted again;
    until then no other may forget when that would make a majority of some group: what most of its
    disks forgot nobody can know, so it would stand still.
    """

    def __init__(
        self, cluster: SimCluster, dice: random.Random, kind: str, backups: Backups
    ) -> None:
        super().__init__(cluster, dice)
        self.kind = kind
        self.backups = backups

    # --- whom

    def targets(self) -> list[NodeId]:
        """A leader more often than chance would have it."""
        if self.kind == "power_loss_all":
            return self.dice.sample(self.cluster.nodes, len(self.cluster.nodes))
        led = None if self.kind in DISK_KINDS else self.led()
        return [led[1] if led is not None and self.dice.random() < 0.5 else self.node()]

    def node(self) -> NodeId:
        return self.dice.choice(self.cluster.nodes)

    def led(self) -> tuple[GroupId, NodeId] | None:
        """A group and its leader; None: that has none."""
        groups = self.cluster.group_ids()
        group = self.dice.choice(groups) if groups else None
        leader = None if group is None else self.cluster.leader(group)
        return None if group is None or leader is None else (group, leader)

    # --- when

    async def wait(self, seconds: float | None = None) -> None:
        if seconds is None:
            longest_s = 3.0 * self.cluster.plan.election_max_ms / 1e3
            lasts_s = (0.1, longest_s) if self.kind == "pause" else LASTS_S.get(self.kind, DOWN_S)
            seconds = self.dice.uniform(*lasts_s)
        await asyncio.sleep(seconds)

    async def between(self, shortest_s: float, longest_s: float) -> None:
        await self.wait(self.dice.uniform(shortest_s, longest_s))

    async def until(self, come: Callable[[], bool]) -> bool:
        look_s, patience_s = DISKS_WAIT_S if self.kind in DISK_KINDS else WAIT_S
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        while loop.time() < until:
            if come():
                return True
            await asyncio.sleep(look_s)
        return False

    async def moment(self, come: Callable[[], bool]) -> bool:
        come_in_time = await self.until(come)
        if come_in_time:
            self.cluster.trace.count("directed strikes")
        return come_in_time

    # --- how

    def finding(self, text: str) -> None:
        self.cluster.broke(self.kind, text)

    async def start(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            if self.kind == "power_loss_all":
                await self.between(0.0, 0.8)
            self.cluster.start(node)

    async def until_ended(self, node: NodeId, why: str) -> None:
        machine = self.cluster.machines[node]
        process = machine.process
        await self.until(lambda: not machine.alive or machine.process is not process)

    async def off(self, node: NodeId) -> None:
        self.cluster.kill(node, power_loss=self.dice.random() < 0.5)

    # --- disks that forget

    async def may_forget(self, node: NodeId, *, its_start: bool = False) -> bool:
        if its_start:
            await self.until(lambda: self._known_to_all(node))
        most = (min(REPLICATION, len(self.cluster.nodes)) - 1) // 2
        while most > 0 and (len(self._forgetful() | {node}) > most or self._members_differ()):
            await asyncio.sleep(DISKS_WAIT_S[0])
        return most > 0 and (not its_start or self._known_to_all(node))

    def forgets(self, node: NodeId) -> None:
        self.cluster.machines[node].forgot = True

    def _forgetful(self) -> set[NodeId]:
        machines = self.cluster.machines
        for machine in machines.values():
            machine.forgot = machine.forgot and not machine.trusted
        return {node for node, machine in machines.items() if machine.forgot}

    def _members_differ(self) -> bool:
        """Some copy may know of other voters than the rest. If the disk of a leader is lost then,
        one that has an entry about members which that leader did not have may need its vote.
        """
        if not self.cluster.plan.members:
            return False
        serving = self.cluster.serving()
        voters = defaultdict[GroupId, set[frozenset[NodeId]]](set)
        for group in chain.from_iterable(each.groups.values() for each in serving):
            voters[group.id].add(frozenset(group.configuration.voters))
        some_are_down = len(serving) < len(self.cluster.nodes)
        return some_are_down or any(len(each) > 1 for each in voters.values())

    def _known_to_all(self, node: NodeId) -> bool:
        start, serving = self.cluster.machines[node].incarnation, self.cluster.serving()
        infos = [each.catalog_machine.node(node) for each in serving]
        know = sum(info is not None and info.incarnation == start for info in infos)
        return know == len(self.cluster.nodes)

    async def refused(self, node: NodeId, place: str, kind: Damage) -> bool:
        machine = self.cluster.machines[node]
        await self.until(lambda: machine.refused_to_start or machine.serves)
        if machine.refused_to_start:
            self.cluster.trace.count("damage refused")
        elif machine.serves and kind == "log_bit":
            self.finding(f"{node} serves although {place} was damaged")
        return machine.refused_to_start


# --- network


async def _partition(strike: SimStrike) -> None:
    shape = strike.dice.choice(("isolate", "halves", "bridge"))
    await partition(strike, shape, reset_share=RESET_SHARE)


async def _one_way(strike: SimStrike) -> None:
    if len(strike.cluster.nodes) > 1:
        await partition(strike, strike.dice.choice(("deafen", "silence")), reset_share=0.0)


async def _reset(strike: SimStrike) -> None:
    if len(strike.cluster.nodes) > 1:
        for _ in range(strike.dice.randint(1, 4)):
            a, b = strike.dice.sample(strike.cluster.nodes, 2)
            strike.cluster.reset_links(a, b)
            await strike.between(0.0, 0.3)


async def _reject(strike: SimStrike) -> None:
    """For seconds a firewall resets what a living node sends and is sent."""
    node = strike.one()
    if len(strike.cluster.nodes) > 1:
        strike.cluster.reject(node)
        await strike.wait()
        strike.cluster.reject(None)


async def _cut_clients(strike: SimStrike) -> None:
    strike.cluster.cut_clients(strike.one())


# --- disks


async def _failing_fsync(strike: SimStrike) -> None:
    """The next fsync fails; the node must end itself, and comes back as after a crash."""
    node = strike.one()
    machine = strike.cluster.machines[node]
    process = machine.process
    strike.cluster.fail_fsync(node)
    await strike.until(lambda: machine.disk_failed or machine.process is not process)
    # What has to happen happens at once; a process manager looks once a second.
    await strike.between(0.1, 1.0)
    if machine.process is process and machine.disk_failed:
        strike.cluster.check_failed(node)
        await take_down(strike, [node], power_loss=strike.dice.random() < 0.5)


async def _disk_full(strike: SimStrike) -> None:
    """It ends itself when it can write no more, and comes back when there is room."""
    node = strike.one()
    machine = strike.cluster.machines[node]
    process = machine.process
    strike.cluster.fill_disk(node)
    await strike.wait()
    if machine.process is process and machine.disk_failed:
        # A round that is syncing meanwhile hears of it when that is done, on a slow disk late.
        await strike.between(END_S_MAX, END_S_MAX)
    if machine.process is process and machine.disk_failed:
        strike.cluster.check_failed(node)
    strike.cluster.make_room(node)
    if machine.disk_failed:
        await strike.off(node)
        strike.cluster.start(node)


async def _backup(strike: SimStrike) -> None:
    """Not a fault, but it holds all groups for a moment, while others strike."""
    serving = [machine for machine in strike.cluster.machines.values() if machine.serves]
    if serving:
        await strike.backups.take(strike.dice.choice(serving))


# --- clocks


async def _skew_clock(strike: SimStrike) -> None:
    jump = strike.dice.choice((200, 5_000, 300_000)) * strike.dice.choice((-1, 1))
    strike.cluster.skew_clock(strike.node(), jump)


async def _wrong_clock(strike: SimStrike) -> None:
    cluster = strike.cluster
    if len(cluster.nodes) == 1:
        return  # it believes the only clock there is when it starts, and may expire all by that
    everywhere = strike.dice.random() < 0.1 and _nobody_starts(cluster)
    struck = cluster.nodes if everywhere else strike.targets()
    for node in cluster.nodes:
        if cluster.clock_is_wrong(node):
            cluster.skew_clock(node, 0)
    await wrong_clock(strike, struck)


def _nobody_starts(cluster: SimCluster) -> bool:
    """While the faults go on: a node that starts believes a majority of clocks at once."""
    plan = cluster.plan
    ends = {"kill", "power_loss", "power_loss_all", "failing_fsync", "directed"}
    kinds = {kind for kind, _ in plan.nemesis_weights}
    return not (plan.disk_weights or plan.members or kinds & ends)


# --- directed: wait for a fragile moment


async def _directed(strike: SimStrike) -> None:
    directed = strike.dice.choice(
        (
            _kill_leader_with_batches_in_flight,
            _kill_during_install,
            _kill_after_vote,
            _kill_while_syncing,
            _lose_power_while_syncing,
            _pause_leader_through_an_election,
            _isolate_leader_with_batches_in_flight,
        )
    )
    await directed(strike)


def _in_flight(cluster: SimCluster, leader: NodeId) -> bool:
    """Several batches are under way to some follower."""
    found = [cluster.network.connection(leader, node) for node in cluster.nodes if node != leader]
    queued = max((len(c.ways[leader].queue) for c in found if c is not None), default=0)
    return queued >= BATCHES_IN_FLIGHT


def _copy(cluster: SimCluster, node: NodeId, group: GroupId) -> Group | None:
    machine = cluster.machines[node]
    return machine.groups().get(group) if machine.running else None


async def _kill_leader_with_batches_in_flight(strike: SimStrike) -> None:
    """One follower is cut off, and the leader dies while the other has several batches under way
    to it.
    """
    cluster, dice, led = strike.cluster, strike.dice, strike.led()
    if led is None or len(cluster.nodes) == 1:
        return
    _, leader = led
    cut = dice.choice([node for node in cluster.nodes if node != leader])
    cluster.partition(isolate(cut, cluster.nodes), reset=True)
    await strike.moment(lambda: _in_flight(cluster, leader))
    cluster.kill(leader, power_loss=dice.random() < 0.3)
    await strike.between(0.0, 0.2)
    cluster.partition({})
    await strike.between(1.0, 5.0)
    cluster.start(leader)


async def _isolate_leader_with_batches_in_flight(strike: SimStrike) -> None:
    cluster, led = strike.cluster, strike.led()
    if led is None or len(cluster.nodes) == 1:
        return
    _, leader = led
    await strike.moment(lambda: _in_flight(cluster, leader))
    cluster.partition(isolate(leader, cluster.nodes), reset=strike.dice.random() < 0.5)
    await strike.between(0.5, 6.0)
    cluster.partition({})


async def _kill_during_install(strike: SimStrike) -> None:
    """Keep a follower away until the log has moved past it, and kill an end of the snapshot's
    way.
    """
    cluster, dice, led = strike.cluster, strike.dice, strike.led()
    if led is None or len(cluster.nodes) == 1:
        return
    _, leader = led
    away = dice.choice([node for node in cluster.nodes if node != leader])
    cluster.kill(away)
    await strike.between(1.0, 4.0)
    installs = cluster.trace.counts["snapshot installs"]
    cluster.start(away)
    if await strike.moment(lambda: cluster.trace.counts["snapshot installs"] > installs):
        await strike.between(0.0, 0.02)
        await take_down(strike, [dice.choice((away, leader))], power_loss=dice.random() < 0.5)


async def _kill_after_vote(strike: SimStrike) -> None:
    """A vote that is not on the disk is cast twice: kill voters in an election."""
    cluster, led = strike.cluster, strike.led()
    if led is None:
        return
    group, leader = led
    terms = {node: copy.term for node in cluster.nodes if (copy := _copy(cluster, node, group))}
    cluster.kill(leader, power_loss=True)

    def voted() -> bool:
        copies = [(node, _copy(cluster, node, group)) for node in terms if node != leader]
        return any(copy is not None and copy.term > terms[node] for node, copy in copies)

    if await strike.moment(voted):
        await strike.between(0.0, 0.01)
        others = [node for node in cluster.nodes if node != leader]
        victim = strike.dice.choice(others or [leader])
        cluster.kill(victim, power_loss=True)
        await strike.between(0.0, 0.3)
        cluster.start(victim)
    await strike.between(0.0, 1.0)
    cluster.start(leader)


async def _kill_while_syncing(strike: SimStrike) -> None:
    """Between the write and the end of its fsync: the leader's appends are out, its own copy is
    not safe.
    """
    node = strike.one()
    platter = strike.cluster.machines[node].platter
    await strike.moment(lambda: platter.syncing > 0)
    await take_down(strike, [node], power_loss=strike.dice.random() < 0.7)


async def _lose_power_while_syncing(strike: SimStrike) -> None:
    """All machines at once, while some of them sync: only what was confirmed must be there
    afterwards.
    """
    platters = [machine.platter for machine in strike.cluster.machines.values()]
    wanted = strike.dice.randint(1, len(platters))
    await strike.moment(lambda: sum(platter.syncing > 0 for platter in platters) >= wanted)
    strike.kind = "power_loss_all"
    await power_loss(strike)


async def _pause_leader_through_an_election(strike: SimStrike) -> None:
    """It wakes up with a term that is over and clients that still ask it."""
    cluster, led = strike.cluster, strike.led()
    if led is None:
        return
    group, leader = led
    cluster.pause(leader)
    await strike.moment(lambda: cluster.leader(group) is not None)
    await strike.between(0.0, 1.0)
    cluster.resume(leader)


async def _conflict(strike: SimStrike) -> None:
    """A leader with a minority goes on taking what the others will not have, until it steps down;
    they elect another, whose log goes on from the same place. So theirs must be cut.
    """
    cluster, dice = strike.cluster, strike.dice
    nodes = cluster.nodes
    for _ in range(dice.randint(1, 3)):
        leaders = [(group, cluster.leader(group)) for group in cluster.group_ids()]
        led = [(group, leader) for group, leader in leaders if leader is not None]
        if not led or len(nodes) < 3:
            return
        group, leader = dice.choice(led)
        others = [node for node in nodes if node != leader]
        few = dice.sample(others, dice.randint(0, (len(nodes) - 1) // 2 - 1))
        minority = [leader, *few]
        majority = [node for node in nodes if node not in minority]
        cluster.partition(halves(minority, majority))
        cluster.trace.count("conflicts provoked")
        await strike.moment(partial(_pending, cluster, leader, group))
        await strike.moment(partial(_led_among, cluster, majority, group))
        await strike.between(0.0, 0.5)
        cluster.partition({})
        await strike.between(0.5, 2.0)


def _pending(cluster: SimCluster, node: NodeId, group: GroupId) -> bool:
    copy = _copy(cluster, node, group)
    return copy is not None and copy.last_index > copy.commit_index


def _led_among(cluster: SimCluster, nodes: list[NodeId], group: GroupId) -> bool:
    copies = [_copy(cluster, node, group) for node in nodes]
    return any(copy is not None and copy.role is Role.LEADER for copy in copies)


STRIKES: Mapping[str, Callable[[SimStrike], Awaitable[None]]] = {
    **strikes.STRIKES,
    "partition": _partition,
    "one_way": _one_way,
    "reset": _reset,
    "reject": _reject,
    "cut_clients": _cut_clients,
    "failing_fsync": _failing_fsync,
    "disk_full": _disk_full,
    "damage": partial(damage, kinds=DAMAGES),
    "backup": _backup,
    "skew_clock": _skew_clock,
    "wrong_clock": _wrong_clock,
    "directed": _directed,
    "conflict": _conflict,
}
