"""What queues can do beyond taking and giving: each feature brings queues, clients that use it, and
a judge that knows what it promises.

A run draws a few of them (`Plan.features`); their queues are drained and compared with all others.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pamqp import commands

from chaos.checker import (
    Verdict,
    check_all,
    dead_letters,
    message_groups,
    publisher_order,
    total_queue,
)
from chaos.checker.deliveries import deliveries_by_message, published_keys
from chaos.checker.verdict import Checker, judge
from chaos.history import Op
from chaos.simulator.amqp_clients import AmqpChannel, AmqpClient
from chaos.simulator.amqp_consumers import AmqpConsumer
from chaos.simulator.amqp_publishers import PLAIN, AmqpPublisher
from chaos.simulator.amqp_queues import AmqpQueues
from chaos.simulator.amqp_wire import Delivered
from chaos.simulator.clients import (
    RETRY_S,
    Client,
    Connection,
    Scene,
    asked,
    change,
    outcome_at,
)
from chaos.simulator.consumers import Consumer
from chaos.simulator.publishers import Attributes, Batch, Publisher
from chaos.simulator.transaction_clients import TransactionClients
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.commands import (
    ATTR_DEDUP_ID,
    ATTR_PRIORITY,
    ROUTING_KEY,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DropEntry,
    PutEntry,
)
from node.broker.bodies import NewBody, PartedBody
from node.dispatch.outgoing import Failure, RequestAnswer
from node.messages.message import where_of
from node.protocols.amqp.events import Publish, publish_of
from node.protocols.native.requests import Declare, Info, Purge
from node.protocols.native.requests import Publish as NativePublish

LIMITS: dict[str, Any] = {"x-delivery-limit": 1_000_000}
#: How far the clocks of nodes are apart when nobody makes them jump, both ways, and a little.
TOLERANCE_MS = 700


class Occasional(Client, ABC):
    """Does something now and then, until the load ends."""

    @abstractmethod
    async def run(self) -> None: ...


class Feature:
    """Of one run."""

    #: Name and arguments.
    queues: ClassVar[Mapping[str, dict[str, Any]]] = {}
    #: A queue with a publisher that has a name, and those with consumers that settle whatever they
    #: get: what else leaves, leaves by the feature.
    published: ClassVar[str | None] = None
    consumed: ClassVar[Sequence[str]] = ()
    #: Of all that happened to its queues.
    checkers: ClassVar[Mapping[str, Checker]] = {"total-queue": total_queue}

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.publishers: list[Publisher] = []
        self.consumers = [Consumer(scene, f"k-{q}", q, patient=True) for q in self.consumed]
        self.amqp: list[AmqpClient] = []
        self.others: list[Occasional] = []
        if (queue := self.published) is not None:
            self.publishers.append(Publisher(scene, f"f-{queue}", queue, named=True))

    @property
    def waits(self) -> str | None:
        """What keeps the run from ending."""
        return None

    async def prepare(self) -> None:
        """Its queues are declared, and the cluster is whole."""

    def begin(self) -> None:
        """The load begins."""

    def healed(self) -> None:
        """The load and all faults have ended."""

    def give_up(self) -> None:
        """The run ends: nobody knows what became of the rest."""

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        """`clocks_jumped`: what is early or late cannot be told."""
        return check_all(_of(ops, self.queues), self.checkers)


def _of(ops: Sequence[Op], queues: Collection[str]) -> list[Op]:
    return [op for op in ops if op.value.get("queue") in queues]


class Priority(Feature):
    """Those of higher priority overtake; none is lost."""

    queues: ClassVar = {"ranked": {**LIMITS, "x-max-priority": 5}}
    consumed = ("ranked",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        name, how = "f-ranked", self._attributes
        self.publishers.append(Publisher(scene, name, "ranked", named=True, attributes=how))

    @staticmethod
    def _attributes(dice: random.Random, ids: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        return [{ATTR_PRIORITY: dice.randint(0, 9)} for _ in ids], {}


class DropHead(Feature):
    """A full queue lets go of its oldest as dead letters: none is lost on the way."""

    queues: ClassVar = {
        "newest": {
            **LIMITS,
            "x-max-length": 40,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dropped",
        },
        "dropped": LIMITS,
    }
    published = "newest"
    consumed = ("newest", "dropped")
    checkers: ClassVar = {"dead-letters": dead_letters("newest", "dropped")}


class RejectPublish(Feature):
    """A full queue refuses: what it refused never comes out, what it confirmed does."""

    queues: ClassVar = {"full": {**LIMITS, "x-max-length": 20, "x-overflow": "reject-publish"}}
    published = "full"
    consumed = ("full",)


class RepeatingPublisher(Publisher):
    """Has no name, and publishes what it does not know the outcome of again, with the same ids."""

    def __init__(self, scene: Scene, name: str, queue: str, attributes: Attributes) -> None:
        super().__init__(scene, name, queue, named=False, attributes=attributes)
        self._repeat: Batch | None = None

    @property
    def idle(self) -> bool:
        return self._repeat is None

    def next_batch(self) -> Batch:
        if self._repeat is None:
            return super().next_batch()
        self.scene.cluster.trace.count("publishes repeated by id")
        return self.again(self._repeat)

    def ended(self, batch: Batch, kind: Any, connection: Connection, reply: Any) -> None:
        self._repeat = batch if kind == "unknown" else None
        super().ended(batch, kind, connection, reply)


class Dedup(Feature):
    """What is published again under its id is stored once."""

    queues: ClassVar = {"once": {**LIMITS, "x-dedup-window": 600_000}}
    consumed = ("once",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.publishers.append(RepeatingPublisher(scene, "i-once", "once", self._ids))

    @staticmethod
    def _ids(_: random.Random, ids: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        return [{ATTR_DEDUP_ID: each} for each in ids], {}


class Purger(Occasional):
    """Empties its queue now and then, in the first half of the load."""

    async def run(self) -> None:
        half_s = self.scene.cluster.plan.faults_s / 2
        while self.scene.load_s < half_s:
            await asyncio.sleep(self.dice.uniform(0.5, 2.0))
            op = self.scene.history.invoke(self.name, "purge", {"queue": self.queue})
            answer = await asked(self, Purge, self.queue)
            kind = "ok" if isinstance(answer, RequestAnswer) else "unknown"
            self.scene.history.end(op, kind)
            self.scene.cluster.trace.count("purges", kind == "ok")


#: A purge of unknown outcome may still be on its way for so long.
PURGE_LATE_MS = 5_000


class PurgeQueue(Feature):
    """What was confirmed before a purge may be gone; what was published after the last one comes
    out.
    """

    queues: ClassVar = {"swept": LIMITS}
    published = "swept"
    consumed = ("swept",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.others.append(Purger(scene, "v-swept", "swept"))

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        mine = _of(ops, self.queues)
        swept_ms = -1
        for op in mine:
            if op.f == "purge" and op.type != "invoke":
                late_ms = PURGE_LATE_MS if op.type == "unknown" else 0
                swept_ms = max(swept_ms, op.wall_ms + late_ms)
        before = {
            op.index
            for op in mine
            if op.f == "publish" and op.type == "invoke" and op.wall_ms <= swept_ms
        }
        kept = [op for op in mine if op.f != "purge" and op.invoke not in before]
        return check_all(kept, self.checkers)


class RoutedPublisher(AmqpPublisher):
    """Publishes to an exchange from which every key leads to two queues."""

    kind = "amqp-routed"

    async def prepare(self, channel: AmqpChannel) -> bool:
        exchange = commands.Exchange
        how: dict[str, Any] = {"exchange": EXCHANGE, "exchange_type": "topic", "durable": True}
        if await channel.ask(exchange.Declare, exchange.DeclareOk, **how) is None:
            return False
        for queue, key in (("routed-all", "#"), ("routed-one", "order.*")):
            binding = {"queue": queue, "exchange": EXCHANGE, "routing_key": key}
            if await channel.ask(commands.Queue.Bind, commands.Queue.BindOk, **binding) is None:
                return False
        self.count("exchanges declared and bound")
        return await self._other_binding(channel)

    async def _other_binding(self, channel: AmqpChannel) -> bool:
        """Comes and goes, and changes nothing for the queues that are judged."""
        kind, answer = self.dice.choice(
            (
                (commands.Queue.Bind, commands.Queue.BindOk),
                (commands.Queue.Unbind, commands.Queue.UnbindOk),
            )
        )
        where = {"queue": "routed-one", "exchange": EXCHANGE, "routing_key": "other.#"}
        return await channel.ask(kind, answer, **where) is not None

    def events(self, channel: AmqpChannel) -> list[Publish]:
        count = self.dice.randint(1, min(8, self.scene.cluster.plan.batch_max))
        bodies: list[NewBody] = [
            self.body(channel, "routed-all", "routed-one") for _ in range(count)
        ]
        where = where_of(EXCHANGE, f"order.{self.dice.randint(1, 3)}")
        return [publish_of(channel.number, where, PLAIN, bodies)]


EXCHANGE = "trade"


class Exchanges(Feature):
    """A confirm of what an exchange routed means that it is in every queue bound to it."""

    queues: ClassVar = {"routed-all": LIMITS, "routed-one": LIMITS}
    consumed = ("routed-all", "routed-one")

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.amqp.append(RoutedPublisher(scene, "q0", (), AmqpQueues(scene, LIMITS)))


PIECE_BYTES = 600


def pieces_of(head: bytes) -> list[bytes]:
    """What is behind that beginning, in the parts in which it is published."""
    return [b"+" + head * (PIECE_BYTES // len(head)) for _ in range(sum(head) % 4)]


class LargePublisher(AmqpPublisher):
    """Large bodies, small ones behind them."""

    kind = "amqp-large"

    def events(self, channel: AmqpChannel) -> list[Publish]:
        where = where_of("", "large")
        events: list[Publish] = []
        for _ in range(self.dice.randint(1, 3)):
            head = self.body(channel, "large").split(b"|", 1)[0] + b"|"
            pieces = pieces_of(head)
            body: NewBody = PartedBody([head, *pieces]) if pieces else head
            self.count("bodies in parts", len(pieces) > 0)
            events.append(publish_of(channel.number, where, PLAIN, [body]))
        return events


class LargeConsumer(AmqpConsumer):
    """Sees each body whole."""

    kind = "amqp-large-consumer"

    def take(self, channel: AmqpChannel, frame: Delivered) -> None:
        head = frame.body.split(b"|", 1)[0] + b"|"
        assert frame.body == b"".join([head, *pieces_of(head)]), f"{head!r} is not what was sent"
        super().take(channel, frame)


class Large(Feature):
    """A body that goes through the log in parts comes out whole, once, and in its place."""

    queues: ClassVar = {"large": LIMITS}
    consumed = ("large",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        publisher = LargePublisher(scene, "p-large", (), AmqpQueues(scene, LIMITS))
        self.amqp += [publisher, LargeConsumer(scene, "r-large", "large")]


class Ruler(Occasional):
    """Puts and drops policies of its queue. None of them lets a message go."""

    async def run(self) -> None:
        key = ("/", "ruled")
        definitions: tuple[dict[str, Any], ...] = (
            {"max-length": 1_000_000},
            {"message-ttl": 86_400_000, "delivery-limit": 1_000_000},
            {"max-length-bytes": 1 << 40, "overflow": "reject-publish"},
        )
        while not self.scene.stopping:
            await asyncio.sleep(self.dice.uniform(0.5, 3.0))
            if self.dice.random() < 0.3:
                command = DropEntry("policies", key)
            else:
                value = {
                    "pattern": "^ruled$",
                    "definition": self.dice.choice(definitions),
                    "priority": self.dice.randint(0, 3),
                    "apply_to": "queues",
                }
                command = PutEntry("policies", key, value)
            outcome = await change(self.scene.cluster, self.dice, command)
            self.scene.cluster.trace.count("policies changed", outcome.kind == "ok")


class Policies(Feature):
    """A queue whose settings change under load keeps all and in order."""

    queues: ClassVar = {"ruled": LIMITS}
    published = "ruled"
    consumed = ("ruled",)
    checkers: ClassVar = {"total-queue": total_queue, "publisher-order": publisher_order}

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.others.append(Ruler(scene, "u-ruled", "ruled"))


EXPIRES_MS = 3_000
UNUSED_PREFIX = "unused-"


class Leaver(Occasional):
    """Declares queues that nobody uses, and looks whether they are there."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name, "")
        self.declared = 0
        self.early: list[str] = []

    async def run(self) -> None:
        while not self.scene.stopping:
            # Never the same again: one that expires just now may be found, and go nevertheless.
            name = f"{UNUSED_PREFIX}{self.declared}"
            self.declared += 1
            arguments = {"x-expires": EXPIRES_MS}
            declared_ms = self.scene.now_ms  # used last not before this
            if not isinstance(await asked(self, Declare, name, arguments), RequestAnswer):
                continue
            self.scene.cluster.trace.count("queues left to expire")
            await asyncio.sleep(self.dice.uniform(0.1, 2.0))
            answer = await asked(self, Info, name)
            age_ms = self.scene.now_ms - declared_ms
            gone = isinstance(answer, Failure) and answer.code == "no_queue"
            if gone and age_ms + TOLERANCE_MS < EXPIRES_MS:
                self.early.append(f"{name} was gone {age_ms} ms after it was declared")


