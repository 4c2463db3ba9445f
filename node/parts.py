"""A node behind its listeners: all that serves clients, wired in one place.

`node.node` runs these parts behind sockets, the simulator behind channels of its own. Nothing here
opens a socket or a file, or starts a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress

import structlog

from cluster.cluster_node import ClusterNode
from cluster.turns import next_turn
from cluster.types import NodeId
from node.access.auth import Auth
from node.access.first_user import FirstUser
from node.broker.alarms import Alarms, Lack
from node.broker.bodies import Bodies
from node.broker.broker import Broker
from node.broker.dead_letters import DeadLetters
from node.broker.moving import Moving
from node.broker.publishing import QueuePublisher
from node.broker.settle_retry import SettleRetry
from node.broker.splitting import Splitting
from node.broker.stream_reads import StreamReads
from node.broker.transactions import TransactionCoordinator
from node.broker.vhost_quotas import VhostQuotas
from node.clients.clients import Clients
from node.clients.relay import Relay
from node.clients.sessions import Sessions
from node.clients.traffic import Traffic
from node.metrics.client_counters import ClientCounters, Counts
from node.metrics.metrics import Metrics
from node.operating.backup import Backups
from node.operating.catch_up import CatchUp
from node.operating.drain import Drain
from node.operating.health import Health
from node.operating.quorum import Quorum
from node.operating.watchdog import Watchdog
from node.peer_rpc import PeerRpc
from node.protocols.amqp.direct_reply import DirectReplies
from node.protocols.amqp.services import AmqpServices
from node.protocols.native.streams import Streams
from node.protocols.nats.jetstream.service import JetStream
from node.protocols.nats.subjects import Subjects
from node.settings.settings import Settings
from node.tasks import Tasks

log = structlog.get_logger(__name__)

CARE_PERIOD_S = 1.0


class Parts:
    """One per node. Put together before the cluster node starts; `start` when that has."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterNode,
        tasks: Tasks,
        *,
        memory_bytes: Callable[[], int],
        memory_bytes_max: int,
        watchdog: Watchdog,
        hosts: Collection[str] = (),
        make_sessions: type[Sessions] = Sessions,
        make_settle_retry: Callable[[ClusterNode, Counts], SettleRetry] = SettleRetry,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.tasks = tasks
        self._stopped = False

        # What is asked of queues, and what nodes ask of each other.
        self.broker = Broker(cluster, settings.limits, make_settle_retry)
        self.peer_rpc = PeerRpc(cluster, tasks)
        self.counters = ClientCounters()

        # Who may come in.
        given = settings.first_user()
        self.first_user = FirstUser(
            cluster,
            self.broker.catch_up,
            given,
            settings.auth.password_hashing,
            previous=settings.previous_password(),
        )
        self.auth = Auth(
            cluster,
            loopback_users=settings.auth.loopback_users,
            passwordless_guest=settings.auth.passwordless_guest,
            hosts=hosts,
            catch_up=self.first_user.catch_up,
            guest_goes=given is not None,
        )
        self.clients = Clients(self.auth, self.peer_rpc, self.counters)

        # The way of messages to consumers.
        self.traffic = Traffic(self.broker, tasks)
        counts = self.broker.counts
        self.relay = Relay(self.broker, self.traffic, self.peer_rpc)
        self.sessions = make_sessions(self.broker, self.traffic, self.relay, tasks)
        self.metrics = Metrics(
            cluster, counts, connections=lambda: len(self.clients), counters=self.counters
        )
        self.bodies = Bodies(cluster, self.peer_rpc)
        self.stream_reads = StreamReads(self.broker, self.peer_rpc)
        self.dead_letters = DeadLetters(self.broker, tasks, self.metrics, self.bodies)
        self.traffic.on_dead_letters.append(self.dead_letters.ready)

        # The way of messages into queues.
        self.publisher = QueuePublisher(cluster, tasks, counts, self.bodies)
        self.transactions = TransactionCoordinator(cluster, tasks)
        self.moving = Moving(self.broker, self.transactions, self.peer_rpc)
        self.splitting = Splitting(self.broker)
        self.direct_replies = DirectReplies(cluster.node, self.peer_rpc)
        self.subjects = Subjects(cluster, self.peer_rpc)
        self.jetstream = JetStream(
            cluster,
            self.subjects,
            self.publisher,
            self.broker.ingress,
            self.stream_reads,
            self.bodies,
            self.peer_rpc,
            tasks,
        )

        self.streams = Streams(
            self.broker, self.stream_reads, self.jetstream.api, self.jetstream.cursors, tasks
        )

        # What holds publishers back.
        self.alarms = Alarms(
            self.peer_rpc, memory_bytes_max=memory_bytes_max, memory_bytes=memory_bytes
        )
        self.alarms.on_change.append(self._alarmed)
        self.alarms.on_lack = self._note_lack
        self.quotas = VhostQuotas(cluster, self.peer_rpc, self.metrics.sources.rows)

        # How the node is, and its end.
        patience_s = settings.health.catch_up_ms_max / 1000
        catch_up = self.catch_up = CatchUp(cluster, self.peer_rpc, patience_s=patience_s)
        self.quorum = Quorum(
            cluster, self.peer_rpc, caught_up=lambda: catch_up.done and cluster.sound
        )
        self.health = Health(
            cluster,
            alarms=self.alarms,
            watchdog=watchdog,
            catch_up=catch_up,
            quorum=self.quorum,
        )
        self.drain = Drain(
            cluster,
            self.peer_rpc,
            quorum=self.quorum,
            health=self.health,
            sessions=self.sessions,
        )
        self.backups = Backups(cluster, self.peer_rpc)

    def amqp_services(self) -> AmqpServices:
        """What the AMQP side needs: the cluster node has started."""
        return AmqpServices(
            settings=self.settings,
            broker=self.broker,
            sessions=self.sessions,
            relay=self.relay,
            publisher=self.publisher,
            bodies=self.bodies,
            stream_reads=self.stream_reads,
            transactions=self.transactions,
            direct_replies=self.direct_replies,
            auth=self.auth,
            alarms=self.alarms,
            peer_rpc=self.peer_rpc,
            tasks=self.tasks,
            counters=self.counters,
        )

    def start(self, begun: AsyncExitStack) -> None:
        """The cluster node has started. `begun` ends what begins here."""
        tasks, metrics = self.tasks, self.metrics
        metrics.watch.follow(logins_failed=self.auth.logins_failed)
        begun.callback(self._stop)
        # A fast publisher fills a small volume in less than a period.
        loop = asyncio.get_running_loop()
        self.cluster.log.on_space = lambda: loop.call_soon(self._look_at_space)
        metrics.watch.start()
        begun.callback(metrics.watch.stop)
        tasks.start(self.first_user.run(), name="first_user")
        tasks.start(self.catch_up.run(), name="catch_up")
        tasks.keep(self.relay.run(), name="relay")
        tasks.keep(self._watch(), name="node_care")

    def _stop(self) -> None:
        self._stopped = True

    async def shut_down(self, *, transfer: bool) -> None:
        """The first of a stop: leaderships and clients go elsewhere, within `stop_ms_max`."""
        log.info("node_stopping", connections=len(self.clients))
        self.health.stopping = True
        self.drain.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_ms_max / 1000):
                await self.drain.empty(transfer=transfer)

    # --- once a second ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Are there memory and disk, do limits hold, does the archive work?"""
        cluster = self.cluster
        archive_problem: str | None = None
        while True:
            self._look_at_space()
            await self.quotas.sample()
            self.broker.ingress.full_vhosts = self.quotas.full
            self.clients.look()
            self.publisher.forget_idle(asyncio.get_running_loop().time())
            problem = cluster.log.cleaner.archive_error
            if problem != archive_problem:
                if problem is not None:
                    log.warning("archive_failed", reason=problem)
                cluster.notes.archive(problem)
            archive_problem = problem
            await next_turn(cluster.log.wal.clock, CARE_PERIOD_S)

    def _look_at_space(self) -> None:
        if self._stopped:
            return
        space = self.cluster.log.space()
        if space.refuse_publishes != self.alarms.disk:
            log.warning("disk_space", free_bytes=space.free_bytes, full=space.refuse_publishes)
        self.alarms.sample(disk=space.refuse_publishes)

    def _alarmed(self) -> None:
        self.broker.ingress.lack = self.alarms.lack
        self.cluster.notes.publishers(self.alarms.blocked)

    def _note_lack(self, node: NodeId | None, lack: Lack) -> None:
        self.cluster.notes.alarm(node or self.cluster.node, **lack._asdict())
