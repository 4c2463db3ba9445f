"""The composition root: from settings to a running node, and its graceful end."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from cluster.cluster_node import ClusterNode
from cluster.log import LogError, RealDisk, SystemClock
from cluster.machine.versions import NeedsNewer
from cluster.raft.link_protocol import ClockSample
from cluster.seams import Clock
from cluster.types import NodeId
from node.alarms import Alarms, Lack
from node.audit import Audit
from node.auth import Auth
from node.backup import Backups
from node.bodies import Bodies
from node.broker import Broker
from node.catch_up import CatchUp
from node.clients import Clients
from node.data_folder import DataFolder
from node.dead_letters import DeadLetters
from node.drain import Drain
from node.first_user import FirstUser
from node.gate import gate
from node.health import Health
from node.history import Histories
from node.local_token import LocalToken
from node.logs import configure_logs
from node.management.app import ManagementRoutes
from node.management.context import Doors
from node.management.context import Services as ManagementServices
from node.management.parameters import named
from node.memory import available_bytes, keep_freed_memory, resident_bytes
from node.metrics.certificates import CertificateExpiry
from node.metrics.metrics import Metrics
from node.metrics.sources import Process
from node.metrics.tallies import Tallies
from node.peering import cluster_config, log_folders, tcp_links
from node.protocols.amqp.direct_reply import DirectReplies
from node.protocols.amqp.server import AmqpServer
from node.protocols.amqp.services import Services as AmqpServices
from node.protocols.entrance import Entrance
from node.protocols.http_server import HttpServer
from node.protocols.native.http import HttpRoutes
from node.protocols.native.http_history import HistoryRoutes
from node.protocols.native.websocket import WebSockets
from node.publishing import Publisher
from node.questions import Questions
from node.quorum import Quorum
from node.relay import Relay
from node.sessions import Sessions
from node.settings import Settings, SettingsError
from node.settings import told as settings_told
from node.settling import Settler
from node.tasks import Tasks
from node.timed_disk import TimedDisk
from node.tls import Certificates
from node.traffic import Traffic
from node.transactions import Transactions
from node.vhost_quotas import VhostQuotas
from node.watchdog import Watchdog

log = structlog.get_logger(__name__)

CARE_PERIOD_S = 1.0

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_DATA = 3


class Node:
    """One broker process, without the process: start it, stop it, many times in a test."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.http_address = ""  # empty: it is off
        self.https_address = ""
        self._folder = DataFolder(settings.data_dir)
        self._clock = clock or SystemClock()
        self._tasks = Tasks()
        self._stopping = False
        self._care: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(settings.health.stall_ms_max / 1000)
        self._local_token = LocalToken(Path(settings.data_dir))
        self._management: ManagementRoutes | None = None  # there once the log is read
        self.failed: asyncio.Future[BaseException] | None = None
        self.left: asyncio.Future[None]  # was removed from the cluster, and has nothing any more
        self.audit: Audit
        self._first_user: FirstUser
        self.certificates: Certificates
        self._entrance: Entrance
        self._http: HttpServer
        self.cluster: ClusterNode
        self.questions: Questions
        self.auth: Auth
        self.clients: Clients
        self.alarms: Alarms
        self.broker: Broker
        self.traffic: Traffic
        self.relay: Relay
        self.sessions: Sessions
        self.publisher: Publisher
        self.amqp: AmqpServer
        self.health: Health
        self.catch_up: CatchUp
        self.quorum: Quorum
        self.drain: Drain
        self.backups: Backups
        self.metrics: Metrics
        self.quotas: VhostQuotas

    # --- start ------------------------------------------------------------------------------------

    def _note_clock(self, sample: ClockSample) -> None:
        self.cluster.notes.clock(sample)

    async def start(self) -> None:
        """Serving when it returns. SettingsError, LogError or OSError say why not."""
        self._folder.open()
        try:
            await self._start()
        except BaseException:
            await self.stop(transfer=False)
            raise

    async def _start(self) -> None:
        settings = self.settings
        self.failed = asyncio.get_running_loop().create_future()
        self.left = asyncio.get_running_loop().create_future()
        self.audit = Audit(settings.node, settings.audit_file)
        self.certificates = Certificates(settings.tls)
        self._entrance = Entrance(
            per_address_max=settings.limits.connections_per_address_max,
            handshake_s_max=settings.limits.handshake_ms_max / 1000,
        )
        # The ports first: their numbers, when they were 0, are told to the cluster.
        self._http = HttpServer(settings, self._entrance, self.certificates)
        await self._http.bind()
        self.http_address = self._http.addresses.get("http", "")
        self.https_address = self._http.addresses.get("https", "")
        observe: list[Callable[[float], None]] = []
        disk = TimedDisk(RealDisk(), self._clock, lambda s: observe[0](s) if observe else None)
        addresses = {
            **self._http.addresses,
            "peer": settings.peers.get(settings.node, settings.peer),
        }
        amqp = settings.amqp_advertise or settings.amqp
        if amqp is not None:
            addresses["amqp"] = amqp
        if settings.amqps is not None:
            addresses["amqps"] = settings.amqps
        config = cluster_config(settings, addresses)
        incarnation = self._folder.next_incarnation(self._clock)
        links = tcp_links(settings, incarnation, self._clock, self.certificates.peer)
        self.certificates.on_peer = partial(setattr, links, "tls")
        self.cluster = ClusterNode(
            config, disk=disk, clock=self._clock, links=links, random=random.Random()
        )
        links.on_clock = self._note_clock
        links.machine_version = lambda: self.cluster.catalog_machine.version
        self.broker = Broker(self.cluster, settings.limits, self._tasks)
        self.questions = Questions(self.cluster, self._tasks)
        given = settings.first_user()
        self._first_user = FirstUser(
            self.cluster, self.broker.catch_up, given, settings.auth.password_hashing
        )
        self.auth = Auth(
            lambda: self.cluster.catalog_machine,
            loopback_users=settings.auth.loopback_users,
            passwordless_guest=settings.auth.passwordless_guest,
            hosts=self._http.hosts,
            catch_up=self._first_user.catch_up,
            guest_goes=given is not None,
        )
        tallies = Tallies()
        self.clients = Clients(self.auth, self.questions, tallies)
        self.alarms = Alarms(
            self.questions,
            memory_bytes_max=settings.limits.memory_bytes_max(available_bytes()),
            memory_bytes=resident_bytes,
        )
        self.alarms.on_change.append(self._alarmed)
        self.alarms.on_lack = self._note_lack
        self.traffic = Traffic(self.broker, self._tasks)
        self.relay = Relay(self.broker, self.traffic, self.questions)
        self.sessions = Sessions(self.broker, self.traffic, self.relay, self._tasks)
        self.metrics = Metrics(
            self.cluster,
            self.traffic.dispatcher.counts,
            connections=lambda: len(self.clients),
            tallies=tallies,
        )
        self.quotas = VhostQuotas(self.cluster, self.questions, self.metrics.sources.rows)
        observe.append(self.metrics.fsync_seconds.observe)
        bodies = self.bodies = Bodies(self.cluster, self.questions)
        letters = DeadLetters(self.broker, self._tasks, self.metrics, bodies)
        self.traffic.on_dead_letters.append(letters.ready)
        counts = self.traffic.dispatcher.counts
        self.publisher = Publisher(self.cluster, self._tasks, counts, bodies)
        settler = self.settler = Settler(self.cluster, self._tasks, counts)
        transactions = Transactions(self.cluster, self._tasks)
        direct_replies = DirectReplies(self.cluster.node, self.questions)
        self._watch_over()
        self._add_routes(self._http.app)
        # Probes are answered while the log is read, which takes its time.
        await self._http.start()
        await self.cluster.start()
        self._note_beginning()
        self.metrics.watch.follow(logins_failed=self.auth.logins_failed)
        self._tasks.start(self.metrics.watch.run(), name="metrics")
        self.amqp = AmqpServer(
            AmqpServices(
                settings=settings,
                broker=self.broker,
                sessions=self.sessions,
                relay=self.relay,
                publisher=self.publisher,
                bodies=bodies,
                settler=settler,
                transactions=transactions,
                direct_replies=direct_replies,
                auth=self.auth,
                alarms=self.alarms,
                questions=self.questions,
                tasks=self._tasks,
                tallies=tallies,
            ),
            clients=self.clients,
            incarnation=links.incarnation,
            entrance=self._entrance,
            certificates=self.certificates,
        )
        self.backups = Backups(self.cluster, self.questions)
        management = self._management = ManagementRoutes(
            ManagementServices(
                settings=settings,
                broker=self.broker,
                sessions=self.sessions,
                clients=self.clients,
                direct_replies=direct_replies,
                publisher=self.publisher,
                auth=self.auth,
                alarms=self.alarms,
                health=self.health,
                quorum=self.quorum,
                drain=self.drain,
                backups=self.backups,
                local_token=self._local_token,
                questions=self.questions,
                listing=Doors(self.amqp, self._sockets),
                audit=self.audit,
                tallies=tallies,
            )
        )
        self.metrics.sources.process = Process(
            settings=settings,
            alarms=self.alarms,
            amqp=self.amqp,
            sessions=self.sessions,
            capacity=management.observer.capacity,
            cluster_name=lambda: named(self.cluster.catalog_machine, settings.cluster),
        )
        if self.certificates:
            self._tasks.start(self.certificates.watch(), name="certificates")
        self.metrics.sources.kept.append(CertificateExpiry(self.certificates.expiry_s, addresses))
        self._tasks.start(self._first_user.run(), name="first_user")
        self._tasks.start(management.watch(), name="management")
        self._tasks.start(self.relay.run(), name="relay")
        # A fast publisher fills a small volume in less than a period.
        loop = asyncio.get_running_loop()
        self.cluster.log.on_space = lambda: loop.call_soon(self._look_at_space)
        self._care = asyncio.create_task(self._watch(), name="node_care")
        await self.amqp.start()
        self.drain.door = self.amqp
        self._tasks.start(self.catch_up.run(), name="catch_up")
        self._local_token.write(self._http.local_url)
        self.health.listening = True
        log.info("node_started", http=self.http_address, peer=settings.peer, data=settings.data_dir)

    def _note_beginning(self) -> None:
        """What a later reader of the log should know of this process, and of the one before."""
        notes = self.cluster.notes
        notes.settings(settings_told(self.settings))
        last_words = self._folder.last_words()
        if last_words is not None:
            notes.failed(*last_words)
        self._watchdog.on_stall = self._note_stall

    def _note_stall(self, loop_s: float, process_s: float) -> None:
        if not self._stopping:
            notes = self.cluster.notes
            notes.stall(loop_ms=round(loop_s * 1000), process_ms=round(process_s * 1000))

    def _note_lack(self, node: NodeId | None, lack: Lack) -> None:
        self.cluster.notes.alarm(node or self.cluster.node, **lack._asdict())

    def _watch_over(self) -> None:
        """What says how the node is, and what sees to its end."""
        self._watchdog.start()
        patience_s = self.settings.health.catch_up_ms_max / 1000
        catch_up = self.catch_up = CatchUp(self.cluster, self.questions, patience_s=patience_s)
        self.quorum = Quorum(
            self.cluster, self.questions, caught_up=lambda: catch_up.done and self.cluster.sound
        )
        self.health = Health(
            self.cluster,
            alarms=self.alarms,
            watchdog=self._watchdog,
            catch_up=catch_up,
            quorum=self.quorum,
        )
        self.drain = Drain(
            self.cluster,
            self.questions,
            quorum=self.quorum,
            health=self.health,
            sessions=self.sessions,
        )

    def _add_routes(self, app: web.Application) -> None:
        app.middlewares.append(gate(self.health))
        counts, tallies = self.traffic.dispatcher.counts, self.metrics.tallies
        sockets = WebSockets(
            self.broker,
            self.sessions,
            self.auth,
            self.clients,
            tallies,
            self.bodies,
            self.settler,
        )
        self._sockets = sockets
        app.router.add_get("/v1/connect", sockets.connect)
        native = HttpRoutes(self.broker, self.sessions, counts, self.auth, tallies)
        native.add_to(app)
        histories = Histories(self.cluster, self.settings.limits, log_folders(self.settings))
        HistoryRoutes(native, self.broker, self.auth, histories).add_to(app)
        self.health.add_to(app)
        app.router.add_route("*", ManagementRoutes.PATH, self._manage)
        self.metrics.add_to(app)

    async def _manage(self, request: web.Request) -> web.StreamResponse:
        assert self._management is not None, "the gate is closed until there is one"
        return await self._management.serve(request)

    def _alarmed(self) -> None:
        self.broker.ingress.lack = self.alarms.lack
        self.cluster.notes.publishers(self.alarms.blocked)

    def _look_at_space(self) -> None:
        if self._stopping:
            return
        space = self.cluster.log.space()
        if space.refuse_publishes != self.alarms.disk:
            log.warning("disk_space", free_bytes=space.free_bytes, full=space.refuse_publishes)
        self.alarms.sample(disk=space.refuse_publishes)

    async def _watch(self) -> None:
        """Once a second: are there memory and disk, does the archive work, does all still run?"""
        archive_problem: str | None = None
        while True:
            self._look_at_space()
            await self.quotas.sample()
            self.broker.ingress.full_vhosts = self.quotas.full
            self.clients.look()
            self.publisher.forget_idle(asyncio.get_running_loop().time())
            problem = self.cluster.log.cleaner.archive_error
            if problem != archive_problem:
                if problem is not None:
                    log.warning("archive_failed", reason=problem)
                self.cluster.notes.archive(problem)
            archive_problem = problem
            if self.cluster.left and not self.left.done():
                self.left.set_result(None)
            error = self.cluster.failed
            if error is not None and self.failed is not None and not self.failed.done():
                log.critical("node_failed", error=str(error))
                self._folder.leave_word(str(error) or repr(error), self._clock.wall_ns())
                self.failed.set_result(error)
            await asyncio.sleep(CARE_PERIOD_S)

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, *, transfer: bool = True) -> None:
        """Clients go elsewhere, leaderships are handed over, what is in hand is finished, the log
        is closed. Safe at any point of the start.
        """
        if self._stopping:
            return
        self._stopping = True
        deadline = asyncio.get_running_loop().time() + self.settings.stop_ms_max / 1000
        if self._care is not None:
            self._care.cancel()
        if hasattr(self, "drain"):
            log.info("node_stopping", connections=len(self.clients))
            self.health.stopping = True
            self.drain.stop()
            if hasattr(self.cluster, "log"):
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self.drain.empty(transfer=transfer)
            # Also those whom it had no time for.
            self.sessions.stop()
            if hasattr(self, "amqp"):
                await self.amqp.stop()
        self._local_token.remove()
        if hasattr(self, "_http"):
            await self._http.stop()
        await self._tasks.stop()
        if hasattr(self, "cluster") and hasattr(self.cluster, "log"):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline + 5.0):
                    await self.cluster.stop(transfer=transfer)
        if hasattr(self, "auth"):
            self.auth.close()
        self._watchdog.stop()
        self._folder.close()
        log.info("node_stopped")


