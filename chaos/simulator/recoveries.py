"""A majority of a run's disks is lost for good at some moment, and the others recover by force.

The disks are copied at that moment, so the run itself goes on undisturbed. When it is over, the
survivors' copies begin a cluster of their own: each is told the lost nodes, as `quorate node
recover` does it; all of them start; then the lost nodes come back with empty folders, one after the
other.

What docs/members.md promises is judged, and no more is excused: what any survivor's copy holds
stays. So a message that was confirmed before, that nobody had set out to settle, and that is in a
queue of the survivors' most up-to-date copy must come out; only what none of them has may be
missing. That may be a dead letter: in its first queue it is gone once the lost nodes had it in the
second. A group of which none of them has a copy is not served, and its queues are left alone. What
is published afterwards, also in transactions, is judged as in any run.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain, starmap

from chaos.checker.deliveries import published, settled_keys
from chaos.checker.verdict import Verdict, judge
from chaos.history import History, Op
from chaos.simulator import decay
from chaos.simulator.backups import RESTORED_S_MAX, SLICE_S, confirmed_to_stay, left
from chaos.simulator.clients import Scene, change
from chaos.simulator.clock import new_history
from chaos.simulator.consumers import Consumer
from chaos.simulator.decay import Directories
from chaos.simulator.disk import SimDisk
from chaos.simulator.disk_faults import DATA_DIR
from chaos.simulator.invariants import LogWatch
from chaos.simulator.ledger import Ledger
from chaos.simulator.loop import Process
from chaos.simulator.machine import Machine
from chaos.simulator.publishers import Publisher
from chaos.simulator.sim_cluster import SimCluster
from chaos.simulator.trace import Trace
from chaos.simulator.transaction_clients import TransactionClients
from cluster.codec.entries import body_count, decode_entry, messages_of
from cluster.history.event_rows import Event
from cluster.history.group_replay import GroupReplay, stamped
from cluster.log import Log, LogIdentity
from cluster.log.journal import Journal
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import AddNode, Transaction
from cluster.recovery.lost_majority import LostMajority, examine, give_up, has_copy
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.broker.bodies import head_of

#: Clients publish for so long once it serves again.
PUBLISH_S = 3.0
#: Some nodes may hold no copy of a group, or not all that they had: then others are drawn.
AGAIN_S = 0.1


#: Messages by the name of their queue; by None those of transactions.
Held = dict[str | None, set[str]]


@dataclass
class Disaster:
    """What was there at that moment."""

    begun: int  # ops of the history so far
    survivors: dict[NodeId, Directories]
    lost: Sequence[NodeId]
    incarnations: dict[NodeId, int]
    #: For each group: (term, index) of the last entry that a survivor has, and its messages.
    held: dict[GroupId, tuple[tuple[int, int], Held]] = field(
        default_factory=dict[GroupId, tuple[tuple[int, int], Held]]
    )
    catalogs: list[CatalogMachine] = field(default_factory=list[CatalogMachine])  # the survivors'
    copies: set[GroupId] = field(default_factory=set[GroupId])  # groups that some survivor has

    @property
    def messages(self) -> set[str]:
        """What the copies hold that go on, but for queues that only lost nodes had in the catalog:
        those are not there.
        """
        held = [(queue, names) for _, each in self.held.values() for queue, names in each.items()]
        return set[str]().union(*(names for queue, names in held if self.knows(queue)))

    def knows(self, queue: str | None) -> bool:
        """Whether a survivor has it in the catalog. None: no queue, but a transaction."""
        return queue is None or any(each.queue("/", queue) is not None for each in self.catalogs)

    @property
    def gone(self) -> set[GroupId]:
        """Groups that cannot go on."""
        return {info.id for each in self.catalogs for info in each.groups()} - self.copies

    def serves(self, queue: str) -> bool:
        """As far as the survivors know of it."""
        known = [info for each in self.catalogs if (info := each.queue("/", queue)) is not None]
        return not any(info.group in self.gone for info in known)


class Recoveries:
    """At most one of a run."""

    def __init__(
        self, cluster: SimCluster, history: History, calm: Callable[[], bool] = lambda: True
    ) -> None:
        """`calm`: no node is out, or on its way."""
        self.cluster = cluster
        self.disaster: Disaster | None = None
        self._history = history
        self._calm = calm
        self._dice = random.Random(f"recover/{cluster.plan.seed}")

    async def strike(self) -> None:
        """At some moment of the run, or the first one after it at which it can be done."""
        cluster, dice = self.cluster, self._dice
        await asyncio.sleep(dice.uniform(0.2, 0.8) * cluster.plan.faults_s)
        count = len(cluster.nodes)
        while self.disaster is None:
            sound = [m.name for m in cluster.machines.values() if self._sound(m)]
            some = min(len(sound), dice.randint(1, (count - 1) // 2))
            survivors = sorted(dice.sample(sound, some))
            if self._calm() and self._each_group_survives(survivors):
                self._copy(survivors)
            else:
                await asyncio.sleep(AGAIN_S)

    def _sound(self, machine: Machine) -> bool:
        """Its folder has all that it had: one that was emptied counts as lost."""
        return machine.trusted and not machine.damaged and not machine.disk_failed

    def _each_group_survives(self, survivors: Collection[NodeId]) -> bool:
        """Also those of which all nodes are down now: catalogs know them."""
        machines = [self.cluster.machines[name] for name in survivors]
        copies = {group for machine in machines for group in machine.groups()}
        known = {
            info.id
            for machine in machines
            if machine.cluster is not None
            for info in machine.cluster.catalog_machine.groups()
        }
        return bool(copies) and {*known, *self.cluster.group_ids()} <= copies

    def _copy(self, survivors: Sequence[NodeId]) -> None:
        cluster = self.cluster
        lost = [node for node in cluster.nodes if node not in survivors]
        cluster.trace.event("recovery", "!", f"{lost} are lost for good, copies of {survivors}")
        self.disaster = Disaster(
            len(self._history.ops),
            {node: deepcopy(cluster.machines[node].platter.directories) for node in survivors},
            lost,
            {machine.name: machine.incarnation for machine in cluster.machines.values()},
        )

    # --- afterwards, on the same world: the first cluster has ended

    def judge(
        self, queues: Collection[str], transfers: tuple[str, str] | tuple[()]
    ) -> list[Verdict]:
        disaster = self.disaster
        if disaster is None:
            return []
        history = new_history(self.cluster.world)
        old = self.cluster
        world, plan = old.world, replace(old.plan, mixed_releases=False)
        new = SimCluster(plan, world, Trace(world), LogWatch(), Ledger(history))
        for node, incarnation in disaster.incarnations.items():
            new.machines[node].incarnation = incarnation
        if not self._recovered(new, disaster):
            old.trace.count("recoveries refused: members were changing")
            return []
        new.gone = disaster.gone
        queues = [queue for queue in queues if disaster.serves(queue)]
        transfers = transfers if all(map(disaster.serves, transfers)) else ()
        problem = self._served(new, disaster, history, queues, transfers)
        old.trace.count("recoveries")
        old.trace.count("groups without a copy left", len(new.gone))
        return [recovered_verdict(self._history.ops, disaster, history.ops, problem, transfers)]

    def _recovered(self, new: SimCluster, disaster: Disaster) -> bool:
        """As `quorate node recover` on each survivor. False: their tables differ."""
        told: list[list[tuple[GroupId, tuple[NodeId, ...]]]] = []
        for node, directories in disaster.survivors.items():
            machine = new.machines[node]
            decay.restore(machine.platter, directories)
            if self._dice.random() < 0.5:
                machine.platter.lose_power()
            making = Process(new.world, "recover")
            work = making.spawn(_give_up(machine, making, disaster), "recover")
            new.world.run(new.world.now_s + RESTORED_S_MAX, work.done)
            found = work.result()
            making.kill()
            # A copy that was not told yet that it is one cannot tell who the others are.
            told.append([(each.group, each.survivors) for each in found if node in each.survivors])
        known: dict[GroupId, tuple[NodeId, ...]] = {}
        for group, survivors in chain.from_iterable(told):
            if known.setdefault(group, survivors) != survivors:
                return False
        return True

    def _served(
        self,
        new: SimCluster,
        disaster: Disaster,
        history: History,
        queues: Collection[str],
        transfers: tuple[str, str] | tuple[()],
    ) -> str | None:
        """What is wrong; None: all is served and drained."""
        scene = Scene(new, history)
        for node in disaster.survivors:
            new.start(node)
        consumers = [Consumer(scene, f"z-{queue}", queue) for queue in queues]
        publishers = [Publisher(scene, "again", queue, named=True) for queue in [*queues][:1]]
        for client in (*consumers, *publishers):
            client.process.spawn(client.run(), "run")
        tellers = TransactionClients(scene, transfers) if transfers else None
        if tellers is not None:
            new.on_serving.append(tellers.serve)

        def wrong() -> str | None:
            clients = [c for each in (*consumers, *publishers) for c in each.process.crashes]
            broken = [violation.describe() for violation in (*new.watch.violations, *new.broken)]
            found = [*broken, *new.crashes(), *clients]
            return f"the recovered cluster: {found[0]!r}" if found else None

        def until(seconds: float, done: bool) -> str | None:
            until_s = new.world.now_s + seconds
            problem: str | None = "nothing was looked at"
            while problem is not None and new.world.now_s < until_s:
                new.world.run(new.world.now_s + SLICE_S)
                if (found := wrong()) is not None:
                    return found
                problem = (new.converged() or left(new, lacking)) if done else new.unled()
            return problem

        machines, lacking = new.machines.values(), list[str]()
        problem = until(RESTORED_S_MAX, done=False)
        for node in disaster.lost:
            if problem is None:
                operator = Process(new.world, "operator")
                work = operator.spawn(self._let_in(new, node), "let in")
                new.world.run(new.world.now_s + RESTORED_S_MAX, work.done)
                operator.kill()
            new.start(node)
            until_s = new.world.now_s + RESTORED_S_MAX
            machine = new.machines[node]
            while problem is None and not machine.trusted_but(new.gone):
                if new.world.now_s >= until_s:
                    break
                new.world.run(new.world.now_s + SLICE_S)
                problem = wrong()
        if problem is None:
            new.world.run(new.world.now_s + PUBLISH_S)
            # Some queues may have been declared by the lost nodes alone.
            lacking = [queue for queue in queues if all(m.lacks(queue) for m in machines)]
            for consumer in consumers:
                if consumer.queue in lacking:
                    consumer.process.kill()
            scene.stopping = True
            problem = until(2 * RESTORED_S_MAX, done=True)
        if tellers is not None:
            tellers.give_up()
        for publisher in publishers:
            publisher.give_up()
        for node in new.nodes:
            new.kill(node)
        return problem

    async def _let_in(self, new: SimCluster, node: NodeId) -> None:
        """A node that was removed may have come back, which no survivor had heard of. Then a person
        lets it in once more.
        """
        while True:
            catalogs = [m.cluster.catalog_machine for m in new.machines.values() if m.cluster]
            infos = [info for each in catalogs if (info := each.node(node)) is not None]
            if all(info.state == "member" for info in infos):
                return
            if all(info.state == "removed" for info in infos):
                await change(new, self._dice, AddNode(node, {"peer": node}))
                return
            await asyncio.sleep(AGAIN_S)


async def _give_up(machine: Machine, process: Process, disaster: Disaster) -> list[LostMajority]:
    """As `node.operating.recovery` does it on real disks; notes which messages the copy has."""
    log = await Log.open(
        DATA_DIR,
        disk=SimDisk(machine.platter, process),
        clock=machine.clock,
        identity=LogIdentity(machine.name, "simulated"),
    )
    nodes = [*disaster.survivors, *disaster.lost]
    catalog, found = examine(log, sorted(nodes), disaster.lost)
    mine = [each for each in found if machine.name in each.survivors]
    others = {each.group for each in found if machine.name not in each.survivors}
    disaster.catalogs.append(catalog)
    disaster.copies |= {
        info.id
        for info in catalog.groups()
        if info.id in log.journals or machine.name in info.homes
        if info.id not in others and has_copy(log, info.id, info)
    }
    for group in {*map(GroupId, log.groups())} - others - {CATALOG_GROUP}:
        journal = log.journal(group)
        end = (journal.last_term, journal.last_index)
        if group not in disaster.held or disaster.held[group][0] < end:
            disaster.held[group] = (end, _messages(journal))
    give_up(log, mine, machine.name, disaster.lost)
    log.write()
    await log.sync()
    await log.close()
    return found


def _messages(journal: Journal) -> Held:
    """In the queues that this copy comes to, and in its transactions, of which other groups may
    still have to do their parts.
    """
    snapshot, group = journal.load_snapshot(), GroupId(journal.group)
    replay = GroupReplay(group) if snapshot is None else GroupReplay.after(group, snapshot)
    found: Held = defaultdict(set)
    bodies: dict[int, list[str]] = {}

    def names(index: int) -> list[str]:
        if index not in bodies:
            command = journal.read(index)
            assert command is not None, "a body that a copy needs is not in its log"
            heads = [head_of(body) for body, _ in messages_of(decode_entry(command[1:]))]
            bodies[index] = [head.partition(b"|")[0].decode(errors="replace") for head in heads]
        return bodies[index]

    for index in range(journal.base_index + 1, journal.last_index + 1):
        command, term = journal.read(index), journal.term_at(index)
        assert command is not None
        assert term is not None
        replay.apply(index, term, command)
        replay.take_rows()  # of what has left meanwhile, too
        for stamp, each in stamped(index, term, command):
            if isinstance(each, Transaction):
                start = stamp.body_offset
                found[None].update(names(index)[start : start + body_count(each)])
    for event in starmap(Event, replay.known()):
        if event.entry is not None and event.first is not None and event.last is not None:
            start = event.entry_offset or 0
            found[event.name].update(
                names(event.entry)[start : start + event.last - event.first + 1]
            )
    return found


def recovered_verdict(
    before: Sequence[Op],
    disaster: Disaster,
    after: Sequence[Op],
    problem: str | None,
    transfers: Sequence[str] = (),
) -> Verdict:
    confirmed = confirmed_to_stay(before[: disaster.begun])
    settled = {key[1] for op in before[: disaster.begun] for key in settled_keys(op)}
    came = {m for op in after if op.f == "deliver" for m in op.value["messages"]}
    held = disaster.messages
    owed = (confirmed & held) - settled
    moved = {
        m
        for op in after
        if _publishes(op) and op.value["queue"] in transfers
        for m in published(op)
    }
    places = {m: set[str]() for m in moved}
    for op in after:
        for m in op.value["messages"] if op.f == "deliver" else ():
            if m in places:
                places[m].add(op.value["queue"])
    return judge(
        "recovery",
        {
            "lost": sorted(owed - came),
            "lost afterwards": sorted(confirmed_to_stay(after) - came),
            "half done afterwards": sorted(m for m, queues in places.items() if len(queues) == 1),
            "not served": [problem] if problem else [],
        },
        reported={
            "held by survivors": len(owed),
            "held by lost nodes only": len(confirmed - held - settled),
            "came out": len(came),
        },
    )


def _publishes(op: Op) -> bool:
    return op.f == "publish" and op.type == "invoke"