class QueueExpiry(Feature):
    """A queue that nobody uses goes after its time, and not before."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._leaver = Leaver(scene, "e0")
        self.others.append(self._leaver)

    @property
    def waits(self) -> str | None:
        for cluster in self.scene.cluster.serving():
            for number in range(self._leaver.declared):
                name = f"{UNUSED_PREFIX}{number}"
                if cluster.queue_info("/", name) is not None:
                    return f"queue {name}, which nobody uses, is still there"
        return None

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        early = [] if clocks_jumped else self._leaver.early
        reported = {"left to expire": self._leaver.declared}
        return [judge("queue-expiry", {"gone before its time": early}, reported=reported)]


class Importer(Occasional):
    """Imports definitions, several objects as one change of the catalog.

    Some cannot be done as their last object is bound to nothing; and what two importers declare
    under one name is of different types, so that one of them is refused.
    """

    def __init__(self, scene: Scene, name: str, exchange_type: str) -> None:
        super().__init__(scene, name, "")
        self.type = exchange_type
        self.outcomes: dict[str, str] = {}  # by import
        self.halves: dict[str, int] = {}  # by import and node: when it was first seen

    async def run(self) -> None:
        cluster = self.scene.cluster
        for number in range(IMPORTS_MAX):
            await asyncio.sleep(self.dice.uniform(0.1, 1.0))
            while not (machine := self.dice.choice(list(cluster.machines.values()))).serves:
                await asyncio.sleep(RETRY_S)
            if self.scene.stopping:
                return
            exchange = f"imported-{number}"
            name = f"{exchange}.{self.name}"
            self.outcomes[name] = "unknown"
            steps = self._steps(name, exchange, whole=self.dice.random() < 0.7)
            assert machine.cluster is not None
            importing = machine.cluster.names.change_all(steps)
            outcome = await outcome_at(machine, importing, self.look)
            if outcome is not None:
                self.outcomes[name] = outcome.kind
            cluster.trace.count(f"imports {self.outcomes[name]}")
            self.look()

    def _steps(self, name: str, exchange: str, *, whole: bool) -> list[CatalogStep]:
        definition = {"max-length": 1_000}
        value = {
            "pattern": f"^{name}$",
            "definition": definition,
            "priority": 0,
            "apply_to": "queues",
        }
        return [
            PutEntry("policies", ("/", name), value),
            DeclareQueue("/", name, LIMITS),
            DeclareExchange("/", exchange, self.type),
            Bind("/", exchange, "queue", name if whole else "nowhere", name),
        ]

    def look(self) -> None:
        """At every node that serves: an import is there whole, or nothing of it."""
        for cluster in self.scene.cluster.serving():
            for name in self.outcomes:
                if len(set(self.there(cluster.catalog_machine, name))) > 1:
                    self.halves.setdefault(f"{name} at {cluster.node}", self.scene.now_ms)

    def there(self, catalog: CatalogMachine, name: str) -> list[bool]:
        """Which of its objects are; the exchange may be of the other importer."""
        bound = catalog.bindings_to("/", "queue", name)
        queue = catalog.queue("/", name)
        found = [catalog.entry("policies", ("/", name)) is not None, queue is not None, bool(bound)]
        if any(found):
            exchange = catalog.exchange("/", name.partition(".")[0])
            found.append(exchange is not None and exchange.type == self.type)
        return found


IMPORTS_MAX = 12


class Imports(Feature):
    """What is imported is there whole, in the catalog and in the groups, or nothing of it is: also
    when leaders fail in between.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._importers = [Importer(scene, "i0", "fanout"), Importer(scene, "i1", "direct")]
        self.others += self._importers

    @property
    def waits(self) -> str | None:
        cluster = self.scene.cluster
        for node in cluster.serving():
            for importer in self._importers:
                for name in importer.outcomes:
                    info = node.queue_info("/", name)
                    leader = None if info is None else cluster.leader(info.group)
                    if info is None or leader is None:
                        continue
                    held = cluster.machines[leader].groups()[info.group].machine
                    if not isinstance(held, QueueMachine) or held.queue(info.queue) is None:
                        return f"queue {name}, which was imported, is not in group {info.group}"
        return None

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        halves: list[str] = []
        gone: list[str] = []  # although it was confirmed
        left: list[str] = []  # although it was refused
        drained = any(op.f == "drain" for op in ops)
        for importer in self._importers:
            importer.look()
            halves += [f"{where}, {at_ms} ms" for where, at_ms in importer.halves.items()]
            for node in self.scene.cluster.serving() if drained else ():
                for name, outcome in importer.outcomes.items():
                    found = any(importer.there(node.catalog_machine, name))
                    if outcome == "ok" and not found:
                        gone.append(f"{name} at {node.node}")
                    if outcome == "refused" and found:
                        left.append(f"{name} at {node.node}")
        anomalies = {"half done": halves, "confirmed, yet gone": gone, "refused, yet there": left}
        done = sum(
            each.outcomes[name] == "ok" for each in self._importers for name in each.outcomes
        )
        return [judge("imports", anomalies, reported={"imported": done})]


