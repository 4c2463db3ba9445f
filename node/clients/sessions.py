"""Clients attached to this node, by session, and what happens when a connection is lost.

A session may have one connection to each of several nodes; at one node a newer connection takes
over from an older one. In a group the session lives at the node that opened it there last.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from dataclasses import replace
from urllib.parse import quote

import structlog

from cluster.groups.outcome import NOT_UPGRADED, decided
from cluster.machine.commands import CloseSession, DetachSession, OpenSession
from cluster.types import GroupId, SessionId
from node.broker.broker import Broker
from node.broker.ingress import check_name
from node.clients.client_session import ClientSession, ClientTransport
from node.clients.relay import Relay
from node.clients.traffic import Traffic
from node.errors import Refused, reply_of
from node.tasks import Tasks

log = structlog.get_logger(__name__)


def name_of(session: SessionId) -> str:
    """What the user calls it."""
    return session.partition("/")[2]


class Sessions:
    """All clients of this node, by session."""

    def __init__(self, broker: Broker, traffic: Traffic, relay: Relay, tasks: Tasks) -> None:
        self._broker = broker
        self._traffic = traffic
        self._relay = relay
        self._tasks = tasks
        self._clients: dict[SessionId, ClientSession] = {}
        self._counted: set[SessionId] = set()  # without the channels of other connections
        self._resumable: dict[SessionId, float] = {}  # detached here: until, loop time
        self._leases: dict[SessionId, asyncio.TimerHandle] = {}
        self._stopping = False
        traffic.on_session_over.append(self._session_over)
        relay.on_session_over.append(self._ended)

    def __len__(self) -> int:
        return len(self._counted)

    @property
    def clients(self) -> list[ClientSession]:
        return list(self._clients.values())

    def connect(
        self,
        peer: ClientTransport,
        *,
        session: str | None,
        resume_ms: int,
        vhost: str,
        forward: bool,
        user: str = "",
        counted: bool = True,
    ) -> tuple[ClientSession, bool]:
        """A connection, and whether its session was known here. Refused when there are too many.

        What two users call by one name are two sessions: names can be seen and guessed.
        Not `counted`: a channel of a connection that was.
        """
        limits = self._broker.limits
        if self._stopping:
            raise Refused("stopping", "this node is stopping: connect to another one")
        check_name(vhost, "vhost")
        if session is None:
            session = secrets.token_hex(16)
        else:
            check_name(session, "session")
        if resume_ms > limits.resume_ms_max:
            raise Refused("bad_argument", f"resume_ms may be at most {limits.resume_ms_max}")
        key = SessionId(f"{quote(user, safe='')}/{session}" if user else session)
        older = self._clients.get(key)
        if older is None and counted and len(self) >= limits.connections_max:
            raise Refused("too_many_connections", f"this node takes {limits.connections_max}")
        until = self._resumable.pop(key, 0.0)
        resumed = older is not None or until > asyncio.get_running_loop().time()
        if older is not None:
            self._release(older)
            older.peer.close("taken_over", "a newer connection has this session")
        client = ClientSession(
            peer,
            key,
            broker=self._broker,
            traffic=self._traffic,
            relay=self._relay,
            tasks=self._tasks,
            resume_ms=resume_ms,
            vhost=vhost,
            forward=forward,
        )
        if older is not None:
            client.take_over(older)
        self._clients[key] = client
        if counted:
            self._counted.add(key)
        return client, resumed

    def disconnect(self, client: ClientSession, *, goodbye: bool) -> None:
        """The connection is over: said goodbye, or lost. Idempotent."""
        if self._clients.get(client.session) is not client:
            return
        del self._clients[client.session]
        self._counted.discard(client.session)
        self._release(client)
        groups = client.groups | client.moved_groups
        if not goodbye and client.resume_ms > 0:
            self._forget_old()
            until = asyncio.get_running_loop().time() + client.resume_ms / 1000
            self._resumable[client.session] = until
        cluster = self._broker.cluster
        node, incarnation = cluster.node, cluster.links.incarnation
        for group in sorted(groups):
            handed = client.handed_in(group)
            if goodbye and group in client.groups:
                command = CloseSession(client.session, handed)
            else:  # does nothing where the session lives at another node by now
                command = DetachSession(client.session, node, incarnation, handed)
            work = self._propose_end(group, client.session, command)
            self._tasks.start(work, name="end_session")

    def _release(self, client: ClientSession) -> None:
        client.closed = True
        self._traffic.close(client.id)
        self._relay.release(client)

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._resumable:
            session = next(iter(self._resumable))
            if self._resumable[session] > now and len(self._resumable) < 100_000:
                return
            del self._resumable[session]

    async def _propose_end(
        self, group: GroupId, session: SessionId, command: CloseSession | DetachSession
    ) -> None:
        """Until the group has heard it, or the session is back: then it hears when that is over."""
        cluster = self._broker.cluster

        def unwanted() -> bool:
            lost = cluster.transient.is_lost(group, cluster.catalog_machine)
            return lost or session in self._clients

        heard = False
        for known in (command, replace(command, handed=None)):  # for a group of a former release
            if unwanted():
                break
            outcome = await cluster.retries.ask(group, known, within_s=math.inf, unwanted=unwanted)
            heard = decided(outcome)
            if outcome.code != NOT_UPGRADED:
                break
        back = self._clients.get(session)
        if back is not None and not heard:
            back.moved_groups.add(group)

    # --- sessions of one-off calls ----------------------------------------------------------------

    async def lend(self, group: GroupId, lease_ms: int) -> SessionId:
        """A session for one receive: what it takes and does not settle in time is returned."""
        cluster = self._broker.cluster
        session = SessionId(f"lease-{secrets.token_hex(16)}")
        incarnation = cluster.links.incarnation
        reply_of(await cluster.ask(group, OpenSession(session, cluster.node, incarnation)))
        loop = asyncio.get_running_loop()
        self._leases[session] = loop.call_later(lease_ms / 1000, self.take_back, group, session)
        return session

    def extend_lease(self, group: GroupId, session: SessionId, lease_ms: int) -> None:
        """It ends so long from now. Refused: it was not lent here, or is over."""
        timer = self._leases.get(session)
        if timer is None:
            raise Refused(
                "no_session",
                "there is no such lease at this node: it is over, or the node that gave the"
                " messages leads the queue no more",
            )
        timer.cancel()
        loop = asyncio.get_running_loop()
        self._leases[session] = loop.call_later(lease_ms / 1000, self.take_back, group, session)

    def take_back(self, group: GroupId, session: SessionId) -> None:
        """The lease is over."""
        timer = self._leases.pop(session, None)
        if timer is not None:
            timer.cancel()
            self._tasks.start(
                self._propose_end(group, session, CloseSession(session)), name="lease_over"
            )

    # --- sessions that the cluster ends -----------------------------------------------------------

    def _session_over(self, group: GroupId, session: SessionId, reason: str) -> None:
        """A group that this node leads tells: whichever node has the session must hear."""
        self._relay.notify_session_over(group, session, reason)
        self._ended(group, session, reason)

    def _ended(self, group: GroupId, session: SessionId, reason: str) -> None:
        client = self._clients.get(session)
        # A connection that has not opened the session there is a later one than what has ended.
        if client is None or group not in client.groups or reason == "closed":
            return
        log.info("session_ended", session=session, reason=reason)
        client.groups.discard(group)
        self.disconnect(client, goodbye=True)
        client.peer.close("session_ended", f"the session was ended: {reason}")

    # --- the end ----------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """No new connections, and nothing more is read from the open ones: what is in hand ends."""
        self._stopping = True
        for client in self.clients:
            client.stop_reading()

    def open(self) -> None:
        """Connections may come again."""
        self._stopping = False

    def stop(self) -> None:
        """The open connections are told to go elsewhere."""
        for client in self.clients:
            client.peer.close("stopping", "this node is stopping: connect to another one")
