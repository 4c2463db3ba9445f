"""Where a message goes, told to the subject that its header `Nats-Trace-Dest` names: `nats trace`.

Each node of whose clients somebody would get it tells that in a message of its own. With
`Nats-Trace-Only` nobody else gets anything. Headers and fields are NATS's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import structlog

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId
from node.errors import BrokerError
from node.messages.nats_headers import lines
from node.messages.subjects import is_literal
from node.peer_rpc import PeerRpc
from node.protocols.nats.connection import NatsConnection, text_of
from node.protocols.nats.interest import Subscription
from node.protocols.nats.jetstream import requests
from node.protocols.nats.jetstream.times import text_of_ms
from node.protocols.nats.reader import CRLF, Publish
from node.protocols.nats.server import NatsServer
from node.protocols.nats.system import server_row
from node.settings.settings import Settings
from node.tasks import Tasks

KIND: Final = "nats_trace"
TO: Final = "Nats-Trace-Dest"
ONLY: Final = "Nats-Trace-Only"
HOP: Final = "Nats-Trace-Hop"
YES: Final = frozenset({"1", "true", "on"})

#: What NATS calls those between whom a message goes.
CLIENT: Final = 0
ROUTER: Final = 1
JETSTREAM: Final = 5

Json = dict[str, Any]

log = structlog.get_logger(__name__)


class Tracing:
    """One per node, if it listens for NATS's clients."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterNode,
        nats: NatsServer,
        peer_rpc: PeerRpc,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._nats = nats
        self._subjects = nats.subjects
        self._peer_rpc = peer_rpc
        self._tasks = tasks
        self._random = Random()
        nats.on_traced = self.publish
        peer_rpc.on(KIND, self._answer)

    def publish(
        self, connection: NatsConnection, message: Publish, go_on: Callable[[Publish], None]
    ) -> None:
        """Of a message that its client may publish, some payloads of which say that they are
        traced. `go_on`: publishes it.
        """
        for payload in message.payloads:
            one = message._replace(payloads=[payload])
            headers = _headers_of(payload[: message.header_bytes])
            to = headers.get(TO, [""])[0].encode()
            only = headers.get(ONLY, [""])[0].lower() in YES
            if not to or not is_literal(to):
                if not only:
                    go_on(one)
            elif not connection.may_publish(to):
                connection.refuse_publish(to)
            else:
                self._trace(connection, one, headers, to, None if only else go_on)

    def _trace(
        self,
        connection: NatsConnection,
        message: Publish,
        headers: dict[str, list[str]],
        to: bytes,
        go_on: Callable[[Publish], None] | None,
    ) -> None:
        vhost, subject = connection.vhost, message.subject
        match = self._subjects.match(vhost, subject)
        before = {
            member: member.delivered for group in match.groups.values() for member in group.members
        }
        if go_on is not None:
            go_on(message)
        found = list(match.plain)
        wanted: dict[NodeId, list[bytes]] = {node: [] for node in match.nodes}
        for group in match.groups.values():
            members = group.members
            got = [each for each in members if each.delivered > before[each]]
            if members:
                found.append(got[0] if got else self._random.choice(members))
            elif group.nodes:
                wanted.setdefault(self._random.choice(group.nodes), []).append(group.queue)
        events = [
            self._event("in", **_who(connection), acc=vhost, subj=text_of(subject)),
            *self._streams(vhost, subject),
            *self._clients(found),
        ]
        request = {"header": headers, "msgsize": message.size}
        nodes = list(enumerate(wanted.items(), 1))
        for number, (node, _) in nodes:
            row = {"kind": ROUTER, "cid": number, "name": node, "hop": str(number)}
            events.append(self._event("eg", **row))
        self._tell(vhost, to, self._row(request, events, hops=len(nodes)))
        for number, (node, queues) in nodes:
            there = request | {"header": {**headers, HOP: [str(number)]}}
            plain = node in match.nodes
            asked = self._ask(node, vhost, to, subject, plain, queues, there)
            self._tasks.start(asked, name="nats_trace")

    def _streams(self, vhost: str, subject: bytes) -> list[Json]:
        if subject.startswith(requests.PREFIX):
            known = requests.call_of(subject) is not None
            api = {"kind": JETSTREAM, "cid": 0, "name": "JetStream", "sub": "$JS.API.>"}
            return [self._event("eg", **api)] if known else []
        info = self._cluster.catalog_machine.stream_for(vhost, subject)
        if info is None:
            return []
        return [self._event("js", stream=info.name, subject=text_of(subject))]

    def _clients(self, found: Sequence[Subscription]) -> list[Json]:
        rows: list[Json] = []
        for each in found:
            queue = {"queue": text_of(each.queue)} if each.queue else {}
            about = {**_who(each.taker), "sub": text_of(each.subject), **queue}
            rows.append(self._event("eg", **about))
        return rows

    def _event(self, kind: str, /, **about: Any) -> Json:
        return {"type": kind, "ts": text_of_ms(self._cluster.now_ms()), **about}

    def _row(self, request: Json, events: list[Json], *, hops: int = 0) -> bytes:
        server = server_row(self._settings, self._cluster, self._nats)
        more = {"hops": hops} if hops else {}
        return json.dumps({"server": server, "request": request, **more, "events": events}).encode()

    def _tell(self, vhost: str, to: bytes, data: bytes) -> None:
        message = Publish(to, b"", 0, len(data), [data + CRLF])
        self._subjects.send(vhost, to, (message,))

    # --- at other nodes ---------------------------------------------------------------------------

    async def _ask(self, node: NodeId, vhost: str, to: bytes, *about: Any) -> None:
        try:
            found = await self._peer_rpc.request(node, KIND, vhost, *about)
        except BrokerError as error:  # its clients would get the message all the same
            log.info("nats_trace_unanswered", node=node, reason=error.reason)
            return
        self._tell(vhost, to, found)

    async def _answer(self, peer: NodeId, fields: list[Any]) -> bytes:
        vhost, subject, plain, queues, request = fields
        match = self._subjects.match(vhost, subject)
        found = list(match.plain) if plain else []
        for queue in queues:
            group = match.groups.get(queue)
            if group is not None and group.members:
                found.append(self._random.choice(group.members))
        here = {"kind": ROUTER, "cid": 0, "name": peer, "acc": vhost, "subj": text_of(subject)}
        return self._row(request, [self._event("in", **here), *self._clients(found)])


def _headers_of(block: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in lines(block):
        found.setdefault(text_of(name), []).append(text_of(value))
    return found


def _who(taker: object) -> Json:
    if not isinstance(taker, NatsConnection):
        return {"kind": CLIENT, "cid": 0}
    about = {"name": name} if (name := taker.about.get("name")) else {}
    return {"kind": CLIENT, "cid": taker.number, **about}