# --- the process ----------------------------------------------------------------------------------


async def run(settings: Settings, clock: Clock | None = None) -> int:
    """Start, serve until told to stop, stop. The exit status."""
    node = Node(settings, clock=clock)
    await node.start()
    assert node.failed is not None
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def stop(name: str) -> None:
        if not told.done():
            told.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if node.certificates:  # without any, SIGHUP means what it always does
        loop.add_signal_handler(signal.SIGHUP, node.certificates.wake)
    await asyncio.wait({told, node.failed, node.left}, return_when=asyncio.FIRST_COMPLETED)
    broken = node.failed.done()
    if node.left.done():
        log.warning(
            "node_removed",
            node=settings.node,
            reason="it was removed from the cluster, others have what it had: its folder may be"
            " deleted; `quorate node add` lets it in again",
        )
    log.info("stop_asked", why="failure" if broken else told.result() if told.done() else "removed")
    if told.done() and not broken:
        await node.audit.write(
            who=f"({told.result()})", address="", what="stop", target=settings.node, outcome="ok"
        )
        await node.drain.until_others_came_back(loop.time() + settings.stop_ms_max / 1000)
    await node.stop(transfer=not broken)
    if not broken:
        return EXIT_OK
    return EXIT_DATA if isinstance(node.failed.result(), NeedsNewer) else EXIT_FAILED


def main(settings: Settings, *, clock: Clock | None = None) -> int:
    """Run a node in this process until SIGTERM or SIGINT; `clock`: not the machine's own."""
    configure_logs(settings)
    keep_freed_memory()
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