class LimitedTransactionClients(TransactionClients):
    """One pair of queues after the other is filled, by more than they take."""

    letter = "l"
    a_node = 2
    what = "limited transactions"

    def queues(self) -> tuple[str, str]:
        share = self._scene.load_s / self._scene.cluster.plan.faults_s
        return ROOMS[min(int(share * len(ROOMS)), len(ROOMS) - 1)]

    def bodies(self, dice: random.Random, name: str, first: int) -> list[bytes]:
        return [f"{name}:{first + more}|".encode() for more in range(dice.randint(1, 4))]

    def committed(self, messages: int) -> None:
        """They stay until the load is over, and other publishers do not wait for that."""


class Late(Consumer):
    """Comes when the load is over and nothing more can arrive: what was there at once it sees."""

    def __init__(self, scene: Scene, name: str, queue: str, waits: Callable[[], bool]) -> None:
        super().__init__(scene, name, queue, patient=True)
        self._waits = waits

    async def run(self) -> None:
        while not self.scene.stopping or self._waits():
            await asyncio.sleep(RETRY_S)
        await super().run()


#: The first of each pair is in another group than the second. One of them is full first.
ROOMS = (("room-1", "room-2"), ("room-3", "room-4"), ("room-5", "room-6"))
ROOM_OF = {"room-1": 40, "room-2": 30, "room-3": 30, "room-4": 40, "room-5": 35, "room-6": 35}
#: A command of a process that died may still be on its way for so long.
ROOM_LATE_S = 5.0


