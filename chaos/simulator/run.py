"""One run of one seed: load under faults, then heal, drain, converge, and judge."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, cast

from chaos.checker import (
    Verdict,
    ack_finality,
    check_all,
    delivery_count,
    publisher_order,
    sac_exclusion,
    total_queue,
)
from chaos.history import Op
from chaos.load.transactions import Transactions
from chaos.report.series import workload_of
from chaos.simulator.all_features import features
from chaos.simulator.amqp_clients import AmqpClient
from chaos.simulator.amqp_consumers import AmqpConsumer
from chaos.simulator.amqp_publishers import AmqpPublisher
from chaos.simulator.amqp_queues import (
    FRESH_QUEUES,
    OWNED_PREFIX,
    AmqpQueues,
    FreshConsumer,
    Owner,
)
from chaos.simulator.backups import Backups
from chaos.simulator.clients import Scene, declare
from chaos.simulator.clock import new_history
from chaos.simulator.consumers import Consumer
from chaos.simulator.driven import Driven
from chaos.simulator.features import Occasional
from chaos.simulator.invariants import LogWatch, Violation
from chaos.simulator.ledger import Ledger
from chaos.simulator.loop import Process, Stuck, World
from chaos.simulator.members_nemesis import MembersNemesis
from chaos.simulator.nemesis import Nemesis
from chaos.simulator.plan import Plan, draw_plan
from chaos.simulator.publishers import Publisher
from chaos.simulator.recoveries import Recoveries
from chaos.simulator.sim_cluster import SimCluster
from chaos.simulator.trace import Trace
from cluster.machine import QueueMachine

SHARED_QUEUE = "orders"
SAC_QUEUE = "ledger"
DELIVERY_LIMIT = 1_000_000
SETUP_S_MAX = 30.0
#: After everything is healed, all must be confirmed, consumed and equal on every node within this.
CONVERGE_S_MAX = 150.0


class Status(IntEnum):
    """How a run ended; also the exit status of the command."""

    OK = 0
    UNSAFE = 1
    STUCK = 2
    CRASHED = 3


@dataclass(eq=False)
class Result:
    """What one seed showed."""

    seed: int
    status: Status
    plan: str
    trace: str
    counts: Counter[str]
    simulated_s: float
    violations: list[str] = field(default_factory=list[str])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])


class Run:
    """Puts a run together from its plan."""

    def __init__(self, plan: Plan, show: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.world = World()
        self.trace = Trace(self.world, show)
        self.watch = LogWatch()
        self.history = new_history(self.world)
        ledger = Ledger(self.history)
        self.cluster = SimCluster(plan, self.world, self.trace, self.watch, ledger)
        self.scene = Scene(self.cluster, self.history)
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.amqp_clients: list[AmqpClient] = []
        self.features = features(self.scene)
        self.backups = Backups(self.cluster, self.history)
        self._others: list[Occasional] = []
        self._amqp_queues = AmqpQueues(self.scene, {"x-delivery-limit": DELIVERY_LIMIT})
        self._admin = Process(self.world, "admin")
        self._nemesis = Process(self.world, "nemesis")
        self._members = MembersNemesis(self.cluster)
        self.recoveries = Recoveries(
            self.cluster, self.history, lambda: self._members.doing is None
        )

    def go(self) -> Result:
        violations: list[str] = []
        try:
            status, violations = self._phases()
        except Stuck as stuck:
            status, violations = Status.STUCK, [f"stuck: {stuck}"]
        except Exception:  # noqa: BLE001 -- the harness's own bug is a status, not the end of a swarm
            status, violations = Status.CRASHED, [traceback.format_exc()]
        verdicts = self._judge()
        if status is Status.OK:
            try:
                verdicts += self._afterwards()
            except Exception:  # noqa: BLE001 -- as above
                status, violations = Status.CRASHED, [traceback.format_exc()]
        if status in (Status.OK, Status.STUCK) and any(v.valid is False for v in verdicts):
            status = Status.UNSAFE
        elif status is Status.OK and any(v.valid == "unknown" for v in verdicts):
            status = Status.CRASHED
        counts = self.trace.counts
        for group in self.cluster.group_ids():
            counts["entries committed"] += self.watch.committed_last(group)
        counts["messages on links"] += self.cluster.network.delivered
        counts["dead letters"] += sum(v.counts.get("dead", 0) for v in verdicts)
        simulated_s = self.world.now_s
        self.world.close()
        counts["fsyncs"] += sum(machine.platter.syncs for machine in self.cluster.machines.values())
        return Result(
            self.plan.seed,
            status,
            self.plan.describe(),
            self.trace.digest(),
            counts,
            simulated_s,
            violations,
            verdicts,
        )

    # --- phases

    def _phases(self) -> tuple[Status, list[str]]:
        for node in self.plan.nodes:
            self.cluster.start(node)
        declared = self._admin.spawn(self._declare(), "declare")
        self._until(SETUP_S_MAX, declared.done)
        if (found := self._wrong()) is not None:
            return found
        if not declared.done():
            return Status.STUCK, [f"no queue could be declared within {SETUP_S_MAX} s"]
        self._start_clients()
        nemesis = Nemesis(self.cluster, self.backups)
        nemeses = [self._nemesis.spawn(nemesis.run(), "nemesis")]
        if self.plan.disk_weights:
            nemeses.append(self._nemesis.spawn(nemesis.run_on_disks(), "disks"))
        if self.plan.recovers:
            nemeses.append(self._nemesis.spawn(self.recoveries.strike(), "recovery"))
        if self.plan.members:
            nemeses.append(self._nemesis.spawn(self._members.run(), "members"))
        self._until(self.world.now_s + self.plan.faults_s, lambda: False)
        if (found := self._wrong()) is not None:
            return found
        for task in nemeses:
            task.cancel()
        return self._converge()

    def _afterwards(self) -> list[Verdict]:
        """Clusters that begin with what was kept of this one, which has ended."""
        for machine in self.cluster.machines.values():
            if machine.process is not None:
                machine.process.kill()
        for client in [*self.publishers, *self.consumers, *self.amqp_clients, *self._others]:
            client.process.kill()
        declared = [sorted(feature.declared) for feature in self._driven]
        queues = (*self.queues, *FRESH_QUEUES, *chain.from_iterable(declared))
        workloads = [feature.workload for feature in self._driven]
        moving = [each for each in workloads if isinstance(each, Transactions)]
        transfers = (moving[0].one, moving[0].other) if moving else ()
        return [*self.backups.restore(queues), *self.recoveries.judge(queues, transfers)]

    def _converge(self) -> tuple[Status, list[str]]:
        self.trace.event("nemesis", "+", "all faults end")
        healed_s = self.world.now_s
        self.scene.stopping = True
        for consumer in self.consumers:
            consumer.hurry()
        for client in self.amqp_clients:
            client.hurry()
        heal_until = (
            healed_s + 15.0
        )  # faults under way mend themselves until then, at the latest we do
        self._until(heal_until, self._all_up)
        self.cluster.heal()
        for node in self.plan.nodes:
            self.cluster.start(node)
        for feature in self.features:
            feature.healed()
        self._until(healed_s + CONVERGE_S_MAX, lambda: self._unfinished() is None)
        if (found := self._wrong()) is not None:
            return found
        for publisher in self.publishers:
            publisher.give_up()
        alive = dict(self._amqp_queues.owned)
        for client in self.amqp_clients:
            client.give_up()
        for feature in self.features:
            feature.give_up()
        self._amqp_queues.owned = alive
        unfinished = self._unfinished()
        if unfinished is not None:
            return Status.STUCK, [f"{CONVERGE_S_MAX:.0f} s after the faults ended: {unfinished}"]
        for machine in self.cluster.machines.values():
            for group in machine.groups().values():
                self.cluster.check_state(machine.name, group)
        for queue in (*self.queues, *FRESH_QUEUES, *self._amqp_queues.owned):
            self.history.saw("harness", "drain", {"queue": queue})
        self.trace.event("harness", "+", "drained and converged")
        return self._wrong() or (Status.OK, [])

    def _all_up(self) -> bool:
        up = all(machine.running for machine in self.cluster.machines.values())
        return up and not self.cluster.network.cut

    def _until(self, until_s: float, done: Callable[[], bool]) -> None:
        """In slices, so that the run ends soon after the first violation."""
        while self.world.now_s < until_s and not done() and self._wrong() is None:
            self.world.run(min(until_s, self.world.now_s + 0.25))

    def _wrong(self) -> tuple[Status, list[str]] | None:
        crashes = self.cluster.crashes()
        for process in (self.world.kernel, self._admin, self._nemesis):
            crashes += process.crashes
        for client in [*self.publishers, *self.consumers, *self.amqp_clients, *self._others]:
            crashes += client.process.crashes
        broken = [*self.watch.violations, *self.cluster.broken]
        if broken:
            return Status.UNSAFE, [violation.describe() for violation in broken[:20]]
        if crashes:
            return Status.CRASHED, [_describe(crash) for crash in crashes[:5]]
        return None

    def _unfinished(self) -> str | None:
        """What is still to be done before the run may end; None: nothing."""
        for publisher in self.publishers:
            if not publisher.idle:
                return f"{publisher.name} waits for {len(publisher.unconfirmed)} confirms"
        for client in self.amqp_clients:
            if (wait := client.waits) is not None:
                return wait
        if self._members.doing is not None:
            return self._members.doing
        machines = list(self.cluster.machines.values())
        for feature in self.features:
            if (wait := feature.waits) is not None:
                return wait
        for node in self.plan.nodes:
            # One that was told that it is removed ends by itself, even if it was let in since.
            self.cluster.start(node)
        apart = self.cluster.converged()
        if apart is not None:
            return apart
        for machine in machines:
            own = None if machine.cluster is None else machine.cluster.transient.own
            views = [] if own is None else [own.machine.queue(q) for q in own.machine.queues()]
            for view in views:
                if view is not None and view.messages:
                    return f"queue {view.name} of {machine.name} holds {view.messages} messages"
        for group_id in self.cluster.group_ids():
            leader = self.cluster.leader(group_id)
            group = None if leader is None else self.cluster.machines[leader].groups()[group_id]
            if group is None or not isinstance(group.machine, QueueMachine):
                continue
            if opened := group.machine.transactions():
                return f"group {group_id}: {len(opened)} transactions wait for other groups"
            for queue in group.machine.queues():
                if group.machine.stream(queue) is not None:
                    continue  # what it holds stays
                view = group.machine.queue(queue)
                if view is not None and view.dead_letter_count:
                    return f"queue {view.name}: {view.dead_letter_count} dead letters wait"
                if view is not None and view.messages:
                    return (
                        f"queue {view.name} of group {group_id} holds {view.messages} messages"
                        f" ({view.ready_count} ready, {view.unsettled_count} unsettled),"
                        f" consumers {view.consumers}"
                    )
        return None

    # --- clients

    @property
    def _driven(self) -> list[Driven]:
        return [feature for feature in self.features if isinstance(feature, Driven)]

    @property
    def queues(self) -> list[str]:
        return [
            SHARED_QUEUE,
            SAC_QUEUE,
            *(queue for feature in self.features for queue in feature.queues),
        ]

    async def _declare(self) -> None:
        limits: dict[str, Any] = {"x-delivery-limit": DELIVERY_LIMIT}
        arguments: dict[str, dict[str, Any]] = {
            SHARED_QUEUE: limits,
            SAC_QUEUE: {**limits, "x-single-active-consumer": True},
        }
        for feature in self.features:
            arguments.update(feature.queues)
        # One after the other: each goes to the default group with the fewest queues.
        for queue in self.queues:
            await declare(self.scene, self._admin, queue, arguments[queue])
        for feature in self.features:
            await feature.prepare()

    def _start_clients(self) -> None:
        plan, scene = self.plan, self.scene
        scene.began_s = self.world.now_s
        dice = random.Random(f"clients/{plan.seed}")
        for number in range(plan.publishers + plan.anonymous):
            named = number < plan.publishers
            queue = dice.choice((SHARED_QUEUE, SAC_QUEUE))
            publisher = Publisher(
                scene, f"p{number}" if named else f"a{number}", queue, named=named
            )
            self.publishers.append(publisher)
            publisher.process.spawn(publisher.run(), "run")
        self._start_amqp()
        for number in range(plan.consumers):
            self.consumers.append(Consumer(scene, f"c{number}", SHARED_QUEUE))
        for number in range(plan.sac_consumers):
            self.consumers.append(Consumer(scene, f"s{number}", SAC_QUEUE, guarded=True))
        for name, feature in zip(plan.features, self.features, strict=True):
            self.trace.count(f"feature: {name}")
            feature.begin()
            for publisher in feature.publishers:
                self.publishers.append(publisher)
                publisher.process.spawn(publisher.run(), "run")
            for client in feature.others:
                self._others.append(client)
                client.process.spawn(client.run(), "run")
            for publisher in feature.amqp:
                self.amqp_clients.append(publisher)
                publisher.process.spawn(publisher.run(), "run")
            self.consumers += feature.consumers
        for consumer in self.consumers:
            consumer.process.spawn(consumer.run(), "run")

    def _start_amqp(self) -> None:
        plan, scene, clients = self.plan, self.scene, self.amqp_clients
        for number in range(plan.amqp_publishers):
            clients.append(
                AmqpPublisher(scene, f"w{number}", (SHARED_QUEUE, SAC_QUEUE), self._amqp_queues)
            )
        for number in range(plan.amqp_consumers):
            clients.append(AmqpConsumer(scene, f"r{number}", SHARED_QUEUE))
        if clients:
            for number, queue in enumerate(FRESH_QUEUES):
                clients.append(FreshConsumer(scene, f"f{number}", queue, self._amqp_queues))
            clients.append(Owner(scene, "o0", self._amqp_queues))
        for client in clients:
            client.process.spawn(client.run(), "run")

    def _ended(self, op: Op) -> bool:
        """Confirmed into a queue that ended with its client: it need not come out."""
        queue = op.value.get("queue", "")
        owned = queue.startswith(OWNED_PREFIX) and queue not in self._amqp_queues.owned
        return owned and op.f == "publish" and op.type == "ok"

    def _judge(self) -> list[Verdict]:
        driven = {feature.name for feature in self._driven}
        ops = [op for op in self.history if workload_of(op) not in driven]
        judged = {queue for feature in self.features for queue in feature.queues}
        kept = [op for op in ops if op.value.get("queue") not in judged and not self._ended(op)]
        jumped = self.trace.counts["clock jumps"] > 0
        return [
            *(
                verdict
                for feature in self.features
                for verdict in feature.judge(self.history.ops, clocks_jumped=jumped)
            ),
            *check_all(kept, {"total-queue": total_queue, "publisher-order": publisher_order}),
            *check_all(
                ops,
                {
                    "delivery-count": delivery_count(DELIVERY_LIMIT),
                    "ack-finality": ack_finality,
                    "sac-exclusion": sac_exclusion(lambda queue: queue == SAC_QUEUE),
                },
            ),
        ]


def _describe(crash: BaseException | str) -> str:
    if isinstance(crash, str):
        return crash
    return "".join(traceback.format_exception(crash))


def run_seed(seed: int, *, show: Callable[[str], None] | None = None, **plan: Any) -> Result:
    return Run(draw_plan(seed, **cast(Any, plan)), show).go()


__all__ = ["Result", "Run", "Status", "Violation", "run_seed"]
