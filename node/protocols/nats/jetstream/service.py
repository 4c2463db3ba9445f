"""JetStream on one node: what its clients publish is taken here, if it is for a stream, of one of
its deliveries, or a request.
"""

from __future__ import annotations

from typing import Final, Protocol

from cluster.cluster_node import ClusterNode
from node.broker.bodies import Bodies
from node.broker.ingress import Ingress
from node.broker.publishing import QueuePublisher
from node.broker.stream_reads import StreamReads
from node.dispatch.in_flight import InFlight
from node.peer_rpc import PeerRpc
from node.protocols.nats.interest import Taker
from node.protocols.nats.jetstream import requests
from node.protocols.nats.jetstream.api import Api, Caller
from node.protocols.nats.jetstream.archives import Archives
from node.protocols.nats.jetstream.counting import Counting
from node.protocols.nats.jetstream.cursors import Cursors
from node.protocols.nats.jetstream.following import Following
from node.protocols.nats.jetstream.leading import Leading
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.jetstream.scheduler import Scheduler
from node.protocols.nats.jetstream.settling import Settling
from node.protocols.nats.jetstream.storing import Storing
from node.protocols.nats.reader import ACK, CRLF, Acks, Publish, Requests
from node.protocols.nats.subjects import Subjects
from node.tasks import Tasks

OWN: Final = b"$JS."
OWN_TOKEN: Final = b"$JS"
FLOW: Final = b"$JS.FC."
SNAPSHOT: Final = b"$JS.SNAPSHOT."
#: What this node tells of and is being stored; over it, what it tells of is not.
TOLD_BYTES_MAX: Final = 8 << 20


class Connection(Taker, Caller, Protocol):
    vhost: str
    in_flight: InFlight

    @property
    def administers(self) -> bool: ...


class JetStream:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterNode,
        subjects: Subjects,
        publisher: QueuePublisher,
        ingress: Ingress,
        reads: StreamReads,
        bodies: Bodies,
        peer_rpc: PeerRpc,
        tasks: Tasks,
    ) -> None:
        post = Post(subjects)
        self._cluster = cluster
        self._subjects = subjects
        following = Following(cluster, reads, bodies, ingress, tasks)
        self.leading = Leading(cluster, post, following, tasks)
        self.api = Api(cluster, peer_rpc, subjects, self.leading, post, tasks)
        self._archives = Archives(cluster, self.api, reads, ingress, post, peer_rpc, tasks)
        self.cursors = Cursors(cluster, peer_rpc, self.leading)
        counting = Counting(cluster, peer_rpc, publisher, tasks)
        self._storing = Storing(publisher, counting, ingress, post, tasks, self.leading.now_ms)
        self.leading.on_look.append(Scheduler(cluster, publisher, tasks).look)
        self._storing.on_abandoned = self.leading.tell_abandoned
        self._settling = Settling(cluster, post, self.api.pull)
        subjects.on_interest = self.leading.interest
        self._told = InFlight(TOLD_BYTES_MAX, pause=_nobody_waits, resume=_nobody_waits)
        post.is_stored, post.store = self._is_stored, self._store_told

    def publish(self, connection: Connection, message: Publish) -> bool:
        """What a client may publish: to those who are subscribed, and to what is here. False:
        nobody takes it, as far as can be told.
        """
        subject, vhost, subjects = message.subject, connection.vhost, self._subjects
        taken = False
        if subject.startswith(OWN):
            taken = self._take(connection, message)
            if not self._may_be_wanted(vhost):
                return taken
        taken |= subjects.publish(vhost, message, connection)
        info = self._cluster.catalog_machine.stream_for(vhost, subject)
        if info is None:
            return taken
        self._storing.take(info, message, connection.in_flight)
        return True

    def _is_stored(self, inbox: Inbox) -> bool:
        return self._cluster.catalog_machine.stream_for(*inbox) is not None

    def _store_told(self, inbox: Inbox, body: bytes) -> None:
        """At most once: nobody can be made to wait while the stream has no leader."""
        info = self._cluster.catalog_machine.stream_for(*inbox)
        if info is not None and not self._told.full:
            told = Publish(inbox.subject, b"", 0, len(body), [body + CRLF])
            self._storing.take(info, told, self._told)

    def store(self, connection: Connection, messages: Requests) -> bool:
        """If they are for a stream and for nobody else; False: nothing was done."""
        subject, vhost = messages.subject, connection.vhost
        match = self._subjects.match(vhost, subject)
        if subject.startswith(OWN) or match.plain or match.nodes or match.groups:
            return False
        info = self._cluster.catalog_machine.stream_for(vhost, subject)
        if info is None:
            return False
        self._storing.take_each(info, messages, connection.in_flight)
        return True

    def acknowledge(self, connection: Connection, acks: Acks) -> bool:
        """If nobody else is to hear of them; False: nothing was done."""
        vhost = connection.vhost
        return not self._may_be_wanted(vhost) and self._settling.take_all(vhost, acks)

    def _may_be_wanted(self, vhost: str) -> bool:
        """By others, subscribers or a stream: what is for JetStream itself."""
        streams = self._cluster.catalog_machine
        return self._subjects.begins(vhost, OWN_TOKEN) or streams.stores(vhost, OWN_TOKEN)

    def _take(self, connection: Connection, message: Publish) -> bool:
        """What is for JetStream itself."""
        subject, vhost = message.subject, connection.vhost
        if subject.startswith(ACK):
            return self._settling.take(vhost, message)
        if subject.startswith(requests.PREFIX):
            if subject.startswith(requests.ADMINISTRATION) and not connection.administers:
                return False
            return self._ask(connection, message)
        if subject.startswith(SNAPSHOT):
            return self._archives.take(vhost, message)
        return subject.startswith(FLOW) and self._flow(vhost, subject)

    def end_of_read(self) -> None:
        """All that one read of a socket brought was taken."""
        self._storing.flush()

    def _ask(self, connection: Connection, message: Publish) -> bool:
        known, vhost = False, connection.vhost
        for payload in message.payloads:
            body = payload[message.header_bytes : -2]
            known = self.api.ask(vhost, message.subject, message.reply, body, connection)
        return known

    def _flow(self, vhost: str, subject: bytes) -> bool:
        match subject.decode(errors="replace").split("."):
            case [_, _, stream, consumer, _]:
                self.api.flow(vhost, stream, consumer, subject)
                return True
            case _:
                return False


def _nobody_waits() -> None: ...
