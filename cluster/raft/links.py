"""One authenticated connection to every other node, over TCP: the Links seam in production.

Of two nodes the one with the smaller id dials, so there is one connection for a pair. When a peer
comes back (a new process, or one that gave the old connection up), the new connection takes the
place of the old: down, then up. Names are resolved at every attempt: a restarted peer may have a
new address.

A peer is *up* once both ends have proven who they are (see `link_auth` for what a cluster secret
does and does not protect; TLS when frames must be secret). It is down as *closed* when its kernel,
or a firewall, ended the connection (end of stream, reset, refused), and as *silent* when nothing
was heard for `link_timeout_ms`, pings included. Both may be alive. It is *gone* when it said so as
it stopped, when a later process of it connects, or when every attempt to reach it was refused for
`gone_after_s`; of two nodes the one that does not dial looks whether the other refuses, too.
A node that gives up a connection to a living peer says so first, so that it is not taken for dead
itself.
"""

from __future__ import annotations

import asyncio
import random as random_module
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from cluster.codec.cbor import pack
from cluster.machine.versions import newest_machine
from cluster.raft.link_auth import (
    LINK_VERSIONS,
    LinkHandshake,
    LinkIdentity,
    LinkRefused,
    names_match,
)
from cluster.raft.link_peer import LinkPeer, RefusalLog, host_and_port
from cluster.raft.link_protocol import (
    LINK_FRAME_BYTES_MAX,
    ClockSample,
    LinkConnection,
)
from cluster.raft.link_tls import TlsConfig, secured
from cluster.seams import (
    GONE_AFTER_S,
    LINK_TIMEOUT_MS,
    Clock,
    Down,
    OnDown,
    OnMessage,
    OnUp,
)
from cluster.turns import until_turn
from cluster.types import NodeId

__all__ = ["LINK_BYTES_MAX", "LINK_FRAME_BYTES_MAX", "ClockSample", "TcpLinks", "TlsConfig"]