def key_of(message: str) -> str | None:
    """A few keys, one of which is hot; every seventh message has none."""
    number = int(message.rpartition(":")[2])
    return f"k{min(number % 5, number % 3)}" if number % 7 else None


class KeyedPublisher(Publisher):
    """Gives its messages their keys, the same whenever they are sent again."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        queue: str,
        key_of: Callable[[str], str | None],
        *,
        named: bool,
    ) -> None:
        super().__init__(scene, name, queue, named=named)
        self._key_of = key_of

    def _send(self, connection: Connection, batch: Batch) -> asyncio.Future[Any]:
        publisher, seqno = (self.name, batch.first) if self.named else (None, 0)
        metas = [
            {"key": self._key_of(f"{self.name}:{batch.first + nth}")}
            for nth in range(len(batch.bodies))
        ]
        return connection.request(
            NativePublish, self.queue, publisher, seqno, batch.bodies, metas, None
        )


def target_of(message: str) -> str:
    """Where its dead letter goes."""
    return "narrow" if int(message.rpartition(":")[2]) % 3 else "wide"


class Refusing(Feature):
    """Dead letters wait for a target that is full, and hold up none that go elsewhere."""

    queues: ClassVar = {
        "fading": {
            **LIMITS,
            "x-message-ttl": 50,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-strategy": "at-least-once",
        },
        "narrow": {**LIMITS, "x-max-length": 5, "x-overflow": "reject-publish"},
        "wide": LIMITS,
    }
    consumed = ("narrow", "wide")
    checkers: ClassVar = {"dead-letters": dead_letters("fading", "narrow", "wide", may_repeat=True)}

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.publishers.append(KeyedPublisher(scene, "f-fading", "fading", target_of, named=True))


class Groups(Feature):
    """Of each key one message is in flight, in order; what is returned waits a while, and its key
    with it.
    """

    queues: ClassVar = {
        "grouped": {
            **LIMITS,
            "x-group-key": ROUTING_KEY,
            "x-delayed-retry-type": "failed",
            "x-delayed-retry-min": 20,
            "x-delayed-retry-max": 200,
        }
    }
    consumed = ("grouped",)
    checkers: ClassVar = {"total-queue": total_queue, "message-groups": message_groups(key_of)}

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        for name, named in (("f-grouped", True), ("g-grouped", False)):
            self.publishers.append(KeyedPublisher(scene, name, "grouped", key_of, named=named))
        self.consumers.append(Consumer(scene, "l-grouped", "grouped"))


class Room(Feature):
    """Transactions over two groups, into queues that refuse what they have no room for: each is
    done whole or not at all, one that was refused left nothing, and no queue got more than it may
    hold: nothing is taken out before the load is over.
    """

    queues: ClassVar = {
        queue: {**LIMITS, "x-max-length": room, "x-overflow": "reject-publish"}
        for queue, room in ROOM_OF.items()
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._tellers = LimitedTransactionClients(scene, ROOMS[0])
        self._quiet_s: float | None = None
        self.consumers += [Late(scene, f"k-{q}", q, lambda: self._busy) for q in self.queues]

    def begin(self) -> None:
        self._tellers.begin()

    def give_up(self) -> None:
        self._tellers.give_up()

    @property
    def waits(self) -> str | None:
        teller = self._tellers.waiting(list(self.scene.cluster.machines.values()))
        return None if teller is None else f"{teller} waits for its transaction"

    @property
    def _busy(self) -> bool:
        """Somebody has a transaction under way, or had a moment ago."""
        now_s = self.scene.cluster.world.now_s
        if self.waits is not None or any(self._open()):
            self._quiet_s = None
        elif self._quiet_s is None:
            self._quiet_s = now_s
        return self._quiet_s is None or now_s - self._quiet_s < ROOM_LATE_S

    def _open(self) -> Iterator[bool]:
        cluster = self.scene.cluster
        for group in cluster.group_ids():
            leader = cluster.leader(group)
            machine = None if leader is None else cluster.machines[leader].groups()[group].machine
            yield machine is None or (
                isinstance(machine, QueueMachine) and bool(machine.transactions())
            )

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        mine = _of(ops, self.queues)
        drained = {op.value["queue"] for op in mine if op.f == "drain"} >= {*self.queues}
        found = set(deliveries_by_message(mine))
        parts: dict[tuple[str, int], list[tuple[str, str]]] = {}
        for op in mine:
            if op.f == "publish" and op.type == "invoke":
                keys = parts.setdefault((op.value["publisher"], op.value["first"]), [])
                keys += published_keys(op)
        halves = [
            f"{keys[0][1]}: {len(found & {*keys})} of {len(keys)} messages"
            for keys in parts.values()
            if 0 < len(found & {*keys}) < len(keys)
        ]
        over: list[str] = []
        # A minute of log time gives room back; a version before knows no room in other groups.
        trace, plan = self.scene.cluster.trace, self.scene.cluster.plan
        if not trace.counts["most clocks wrong"] and not plan.mixed_releases:
            came = Counter(queue for queue, _ in found)
            over = [f"{q}: {came[q]} messages" for q, room in ROOM_OF.items() if came[q] > room]
        anomalies = {"half done": halves if drained else [], "over the limit": over}
        reported = {"transactions": len(parts), "messages": len(found)}
        return [
            judge("room", anomalies, reported=reported),
            *check_all(mine, self.checkers),
        ]
