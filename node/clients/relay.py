"""Consumers whose queue is led by another node: attached there, their deliveries relayed here.

The client's node attaches a consumer to the leader and reports how far its client is; the leader
sends what follows. The client's node notices what is lost on the way (a link that broke, a leader
that changed) and attaches again from where the client was. Nothing is ever resent by guess.

Messages between nodes, each `[-2, kind, ...]`; an attachment is a number of the client's node:
attach, cancel, detach, taken go to the leader; deliver, active, ended, drained, detached come back.
`session_over` goes to every node. Requests to a leader go through `node.peer_rpc`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import structlog

from cluster.cluster_node import BROKER_LEVEL
from cluster.codec.entries import SURGERY_SINCE
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Ranges
from cluster.peers.peer_rpc import numbers
from cluster.peers.peers import PeerState
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId
from node.broker.bodies import packed, unpacked
from node.broker.broker import Broker, Gone
from node.clients.client_session import ClientSession, Subscription
from node.clients.traffic import Traffic
from node.dispatch.outgoing import Active, Delivery, Ended, MessageBatch, Outgoing
from node.dispatch.plan import ConnectionId, Detached, Drained
from node.dispatch.progress import DeliveryProgress
from node.errors import Elsewhere
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

#: How often detached consumers look for their leader.
TICK_S = 0.1
#: A client's node reports that its consumer took so many bytes. Leaders hold back only what is over
#: half of a buffer of at least 64 KiB, so no delivery waits for what was not reported yet.
TAKEN_BYTES_MIN = 16 << 10
#: A leader that has not answered by then is asked again, or the client is told.
ANSWER_S_MAX = 30.0


@dataclass(slots=True, eq=False)
class _RemoteConsumer:
    """A consumer of a client here, served by a leader there."""

    connection: ClientSession
    consumer: Subscription
    leader: NodeId
    unreported_bytes: int = 0  # taken by the client, and not worth a report, or the link was full


class _Served:
    """The other end: a consumer served here for a client there. A sink for the traffic."""

    def __init__(self, relay: Relay, peer: NodeId, attachment: int) -> None:
        self.relay = relay
        self.peer = peer
        self.attachment = attachment
        self.connection = ConnectionId(0)
        self.ref = (QueueId(0), ConsumerKey(0))

    def send(self, frame: Outgoing) -> None:
        match frame:
            case Delivery(_, _, batches, size_bytes):
                self._send("deliver", [packed(batch) for batch in batches], size_bytes)
            case Active(_, _, active, token):
                self._send("active", active, token)
            case Ended(_, _, reason):
                self._send("ended", reason)
                self.relay.stop_serving(self)
            case _:
                pass  # responses go to the requester, not to a consumer

    def _send(self, kind: str, *fields: Any) -> None:
        if not self.relay.send(self.peer, kind, self.attachment, *fields):
            self.relay.stop_serving(self, notify=True)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def detached(self, event: Detached) -> None:
        self.relay.stop_serving(self, notify=True)

    def drained(self, event: Drained) -> None:
        self._send("drained")
        self.relay.stop_serving(self)


class Relay:
    """Both ends, for one node."""

    def __init__(self, broker: Broker, traffic: Traffic, peer_rpc: PeerRpc) -> None:
        self.on_session_over: list[Callable[[GroupId, SessionId, str], None]] = []
        self._broker = broker
        self._cluster = broker.cluster
        self._traffic = traffic
        self._peer_rpc = peer_rpc
        self._numbers = numbers(self._cluster.links.incarnation)
        self._attached: dict[int, _RemoteConsumer] = {}
        self._of_consumer: dict[Subscription, int] = {}
        #: By group and leader, of which there are few: what a tick compares.
        self._attached_at: dict[tuple[GroupId, NodeId], set[int]] = {}
        #: Those attached that a tick looks at one by one: of transient queues, or with bytes to
        #: report.
        self._looked_at: set[int] = set()
        self._detached: dict[Subscription, ClientSession] = {}
        self._served: dict[tuple[NodeId, int], _Served] = {}
        self._to_detach: set[tuple[NodeId, int]] = set()
        self._busy = asyncio.Event()  # there is something that a tick has to look at
        self._cluster.on_node_message.append(self._receive)
        self._cluster.on_link_lost.append(self._link_lost)
        peer_rpc.on("get", self._answer_get)
        peer_rpc.on("queue_info", self._answer_info)

    # --- the client's node ------------------------------------------------------------------------

    def attach(self, connection: ClientSession, consumer: Subscription) -> None:
        """Serve this consumer from wherever its leader is, from now until it is released."""
        self.attach_soon(connection, consumer)
        self._attach_detached(consumer)

    def attach_soon(self, connection: ClientSession, consumer: Subscription) -> None:
        """The same at the next tick: what there is to attach to has just failed."""
        self._detached[consumer] = connection
        self._busy.set()

    def _attach_detached(self, consumer: Subscription) -> None:
        connection = self._detached[consumer]
        leader = self._cluster.leader_of(consumer.info.group)
        if leader is None:
            return
        if leader == self._cluster.node:
            group = self._cluster.group(consumer.info.group)
            if group is not None and group.ready:
                del self._detached[consumer]
                connection.start_delivering(consumer)
            return
        attachment = next(self._numbers)
        info, progress = consumer.info, consumer.progress
        where = [info.group, info.queue, info.name, consumer.key, connection.session]
        how = [progress.mark, list(progress.held), consumer.auto_settle, consumer.active]
        if self.send(leader, "attach", attachment, *where, *how):
            del self._detached[consumer]
            self._attached[attachment] = _RemoteConsumer(connection, consumer, leader)
            self._of_consumer[consumer] = attachment
            self._attached_at.setdefault((info.group, leader), set()).add(attachment)
            if info.node is not None:
                self._looked_at.add(attachment)
            if consumer.cancelled:
                self.cancel(consumer)

    def _detach(self, attachment: int) -> None:
        attached = self._forget(attachment)
        if attached is not None:
            attached.connection.lost(attached.consumer)

    def _forget(self, attachment: int) -> _RemoteConsumer | None:
        """It is attached no more."""
        attached = self._attached.pop(attachment, None)
        if attached is not None:
            del self._of_consumer[attached.consumer]
            place = attached.consumer.info.group, attached.leader
            there = self._attached_at[place]
            there.discard(attachment)
            if not there:
                del self._attached_at[place]
            self._looked_at.discard(attachment)
        return attached

    def cancel(self, consumer: Subscription) -> None:
        attachment = self._of_consumer.get(consumer)
        if attachment is not None:
            attached = self._attached[attachment]
            self.send(attached.leader, "cancel", attachment)

    def taken(self, attachment: int, size_bytes: int) -> None:
        attached = self._attached.get(attachment)
        if attached is not None:
            attached.unreported_bytes += size_bytes
            if attached.unreported_bytes >= TAKEN_BYTES_MIN:
                self._report_taken(attachment, attached)

    def _report_taken(self, attachment: int, attached: _RemoteConsumer) -> None:
        size_bytes = attached.unreported_bytes
        if self.send(attached.leader, "taken", attachment, size_bytes):
            attached.unreported_bytes = 0
        else:
            self._looked_at.add(attachment)

    def release(self, connection: ClientSession) -> None:
        """The client is disconnected: leaders need not serve it any more."""
        for consumer in connection.consumers.values():
            self._detached.pop(consumer, None)
            attachment = self._of_consumer.get(consumer)
            attached = None if attachment is None else self._forget(attachment)
            if attached is not None:
                self.send(attached.leader, "detach", attachment)

    # --- the leader's node ------------------------------------------------------------------------

    def _serve(self, peer: NodeId, attachment: int, fields: list[Any]) -> None:
        group, queue, name, consumer, session, mark, held, auto_settle, active = fields
        served = _Served(self, peer, attachment)
        served.ref = (QueueId(queue), ConsumerKey(consumer))
        try:
            gone = self._broker.gone(GroupId(group), *served.ref, SessionId(session))
        except Elsewhere:
            self._detach_there(peer, attachment)
            return
        if gone is not None:
            link = self._cluster.peers.states.get(peer)
            self._broker.confirm_gone(
                GroupId(group),
                *served.ref,
                SessionId(session),
                lambda why: self._answer_gone(served, link, why),
            )
            return
        served.connection = self._traffic.open(served)
        self._served[peer, attachment] = served
        try:
            self._traffic.announce(
                served.connection,
                GroupId(group),
                served.ref[0],
                name,
                served.ref[1],
                progress=DeliveryProgress(
                    mark, [cast("tuple[int, int, int]", tuple(each)) for each in held]
                ),
                auto_settle=auto_settle,
                active=active,
            )
        except Elsewhere:  # elected, and not up to date yet
            self.stop_serving(served, notify=True)

    def _answer_gone(self, served: _Served, link: PeerState | None, why: Gone | None) -> None:
        if self._cluster.peers.states.get(served.peer) is not link:
            return  # it attaches anew
        if why is None or not self.send(served.peer, "gone", served.attachment, why):
            self._detach_there(served.peer, served.attachment)  # it attaches again

    def stop_serving(self, served: _Served, *, notify: bool = False) -> None:
        """Stop serving; `notify`: until its node knows, since it would wait for ever."""
        if self._served.pop((served.peer, served.attachment), None) is None:
            return
        self._traffic.close(served.connection)
        if notify:
            self._detach_there(served.peer, served.attachment)

    def _detach_there(self, peer: NodeId, attachment: int) -> None:
        """From the next tick on, until its node has heard it."""
        self._to_detach.add((peer, attachment))
        self._busy.set()

    # --- questions --------------------------------------------------------------------------------

    async def get(
        self,
        info: QueueInfo,
        session: SessionId,
        *,
        count: int,
        auto_settle: bool,
        positions: Ranges = (),
        lost_after: ConsumerKey | None = None,
    ) -> tuple[ConsumerKey, int, list[MessageBatch]]:
        """See `Broker.get`."""
        # Nodes of a former release know neither.
        named: list[Any] = []
        if self._cluster.catalog_machine.version < SURGERY_SINCE:
            lost_after = None
        if positions or lost_after is not None:
            named.append([list(each) for each in positions])
        if lost_after is not None:
            named.append(lost_after)
        key, ready, batches = await self._ask(info, "get", session, count, auto_settle, *named)
        return ConsumerKey(key), ready, [unpacked(batch) for batch in batches]

    async def info(self, info: QueueInfo) -> dict[str, Any]:
        return await self._ask(info, "queue_info")

    async def _ask(self, info: QueueInfo, kind: str, *fields: Any) -> Any:
        leader = self._cluster.leader_of(info.group)
        if leader is None:
            raise Elsewhere(None)
        where = (info.vhost, info.name)
        return await self._peer_rpc.request(leader, kind, *where, *fields, wait_s=ANSWER_S_MAX)

    async def _answer_get(self, _: NodeId, fields: list[Any]) -> Any:
        vhost, name, session, count, auto_settle, *named = fields
        info = await self._broker.find(vhost, name)
        key, ready, batches = await self._broker.get(
            info,
            SessionId(session),
            count=count,
            auto_settle=auto_settle,
            positions=[(first, last) for first, last in named[0]] if named else (),
            in_parts=True,
            lost_after=ConsumerKey(named[1]) if len(named) > 1 else None,
        )
        return [key, ready, [packed(batch) for batch in batches]]

    async def _answer_info(self, _: NodeId, fields: list[Any]) -> Any:
        vhost, name = fields
        return await self._broker.info(await self._broker.find(vhost, name))

    # --- both ends --------------------------------------------------------------------------------

    def send(self, peer: NodeId, kind: str, *fields: Any) -> bool:
        """False when it surely does not arrive."""
        if not self._cluster.peers.is_up(peer):
            return False
        return self._cluster.send(peer, [BROKER_LEVEL, kind, *fields])

    def notify_session_over(self, group: GroupId, session: SessionId, reason: str) -> None:
        for peer in list(self._cluster.peers.states):
            if peer != self._cluster.node:
                self.send(peer, "session_over", group, session, reason)

    def _link_lost(self, peer: NodeId) -> None:
        """What went on over it has ended: messages may be lost, and its process another one."""
        for served in list(self._served.values()):
            if served.peer == peer:
                self.stop_serving(served)
        self._to_detach = {each for each in self._to_detach if each[0] != peer}
        for (_, leader), attachments in list(self._attached_at.items()):
            if leader == peer:
                for attachment in sorted(attachments):
                    self._detach(attachment)

    def _receive(self, peer: NodeId, message: list[Any]) -> None:
        """From the broker layer of another node; its malformed messages are its bug, not ours."""
        match message[1:]:
            case ["deliver", int(attachment), rows, int(size_bytes)]:
                self._deliver(attachment, rows, size_bytes)
            case ["active", int(attachment), bool(active), int(token)]:
                attached = self._attached.get(attachment)
                if attached is not None:
                    consumer = attached.consumer
                    consumer.active = active
                    frame = Active(consumer.info.name, consumer.key, active, token)
                    attached.connection.send(frame)
            case ["ended", int(attachment), str(reason)]:
                self._end(attachment, reason)
            case ["gone", int(attachment), str(why)]:
                self._gone(attachment, cast("Gone", why))
            case ["drained", int(attachment)]:
                self._end(attachment, None)
            case ["detached", int(attachment)]:
                self._detach(attachment)
            case ["attach", int(attachment), *fields] if len(fields) == 9:
                self._serve(peer, attachment, fields)
            case ["taken", int(attachment), int(size_bytes)]:
                served = self._served.get((peer, attachment))
                if served is not None:
                    self._traffic.taken(served.connection, size_bytes)
            case ["cancel", int(attachment)]:
                served = self._served.get((peer, attachment))
                if served is not None:
                    self._traffic.cancelled(*served.ref)
            case ["detach", int(attachment)]:
                served = self._served.get((peer, attachment))
                if served is not None:
                    self.stop_serving(served)
            case ["session_over", int(group), str(session), str(reason)]:
                for listener in self.on_session_over:
                    listener(GroupId(group), SessionId(session), reason)
            case ["tell" | "ask" | "told", *_]:
                pass  # see node.peer_rpc
            case _:
                log.warning("node_message_unknown", peer=peer, kind=str(message[1:2])[:40])

    def _deliver(self, attachment: int, rows: list[list[Any]], size_bytes: int) -> None:
        attached = self._attached.get(attachment)
        if attached is None:
            return  # it was attached anew since: the same messages come, or came, that way
        batches = [unpacked(row) for row in rows]
        consumer = attached.consumer
        for batch in batches:
            consumer.progress.add(batch)
        frame = Delivery(consumer.info.name, consumer.key, batches, size_bytes, attachment)
        attached.connection.send(frame)

    def _gone(self, attachment: int, why: Gone) -> None:
        attached = self._forget(attachment)
        if attached is not None:
            self.gone(attached.connection, attached.consumer, why)

    def gone(self, connection: ClientSession, consumer: Subscription, why: Gone) -> None:
        """A group ended it while this node could not hear of that."""
        if why == "session_over":
            for listener in self.on_session_over:
                listener(consumer.info.group, connection.session, "lost")
        else:
            reason = "queue_deleted" if why == "queue_deleted" else None
            self._report_ended(connection, consumer, reason)

    def _end(self, attachment: int, reason: str | None) -> None:
        attached = self._forget(attachment)
        if attached is not None:
            self._report_ended(attached.connection, attached.consumer, reason)

    def _report_ended(
        self, connection: ClientSession, consumer: Subscription, reason: str | None
    ) -> None:
        connection.ended(consumer.info.queue, consumer.key)
        if reason is not None:
            connection.send(Ended(consumer.info.name, consumer.key, reason))

    # --- time -------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._busy.wait()
            await asyncio.sleep(TICK_S)
            self.tick()
            if not (self._attached or self._detached or self._to_detach):
                self._busy.clear()

    def tick(self) -> None:
        """Find what a change of leader or a lost message left behind."""
        for attachment in sorted(self._looked_at):
            attached = self._attached.get(attachment)
            if attached is None:
                continue
            if self._is_over(attached.consumer):
                self._end(attachment, "queue_deleted")
                continue
            if attached.consumer.info.node is None:
                self._looked_at.discard(attachment)
            if attached.unreported_bytes:
                self._report_taken(attachment, attached)
        for (group, leader), attachments in list(self._attached_at.items()):
            if self._cluster.leader_of(group) not in {leader, None}:
                for attachment in sorted(attachments):
                    self._detach(attachment)
        for peer, attachment in sorted(self._to_detach):
            if self.send(peer, "detached", attachment):
                self._to_detach.discard((peer, attachment))
        for consumer, connection in list(self._detached.items()):
            if self._is_over(consumer):
                del self._detached[consumer]
                self._report_ended(connection, consumer, "queue_deleted")
            else:
                self._attach_detached(consumer)

    def _is_over(self, consumer: Subscription) -> bool:
        """A transient queue went with its node, which tells nobody."""
        info = consumer.info
        if info.node is None:
            return False
        return self._cluster.catalog_machine.queue_by_id(info.queue) is None
