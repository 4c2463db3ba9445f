"""The composition root: from settings to a running node, and its graceful end.

`Node._start` is the list of what a node is made of; what serves clients behind its listeners is in
`node.parts`.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Collection
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from cluster.cluster_node import ClusterNode
from cluster.log import LogError, RealDisk, SystemClock
from cluster.machine.versions import NeedsNewer
from cluster.raft.link_protocol import ClockSample
from cluster.seams import Clock
from cluster.turns import next_turn
from node.broker.cluster_name import named
from node.data_folder import DataFolder
from node.gate import gate
from node.links.amqp import AmqpClient
from node.links.federation.links import FederationLinks
from node.links.metrics import LinkMetrics
from node.links.shovels import Shovels
from node.links.supervisor import LinkSupervisor
from node.management.app import ManagementRoutes
from node.management.services import Listeners, Listing, ManagementServices
from node.management.site import Site
from node.memory import (
    CollectWhatIsNew,
    available_bytes,
    keep_freed_memory,
    resident_bytes,
)
from node.metrics.certificates import CertificateExpiry
from node.metrics.sources import Process
from node.operating.audit import Audit
from node.operating.history import Histories
from node.operating.logs import configure_logs
from node.operating.watchdog import Watchdog
from node.parts import Parts
from node.peering import cluster_config, log_folders, tcp_links
from node.protocols.amqp.server import AmqpServer
from node.protocols.clients_now import clients_now
from node.protocols.connection_limiter import ConnectionLimiter
from node.protocols.http_server import HttpServer
from node.protocols.local_token import LocalToken
from node.protocols.native.http import HttpRoutes
from node.protocols.native.http_history import HistoryRoutes
from node.protocols.native.websocket import WebSockets
from node.protocols.nats.metrics import NatsMetrics
from node.protocols.nats.monitoring import Monitoring
from node.protocols.nats.server import NatsServer
from node.protocols.nats.system import System
from node.protocols.nats.tracing import Tracing
from node.protocols.nats.websocket import PATH as NATS_PATH
from node.protocols.nats.websocket import NatsWebSockets
from node.protocols.tls import Certificates
from node.settings.settings import Settings, SettingsError
from node.settings.settings import shown as settings_shown
from node.tasks import Tasks

log = structlog.get_logger(__name__)

WATCH_S = 1.0
#: Between two lines of the log that say how much of a long log is read.
PROGRESS_S = 5.0
#: The end of the cluster node may take so long beyond the time for all.
CLUSTER_STOP_S = 5.0
#: After that each of its steps may.
CLUSTER_STEP_S = 1.0

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_DATA = 3


class Node:
    """One broker process, without the process: start it, stop it, many times in a test."""

    failed: asyncio.Future[BaseException]  # it cannot go on
    left: asyncio.Future[None]  # was removed from the cluster, and has nothing any more
    audit: Audit
    certificates: Certificates
    cluster: ClusterNode
    links: LinkSupervisor
    amqp: AmqpServer
    nats: NatsServer | None = None
    nats_monitoring: Monitoring | None = None
    management: ManagementRoutes | None = None  # there once the log is read

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.http_address = ""  # empty: it is off
        self.https_address = ""
        self._clock = clock or SystemClock()
        self._folder = DataFolder(settings.data_dir)
        self._local_token = LocalToken(Path(settings.data_dir))
        self._tasks = Tasks()
        self._watchdog = Watchdog(settings.health.stall_ms_max / 1000)
        self._begun = AsyncExitStack()
        self._stopping = False
        self._transfer = False
        self._deadline_s = 0.0

    # --- start ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serving when it returns. SettingsError, LogError or OSError say why not; then all that
        was begun has ended.
        """
        async with AsyncExitStack() as begun:
            try:
                await self._start(begun)
            except BaseException:
                self._stop_by(transfer=False)
                raise
            self._begun = begun.pop_all()

    async def _start(self, begun: AsyncExitStack) -> None:
        """From what everything rests on to what clients see. Beside each step stands what ends it:
        ends come in reverse order, each of them whatever became of the others. So clients are told
        first, then requests end, then what works for them, the cluster, and the lock last.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        self.failed, self.left = loop.create_future(), loop.create_future()

        self._folder.open()
        begun.callback(self._folder.close)
        self.audit = Audit(settings.node, settings.audit_file)
        certificates = self.certificates = Certificates(settings.tls)
        limiter = ConnectionLimiter(
            per_address_max=settings.limits.connections_per_address_max,
            handshake_s_max=settings.limits.handshake_ms_max / 1000,
        )
        begun.callback(self._watchdog.stop)
        self._watchdog.start()

        # The port before the cluster: its number, when it was 0, is told to the other nodes.
        listens = {
            "http": (settings.http, settings.http_advertise),
            "https": (settings.https, settings.https_advertise),
        }
        http = self._http = HttpServer(settings, limiter, certificates, listens)
        begun.callback(http.unbind)
        await http.bind()
        self.http_address = http.addresses.get("http", "")
        self.https_address = http.addresses.get("https", "")

        addresses = self._addresses(http)
        cluster = self.cluster = self._make_cluster(addresses)
        begun.push_async_callback(self._stop_cluster)

        parts = self._make_parts(http.hosts)
        begun.callback(parts.auth.close)
        self._tasks.on_failure = self._fail
        begun.push_async_callback(self._tasks.stop)

        if settings.nats is not None or settings.nats_tls is not None:
            self.nats = self._make_nats(limiter)
        # Probes are answered while the log is read, which takes its time.
        sockets = self._add_routes(http)
        begun.push_async_callback(http.stop)
        await http.start()
        await self._start_cluster()

        self._note_beginning()
        parts.start(begun)
        self._tasks.keep(self._watch(), name="node_watch")
        if certificates:
            self._tasks.start(certificates.watch(), name="certificates")

        amqp = self.amqp = AmqpServer(
            parts.amqp_services(),
            clients=parts.clients,
            incarnation=cluster.links.incarnation,
            limiter=limiter,
            certificates=certificates,
        )
        listeners: list[Listing] = [amqp, sockets]
        if self.nats is not None:
            listeners.append(self.nats)
        self.links = self._make_links()
        self.management = self._make_management(Listeners(*listeners))
        self._tasks.start(self.management.watch(), name="management")
        self._fill_metrics(addresses)

        begun.push_async_callback(amqp.stop)
        await amqp.start()
        self._tasks.start(sockets.follow_shards(), name="follow_shards")
        parts.drain.listeners.append(amqp)
        if self.nats is not None:
            await self._start_nats(self.nats, begun, limiter)
        begun.callback(self._local_token.remove)
        self._local_token.write(http.local_url)
        begun.callback(parts.sessions.stop)  # also those for whom the goodbye had no time
        begun.push_async_callback(self._shut_down)
        begun.push_async_callback(self.links.stop)
        self._tasks.keep(self.links.run(), name="links")
        parts.health.listening = True
        log.info("node_started", **self._listening(), peer=settings.peer, data=settings.data_dir)

    def _listening(self) -> dict[str, str]:
        """Where clients connect, by setting: a port that was 0 is known now."""
        nats, monitoring = self.nats, self.nats_monitoring
        found = {
            **self._http.addresses,
            "amqp": self.amqp.address,
            "amqps": self.amqp.tls_address,
            "nats": nats and nats.address,
            "nats_tls": nats and nats.tls_address,
            "nats_monitor": monitoring and monitoring.address,
        }
        return {name: address for name, address in found.items() if address}

    # --- the steps --------------------------------------------------------------------------------

    def _addresses(self, http: HttpServer) -> dict[str, str]:
        """By which others reach this node."""
        settings = self.settings
        addresses = {
            **http.addresses,
            "peer": settings.peers.get(settings.node, settings.peer),
        }
        others = {
            "amqp": settings.amqp_advertise or settings.amqp,
            "amqps": settings.amqps,
            "nats": settings.nats_advertise or settings.nats,
            "nats_tls": settings.nats_tls,
        }
        return addresses | {kind: at for kind, at in others.items() if at is not None}

    def _make_cluster(self, addresses: dict[str, str]) -> ClusterNode:
        settings, clock = self.settings, self._clock
        incarnation = self._folder.next_incarnation(clock)
        links = tcp_links(settings, incarnation, clock, self.certificates.peer)
        self.certificates.on_peer = partial(setattr, links, "tls")
        self._disk = RealDisk()
        cluster = ClusterNode(
            cluster_config(settings, addresses),
            disk=self._disk,
            clock=clock,
            links=links,
            random=random.Random(),
        )
        links.on_clock = self._note_clock
        links.machine_version = lambda: cluster.catalog_machine.version
        return cluster

    def _note_clock(self, sample: ClockSample) -> None:
        self.cluster.notes.clock(sample)

    def _make_parts(self, hosts: Collection[str]) -> Parts:
        limits = self.settings.limits
        parts = self.parts = Parts(
            self.settings,
            self.cluster,
            self._tasks,
            memory_bytes=resident_bytes,
            memory_bytes_max=limits.memory_bytes_max(available_bytes()),
            watchdog=self._watchdog,
            hosts=hosts,
        )
        self.broker, self.peer_rpc, self.bodies = parts.broker, parts.peer_rpc, parts.bodies
        self.auth, self.clients, self.sessions = parts.auth, parts.clients, parts.sessions
        self.traffic, self.relay, self.metrics = parts.traffic, parts.relay, parts.metrics
        self._disk.on_sync = parts.metrics.fsync_seconds.observe
        self.publisher, self.backups = parts.publisher, parts.backups
        self.alarms, self.quotas, self.health = parts.alarms, parts.quotas, parts.health
        self.catch_up, self.quorum, self.drain = parts.catch_up, parts.quorum, parts.drain
        return parts

    def _add_routes(self, http: HttpServer) -> WebSockets:
        parts, app = self.parts, http.app
        app.middlewares.append(gate(parts.health))
        counts, counters = parts.traffic.dispatcher.counts, parts.counters
        sockets = WebSockets(
            parts.broker,
            parts.sessions,
            parts.auth,
            parts.clients,
            counters,
            parts.bodies,
            parts.streams,
            parts.publisher,
            parts.transactions,
        )
        app.router.add_get("/v1/connect", sockets.connect)
        native = HttpRoutes(
            parts.broker,
            parts.sessions,
            counts,
            parts.auth,
            counters,
            parts.peer_rpc,
            parts.moving,
        )
        native.add_to(app)
        histories = Histories(self.cluster, self.settings.limits, log_folders(self.settings))
        HistoryRoutes(native, parts.broker, parts.auth, histories).add_to(app)
        parts.health.add_to(app)
        app.router.add_route("*", ManagementRoutes.PATH, self._manage)
        Site(parts.auth).add_to(app)
        parts.metrics.add_to(app)
        if self.nats is not None:
            frame_bytes_max = self.settings.limits.frame_bytes_max
            nats = NatsWebSockets(self.nats, http.listener, frame_bytes_max=frame_bytes_max)
            app.router.add_get(NATS_PATH, nats.connect)
        return sockets

    def _make_nats(self, limiter: ConnectionLimiter) -> NatsServer:
        parts = self.parts
        return NatsServer(
            self.settings,
            parts.subjects,
            auth=parts.auth,
            clients=parts.clients,
            tasks=parts.tasks,
            incarnation=self.cluster.links.incarnation,
            limiter=limiter,
            certificates=self.certificates,
            jetstream=parts.jetstream,
        )

    async def _start_nats(
        self, nats: NatsServer, begun: AsyncExitStack, limiter: ConnectionLimiter
    ) -> None:
        parts = self.parts
        self.metrics.sources.kept.append(NatsMetrics(nats))
        monitoring = self.nats_monitoring = Monitoring(
            self.settings,
            self.cluster,
            nats,
            parts.health,
            limiter=limiter,
            certificates=self.certificates,
        )
        System(self.settings, self.cluster, nats, monitoring, parts.peer_rpc, parts.tasks)
        Tracing(self.settings, self.cluster, nats, parts.peer_rpc, parts.tasks)
        begun.push_async_callback(nats.stop)
        await nats.listen()
        parts.drain.listeners.append(nats)
        begun.push_async_callback(monitoring.stop)
        await monitoring.listen()

    async def _manage(self, request: web.Request) -> web.StreamResponse:
        assert self.management is not None, "the gate is closed until there is one"
        return await self.management.serve(request)

    async def _start_cluster(self) -> None:
        telling = self._tasks.start(self._tell_progress(), name="progress")
        try:
            await self.cluster.start()
        except OSError as error:  # of the disk there are errors of the log
            raise SettingsError(
                f"peer: cannot listen on {self.settings.peer}: {error.strerror}; "
                "allowed: an address of this machine with a free port"
            ) from error
        finally:
            telling.cancel()

    async def _tell_progress(self) -> None:
        """While a long log is read."""
        replay = self.cluster.replay
        while True:
            await asyncio.sleep(PROGRESS_S)
            if replay.read < replay.segments:
                log.info("reading_log", segments_read=replay.read, segments=replay.segments)

    def _note_beginning(self) -> None:
        """What a later reader of the log should know of this process, and of the one before."""
        notes = self.cluster.notes
        notes.settings(settings_shown(self.settings))
        last_words = self._folder.last_words()
        if last_words is not None:
            notes.failed(*last_words)
        self._watchdog.on_stall = self._note_stall

    def _note_stall(self, loop_s: float, process_s: float) -> None:
        if not self._stopping:
            notes = self.cluster.notes
            notes.stall(loop_ms=round(loop_s * 1000), process_ms=round(process_s * 1000))

    def _make_links(self) -> LinkSupervisor:
        parts = self.parts
        client = AmqpClient(self.amqp.connect_locally)
        links = LinkSupervisor(self.cluster, parts.peer_rpc, self._tasks)
        links.add(
            FederationLinks(
                self.cluster,
                client,
                parts.broker,
                parts.publisher,
                self._tasks,
                cluster_name=self._cluster_name,
            )
        )
        links.add(Shovels(self.cluster, client, self._cluster_name))
        self.metrics.sources.kept.append(LinkMetrics(links))
        return links

    def _cluster_name(self) -> str:
        return named(self.cluster.catalog_machine, self.settings.cluster)

    def _make_management(self, listing: Listing) -> ManagementRoutes:
        parts = self.parts
        return ManagementRoutes(
            ManagementServices(
                settings=self.settings,
                broker=parts.broker,
                dead_letters=parts.dead_letters,
                sessions=parts.sessions,
                clients=parts.clients,
                direct_replies=parts.direct_replies,
                publisher=parts.publisher,
                auth=parts.auth,
                alarms=parts.alarms,
                health=parts.health,
                quorum=parts.quorum,
                drain=parts.drain,
                streams=parts.jetstream.api,
                backups=parts.backups,
                local_token=self._local_token,
                peer_rpc=parts.peer_rpc,
                moving=parts.moving,
                splitting=parts.splitting,
                listing=listing,
                audit=self.audit,
                counters=parts.counters,
                links=self.links,
                latencies_ms=parts.metrics.latencies_ms,
            )
        )

    def _fill_metrics(self, addresses: dict[str, str]) -> None:
        assert self.management is not None
        sources = self.metrics.sources
        sources.process = Process(
            settings=self.settings,
            alarms=self.alarms,
            clients=partial(clients_now, self.amqp, self.sessions),
            capacity=self.management.observer.capacity,
            cluster_name=self._cluster_name,
        )
        sources.kept.append(CertificateExpiry(self.certificates.expiry_s, addresses))

    # --- while it runs ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Once a second: does the cluster node still run, and is it still a member?"""
        while True:
            if self.cluster.left and not self.left.done():
                self.left.set_result(None)
            if self.cluster.failed is not None:
                self._fail(self.cluster.failed)
            await next_turn(self._clock, WATCH_S)

    def _fail(self, error: BaseException) -> None:
        if self.failed.done():
            return
        log.critical("node_failed", error=str(error))
        self._folder.leave_word(str(error) or repr(error), self._clock.wall_ns())
        self.failed.set_result(error)

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, *, transfer: bool = True) -> None:
        """Clients go elsewhere, leaderships are handed over, what is in hand is finished, the log
        is closed. A part that cannot end does not keep the others from it.
        """
        if self._stopping:
            return
        self._stop_by(transfer=transfer)
        await self._begun.aclose()
        log.info("node_stopped")

    def _stop_by(self, *, transfer: bool) -> None:
        self._stopping = True
        self._transfer = transfer
        now_s = asyncio.get_running_loop().time()
        self._deadline_s = now_s + self.settings.stop_ms_max / 1000

    async def _shut_down(self) -> None:
        await self.parts.shut_down(transfer=self._transfer)

    async def _stop_cluster(self) -> None:
        """What does not end in time is given up, step by step: a disk may answer no more."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.create_task(self.cluster.stop(transfer=self._transfer), name="stop")
        until_s = self._deadline_s + CLUSTER_STOP_S
        try:
            while not stopping.done():
                left_s = until_s - loop.time()
                await asyncio.wait({stopping}, timeout=max(CLUSTER_STEP_S, left_s))
                stopping.cancel()
        finally:
            stopping.cancel()
        if not stopping.cancelled():
            stopping.result()


# --- the process ----------------------------------------------------------------------------------


class Signals:
    """What SIGTERM and SIGINT have asked for since the process began."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[str] = loop.create_future()  # by which signal
        self.again: asyncio.Future[None] = loop.create_future()  # a second one: do not wait
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked, number.name)

    def _asked(self, name: str) -> None:
        if not self.stop.done():
            self.stop.set_result(name)
        elif not self.again.done():
            log.info("stop_asked_again", why=name)
            self.again.set_result(None)