#: Unsent bytes towards one peer. Over it messages are dropped: the peer catches up from the log.
LINK_BYTES_MAX = 64 << 20
#: Connections that have not yet proven anything.
HANDSHAKES_MAX = 64
RECONNECT_S_MIN = 0.05
RECONNECT_S_MAX = 1.0
#: How often a node that waits to be dialed looks whether the port of the other is refused.
PROBE_S = 1.0
#: A node that waits to be dialed for so long, while the other is there, calls it.
CALL_S = 5.0
CLOCK_SAMPLE_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class TcpLinks:
    """Links of one node. `peers` maps node ids to "host:port"; the own id among them is ignored."""

    def __init__(
        self,
        node: NodeId,
        cluster: str,
        incarnation: int,
        bind: str,
        peers: Mapping[NodeId, str],
        *,
        secret: bytes | None,
        tls: TlsConfig | None,
        clock: Clock,
        random: random_module.Random,
        link_timeout_ms: int = LINK_TIMEOUT_MS,
        gone_after_s: float = GONE_AFTER_S,
        link_bytes_max: int = LINK_BYTES_MAX,
        versions: str = "",
        previous_secret: bytes | None = None,
    ) -> None:
        if not secret and tls is None:
            raise ValueError(
                "links need a cluster secret or TLS: without either anybody could join the cluster"
            )
        self.node = node
        self.incarnation = incarnation
        self.clock_samples: dict[NodeId, ClockSample] = {}
        #: Called with a clock sample of a peer about once a second: for the log's notes.
        self.on_clock: Callable[[ClockSample], None] | None = None
        self.on_unknown_peer: Callable[[NodeId, int], bool] = lambda _node, _incarnation: False
        self._me = LinkIdentity(node, cluster, incarnation, LINK_VERSIONS, versions)
        #: Set by the node: the machine version that a peer must be able to run.
        self.machine_version: Callable[[], int] = lambda: 1
        self._bind = host_and_port(bind)
        self._secret = secret or None
        self._previous_secret = (previous_secret or None) if secret else None
        self.tls = tls  # another one is for connections from then on
        self._clock = clock
        self._random = random
        self._timeout_s = link_timeout_ms / 1e3
        self._gone_after_s = gone_after_s
        self._bytes_max = link_bytes_max
        self._peers: dict[NodeId, LinkPeer] = {}
        self._dirty: dict[LinkPeer, None] = {}
        #: Since the last flush, by identity: what goes to several peers is encoded once.
        self._packed: dict[int, tuple[list[Any], bytes]] = {}
        self._shaking: dict[LinkConnection, asyncio.TimerHandle] = {}
        self._securing: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog()
        self._server: asyncio.Server | None = None
        self._care: asyncio.TimerHandle | None = None
        self._cared_s = 0.0
        self._running = False
        for peer, address in sorted(peers.items()):
            if peer != node:
                self._peers[peer] = LinkPeer(peer, *host_and_port(address))

    # --- the seam ---------------------------------------------------------------------------------

    def peers(self) -> list[NodeId]:
        return sorted(node for node, peer in self._peers.items() if not peer.unknown)

    async def start(self, on_message: OnMessage, on_up: OnUp, on_down: OnDown) -> None:
        self._on_message, self._on_up, self._on_down = on_message, on_up, on_down
        self._loop = asyncio.get_running_loop()
        host, port = self._bind
        self._server = await self._loop.create_server(
            lambda: LinkConnection(self, self._clock, accepted=True), host or None, port
        )
        self._running = True
        self._cared_s = self._loop.time()
        self._care = self._loop.call_later(self._timeout_s / 4, self._take_care)
        for peer in self._peers.values():
            self._start_dialing(peer)

    async def stop(self) -> None:
        """Say goodbye to all. No callback comes any more."""
        self._running = False
        if self._care is not None:
            self._care.cancel()
        if self._server is not None:
            self._server.close()
        tasks = [peer.dialer for peer in self._peers.values() if peer.dialer is not None]
        tasks += self._securing
        for task in tasks:
            task.cancel()
        for connection in list(self._shaking):
            self._shaken(connection)
            connection.abort()
        closing: list[LinkConnection] = []
        for peer in self._peers.values():
            if peer.connection is not None:
                self._flush(peer)
                peer.connection.close(gone=True)
                closing.append(peer.connection)
                peer.connection = None
        for connection in closing:
            await connection.finished.wait()  # it is aborted after CLOSE_S_MAX
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        state = self._peers.get(peer)
        if state is None or state.connection is None:
            return False
        packed = self._packed.get(id(message))
        if packed is None:
            packed = self._packed[id(message)] = (message, pack(message))
        data = packed[1]
        size = len(data)
        unsent = state.queued_bytes + state.connection.buffered()
        if size > LINK_FRAME_BYTES_MAX - 16 or unsent + size > self._bytes_max:
            state.dropped += 1
            return False
        state.queue.append(data)
        state.queued_bytes += size
        self._dirty[state] = None
        return True

    def flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._packed.clear()
        for peer in dirty:
            self._flush(peer)

    def connected(self, peer: NodeId) -> bool:
        state = self._peers.get(peer)
        return state is not None and state.connection is not None

    def buffered(self, peer: NodeId) -> int:
        state = self._peers.get(peer)
        if state is None or state.connection is None:
            return 0
        return state.queued_bytes + state.connection.buffered()

    def version(self, peer: NodeId) -> int:
        state = self._peers.get(peer)
        return 0 if state is None or state.connection is None else state.connection.version

    # --- beyond the seam --------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Where it listens: what the system chose, when it was bound to port 0."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    def dropped(self, peer: NodeId) -> int:
        """Messages not sent because too much was unsent already."""
        state = self._peers.get(peer)
        return 0 if state is None else state.dropped

    def add_peer(self, peer: NodeId, address: str) -> None:
        """A node joins, or its address changes (which takes effect at the next attempt)."""
        if peer == self.node:
            return
        host, port = host_and_port(address)
        known = self._peers.get(peer)
        if known is not None and not known.unknown:
            known.host, known.port = host, port
            return
        self.remove_peer(peer)
        self._peers[peer] = state = LinkPeer(peer, host, port)
        if self._running:
            self._start_dialing(state)

    def renumber(self, incarnation: int) -> None:
        """By a higher number from now on: the others see another process of this node."""
        self.incarnation = incarnation
        self._me = replace(self._me, incarnation=incarnation)
        for connection in list(self._shaking):
            connection.abort()
        for peer in list(self._peers.values()):
            if peer.connection is not None:
                peer.connection.close(gone=False)
                self._disconnect(peer, Down.SILENT)

    def remove_peer(self, peer: NodeId) -> None:
        """A node left for good: its connection ends, and it is not let in again."""
        state = self._peers.pop(peer, None)
        if state is None:
            return
        if state.dialer is not None:
            state.dialer.cancel()
        if state.connection is not None:
            state.connection.close(gone=False)
            self._disconnect(state, Down.SILENT)
        self.clock_samples.pop(peer, None)

    # --- dialing ----------------------------------------------------------------------------------

    def _start_dialing(self, peer: LinkPeer) -> None:
        dials = self.node < peer.node
        work = self._keep_connected(peer) if dials else self._probe_when_down(peer)
        peer.dialer = asyncio.create_task(work, name=f"dial {peer.node}")

    async def _probe_when_down(self, peer: LinkPeer) -> None:
        """It dials us. While it does not, is there anybody? We call when it does not for long: it
        may not know us any more, and says so then.
        """
        called_s = self._loop.time()
        while True:
            await asyncio.sleep(PROBE_S)
            if peer.connection is not None:
                peer.down.clear()
                await peer.down.wait()
                called_s = self._loop.time()
                continue
            if self._loop.time() - called_s >= CALL_S:
                called_s = self._loop.time()
                await self._dial_safely(peer)
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    made = self._loop.create_connection(asyncio.Protocol, peer.host, peer.port)
                    transport, _ = await made
                transport.abort()
                peer.refused_since_s = None
            except (OSError, UnicodeError) as error:
                self._dial_failed(peer, error)

    async def _keep_connected(self, peer: LinkPeer) -> None:
        delay_s = RECONNECT_S_MIN
        while True:
            began_s = self._loop.time()
            peer.down.clear()
            await self._dial_safely(peer)
            if peer.connection is not None:
                await peer.down.wait()
            was_up = peer.up_since_s >= began_s
            if was_up and self._loop.time() - peer.up_since_s >= RECONNECT_S_MAX:
                delay_s = RECONNECT_S_MIN
            await asyncio.sleep(delay_s * (0.5 + 0.5 * self._random.random()))
            delay_s = min(2 * delay_s, RECONNECT_S_MAX)

    async def _dial_safely(self, peer: LinkPeer) -> None:
        try:
            await self._dial(peer)
        except Exception:
            # Whatever it was, this node must not stay cut off from its peer for ever.
            log.exception("dial_failed", peer=peer.node)

    async def _dial(self, peer: LinkPeer) -> None:
        """One attempt; when it returns the peer is connected, or not."""
        made: list[LinkConnection] = []

        def factory() -> LinkConnection:
            made.append(LinkConnection(self, self._clock, accepted=False))
            return made[-1]

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._loop.create_connection(factory, peer.host, peer.port)
                peer.refused_since_s = None
                connection = made[-1]
                await self._secure(connection, dialing=peer)
            await connection.settled.wait()
            # The first release insists on its own form of a hello.
            peer.by_previous = (
                connection.refusal_code == "peer_says_wrong_secret" and not peer.by_previous
            )
            peer.plain = connection.refusal_code == "peer_says_protocol_version" and not peer.plain
        except (OSError, UnicodeError) as error:  # also time, TLS and names that cannot be
            self._dial_failed(peer, error)
        finally:
            for connection in made:
                if connection is not peer.connection:
                    connection.abort()
                    self._shaken(connection)

    def _dial_failed(self, peer: LinkPeer, error: Exception) -> None:
        code = "tls" if isinstance(error, ssl.SSLError) else "cannot_connect"
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        address = f"{peer.host}:{peer.port}"
        self._refusals.write("link_failed", address, LinkRefused(code, reason), self._loop.time())
        if peer.connection is not None:
            return
        if not isinstance(error, ConnectionRefusedError):
            peer.refused_since_s = None
            return
        now_s = self._loop.time()
        if peer.refused_since_s is None:
            peer.refused_since_s = now_s
        if now_s - peer.refused_since_s >= self._gone_after_s:
            self._report_down(peer, Down.GONE)
        elif peer.reported in ("nothing", Down.SILENT):
            self._report_down(peer, Down.CLOSED)

    def _report_down(self, peer: LinkPeer, down: Down) -> None:
        if self._running and peer.reported is not down:
            peer.reported = down
            log.info("link_down", peer=peer.node, why=down.value)
            self._on_down(peer.node, down)

    # --- connections to be ------------------------------------------------------------------------

    def accepted(self, connection: LinkConnection, transport: asyncio.Transport) -> None:
        if not self._running:
            connection.abort()
        elif len(self._shaking) + len(self._securing) >= HANDSHAKES_MAX:
            connection.abort()
            reason = f"{HANDSHAKES_MAX} connections are in their handshake already"
            self.refused(connection, LinkRefused("too_many", reason))
        elif self.tls is None:
            self._shake(connection, transport, None)
        else:
            transport.pause_reading()  # or the TLS hello would reach us as a frame
            task = asyncio.create_task(self._secure_accepted(connection))
            self._securing.add(task)
            task.add_done_callback(self._securing.discard)

    async def _secure_accepted(self, connection: LinkConnection) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._secure(connection, dialing=None)
        except OSError as error:
            connection.abort()
            if isinstance(error, ConnectionError):
                return  # it only looked whether there is anybody
            slow = isinstance(error, TimeoutError)
            reason = "its TLS handshake took too long" if slow else f"TLS failed: {error}"
            self.refused(connection, LinkRefused("slow_handshake" if slow else "tls", reason))

    async def _secure(self, connection: LinkConnection, *, dialing: LinkPeer | None) -> None:
        """TLS, where it is asked for, and then the handshake begins."""
        transport = connection.transport_plain
        assert transport is not None
        if self.tls is not None:
            host = None if dialing is None else dialing.host
            transport = await secured(transport, connection, self.tls, dialed_host=host)
        self._shake(connection, transport, dialing)

    def _shake(
        self, connection: LinkConnection, transport: asyncio.Transport, dialing: LinkPeer | None
    ) -> None:
        if connection.closed:
            raise ConnectionResetError("it hung up before the handshake")
        certificate = None
        if self.tls is not None:
            certificate = transport.get_extra_info("ssl_object").getpeercert()

        def admit(peer: LinkIdentity) -> None:
            known = self._peers.get(peer.node)
            stays = False
            if known is None or known.unknown:
                # A certificate alone says which host it is, not that it is one of this cluster.
                stays = (
                    self.on_unknown_peer(peer.node, peer.incarnation) and self._secret is not None
                )
            connection.unknown = stays and dialing is None
            if not connection.unknown:
                self._admit(peer.node, certificate, dialing=dialing is not None)
            self._check_machine(peer)

        secret, previous = self._secret, self._previous_secret
        if dialing is not None:
            secret = (previous if dialing.by_previous else None) or secret
            previous = None
        handshake = LinkHandshake(
            self._me,
            secret=secret,
            previous=previous,
            dialing=None if dialing is None else dialing.node,
            admit=admit,
            plain=dialing is not None and dialing.plain and LINK_VERSIONS[0] == 1,
        )
        slow = LinkRefused("slow_handshake", "it did not finish the handshake in time")
        self._shaking[connection] = self._loop.call_later(self._timeout_s, connection.refuse, slow)
        connection.begin(transport, handshake)

    def _admit(self, node: NodeId, certificate: Any, *, dialing: bool) -> None:
        peer = self._peers.get(node)
        if peer is None or peer.unknown:
            raise LinkRefused("unknown_node", f"{node[:80]!r} is not let in by `quorate node add`")
        if not dialing and self.node < node:
            reason = f"node {node!r} called, but of the two {self.node!r} is the one that calls"
            raise LinkRefused("wrong_direction", reason)
        if self.tls is not None and not names_match(certificate, (node, peer.host)):
            raise LinkRefused(
                "wrong_certificate",
                f"its certificate is neither for {node!r} nor for {peer.host!r}",
            )

    def _check_machine(self, peer: LinkIdentity) -> None:
        """A release that cannot run what the cluster has become does not come in."""
        needed, newest = self.machine_version(), newest_machine(peer.versions)
        if newest < needed:
            raise LinkRefused(
                "machine_version",
                f"node {peer.node} runs machine version {newest} at most, the cluster has"
                f" {needed}: start the newer release there",
            )

    def _shaken(self, connection: LinkConnection) -> None:
        timer = self._shaking.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.settled.set()

    # --- what connections tell --------------------------------------------------------------------

    def proven(self, connection: LinkConnection) -> None:
        self._shaken(connection)
        node = connection.peer
        peer = None if node is None else self._peers.get(node)
        if node is not None and peer is None and connection.unknown:
            peer = LinkPeer(node, "", 0, unknown=True)
        if peer is None or not self._running:
            connection.abort()
            return
        old = peer.connection
        if old is not None:
            if connection.incarnation < old.incarnation:
                reason = f"a newer process of node {peer.node!r} is connected"
                raise LinkRefused("old_incarnation", reason)
            old.close(gone=False)
            later = connection.incarnation > old.incarnation
            self._disconnect(peer, Down.GONE if later else Down.SILENT)
        self._peers[peer.node] = peer
        peer.connection = connection
        peer.up_since_s = self._loop.time()
        peer.reported = "up"
        peer.refused_since_s = None
        about = {"address": connection.address, "incarnation": connection.incarnation}
        log.info("link_up", peer=peer.node, **about)
        connection.ping()
        self._on_up(peer.node, connection.incarnation)

    def messages(self, connection: LinkConnection, messages: Sequence[list[Any]]) -> None:
        peer = connection.peer
        assert peer is not None
        on_message = self._on_message
        for message in messages:
            if connection.closed:
                return
            try:
                on_message(peer, message)
            except Exception:
                # A bug behind one message must not look like a dead peer.
                log.exception("link_message_failed", peer=peer, kind=str(message[:2])[:80])
                # A message was lost, so order is broken: both sides must see that.
                connection.close(gone=False)
                self.lost(connection, Down.SILENT)
        if self._dirty:
            self.flush()

    def sampled(self, connection: LinkConnection, sample: ClockSample) -> None:
        peer = self._peers.get(sample.peer)
        if peer is None or peer.connection is not connection:
            return
        self.clock_samples[sample.peer] = sample
        now_s = self._loop.time()
        if self.on_clock is not None and now_s - peer.sampled_s >= CLOCK_SAMPLE_S:
            peer.sampled_s = now_s
            self.on_clock(sample)

    def refused(self, connection: LinkConnection, error: LinkRefused) -> None:
        self._shaken(connection)
        self._refusals.write("link_refused", connection.address, error, self._loop.time())
        self.lost(connection, Down.SILENT)

    def lost(self, connection: LinkConnection, down: Down) -> None:
        if connection in self._shaking:
            self._shaken(connection)
            if not connection.spoke and connection.accepted:
                return  # it only looked whether there is anybody
            hung_up = LinkRefused("hung_up", "it hung up during the handshake")
            self._refusals.write("link_refused", connection.address, hung_up, self._loop.time())
        node = connection.peer
        peer = None if node is None else self._peers.get(node)
        if peer is not None and peer.connection is connection:
            self._disconnect(peer, down)

    def _disconnect(self, peer: LinkPeer, down: Down) -> None:
        peer.connection = None
        peer.queue.clear()
        peer.queued_bytes = 0
        self._dirty.pop(peer, None)
        peer.down.set()
        if peer.unknown:
            self._peers.pop(peer.node, None)
            self.clock_samples.pop(peer.node, None)
        self._report_down(peer, down)

    # --- the rest ---------------------------------------------------------------------------------

    def _flush(self, peer: LinkPeer) -> None:
        if peer.connection is not None and peer.queue:
            queue, peer.queue = peer.queue, []
            peer.queued_bytes = 0
            peer.connection.write_messages(queue)

    def _take_care(self) -> None:
        """At least four times in a timeout: give up who was not heard for all of it, ping who was
        not heard since the last time. Heartbeats are heard several times a second; with them a ping
        a second compares the clocks.
        """
        period_s = self._timeout_s / 4
        now_s = self._loop.time()
        # This process itself stood still: what the others sent meanwhile was not even read yet.
        was_away = now_s - self._cared_s > 2 * period_s
        self._cared_s = now_s
        self._care = self._loop.call_later(until_turn(self._clock, period_s), self._take_care)
        for peer in list(self._peers.values()):
            connection = peer.connection
            if connection is None:
                continue
            if was_away:
                connection.heard_s = now_s
            if now_s - connection.heard_s > self._timeout_s:
                connection.close(gone=False)
                self._disconnect(peer, Down.SILENT)
            elif now_s - connection.heard_s > period_s or now_s - peer.pinged_s >= CLOCK_SAMPLE_S:
                peer.pinged_s = now_s
                connection.ping()