async def run(settings: Settings, clock: Clock | None = None) -> int:
    """Start, serve until told to stop, stop. The exit status."""
    node = Node(settings, clock=clock)
    signals = Signals()
    if not await _started(node, signals):
        return EXIT_OK
    if node.certificates:  # without any, SIGHUP means what it always does
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, node.certificates.wake)
    asked = signals.stop
    await asyncio.wait({asked, node.failed, node.left}, return_when=asyncio.FIRST_COMPLETED)
    if node.left.done():
        log.warning(
            "node_removed",
            node=settings.node,
            reason="it was removed from the cluster, others have what it had: its folder may be"
            " deleted; `quorate node add` lets it in again",
        )
    if asked.done() and not node.failed.done():
        log.info("stop_asked", why=asked.result())
        await node.audit.write(
            who=f"({asked.result()})", address="", what="stop", target=settings.node, outcome="ok"
        )
        await _others_are_back(node, signals)
    else:
        log.info("stop_asked", why="failure" if node.failed.done() else "removed")
    broken = node.failed.done()
    await node.stop(transfer=not broken)
    if not broken:
        return EXIT_OK
    return EXIT_DATA if isinstance(node.failed.result(), NeedsNewer) else EXIT_FAILED


async def _started(node: Node, signals: Signals) -> bool:
    """False: it was told to stop before it served. A process that is the first of its container
    has to look itself: the kernel ignores signals that such a one does not handle.
    """
    starting = asyncio.create_task(node.start(), name="start")
    signals.stop.add_done_callback(lambda _: starting.cancel())
    try:
        await starting
    except asyncio.CancelledError:
        if not signals.stop.done():
            raise
        log.info("stop_asked", why=signals.stop.result())
        log.info("node_stopped")
        return False
    return True


async def _others_are_back(node: Node, signals: Signals) -> None:
    """Or nobody waits for that any more: the time is up, a second signal came, this node failed."""
    deadline_s = asyncio.get_running_loop().time() + node.settings.stop_ms_max / 1000
    waiting = asyncio.create_task(node.drain.until_others_came_back(deadline_s), name="others")
    await asyncio.wait({waiting, signals.again, node.failed}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def main(settings: Settings, *, clock: Clock | None = None) -> int:
    """Run a node in this process until SIGTERM or SIGINT; `clock`: not the machine's own."""
    configure_logs(settings)
    keep_freed_memory()
    CollectWhatIsNew().begin()
    try:
        try:
            import uvloop
        except ImportError:  # not on every platform; asyncio's own loop does the same, slower
            return asyncio.run(run(settings, clock))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(settings, clock))
    except SettingsError as error:
        log.error("settings_refused", reason=str(error))
        return error.exit_code
    except (LogError, NeedsNewer) as error:
        log.error("data_refused", reason=str(error))
        return EXIT_DATA
