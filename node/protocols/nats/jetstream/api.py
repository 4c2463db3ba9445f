"""JetStream's API: who serves a request, and what is answered.

Any node takes requests. What concerns one stream is served by the node that leads it; its answers
go to the subject where they are wanted, wherever that is. What concerns the catalog is done where
it is asked.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.codec.entries import CHANGES_SINCE
from cluster.groups.group import Group
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Outcome
from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    Barrier,
    Command,
    DeleteMessage,
    DropConsumer,
    Purge,
    PutConsumer,
)
from cluster.machine.replies import INEQUIVALENT, LIMIT_REACHED, NO_QUEUE, Ok
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.errors import CONSUMER_MISSING
from cluster.machine.stream.retained import Found
from cluster.machine.stream.settings import overlap
from cluster.machine.stream.stream import Stream
from cluster.types import CATALOG_GROUP, LargeBody, NodeId
from node.broker.stream_reads import led_stream
from node.errors import BrokerError, Elsewhere
from node.messages.subjects import is_subject
from node.peer_rpc import PeerRpc
from node.protocols.nats.jetstream import consumer_config, fields, origins, shown, stream_config
from node.protocols.nats.jetstream.errors import (
    NO_MESSAGE,
    NO_SUCH_SEQUENCE,
    ApiError,
    invalid_json,
    invalid_stream,
    known,
)
from node.protocols.nats.jetstream.forwarded import Forwarded
from node.protocols.nats.jetstream.headers import block, status, with_fields
from node.protocols.nats.jetstream.leading import Leading
from node.protocols.nats.jetstream.post import Inbox, Post, json_of
from node.protocols.nats.jetstream.priorities import GROUP
from node.protocols.nats.jetstream.pulls import ask_of
from node.protocols.nats.jetstream.reading import header_of, load
from node.protocols.nats.jetstream.requests import Call, call_of, subject_of, type_of
from node.protocols.nats.jetstream.times import ms_of_text, text_of_ms
from node.protocols.nats.subjects import Subjects
from node.tasks import Tasks

log = structlog.get_logger(__name__)

KIND: Final = "jetstream"
#: A request waits so long for a leader.
PATIENCE_S: Final = 4.0
AGAIN_S: Final = 0.02
#: From node to node, while they do not agree who leads.
HOPS_MAX: Final = 4
NAMES_MAX: Final = 1_024
INFOS_MAX: Final = 256
SUBJECTS_MAX: Final = 100_000
DELETED_MAX: Final = 100_000
DIRECT_BATCH_MAX: Final = 1_024
DIRECT_BYTES_MAX: Final = 4 << 20
EPHEMERAL_NAME_BYTES: Final = 4
#: What clients may rely on: the "API level" of JetStream.
LEVEL: Final = 2
NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"

BUG: Final = ApiError(500, 10051, "an error of this node: its log says more")

Json = dict[str, Any]

#: Without JSON in the answer.
_PLAIN: Final = frozenset({"DIRECT.GET", "CONSUMER.MSG.NEXT"})
#: What direct gets say of errors of these numbers.
_OF_DIRECT_GETS: Final = {
    10003: (408, "Bad Request"),
    10025: (408, "Malformed Request"),
    10037: (404, "Message Not Found"),
}


class Asked(NamedTuple):
    vhost: str
    call: Call
    inbox: Inbox
    body: bytes
    client: Json | None = None  # who asks, if somebody is told of that


class Caller(Protocol):
    """A client that asks."""

    def who(self, now_ms: int) -> Json:
        """As advisories have it."""
        ...


class Served(NamedTuple):
    """A request, at the node that leads its stream."""

    vhost: str
    call: Call
    inbox: Inbox
    body: bytes
    client: Json | None
    info: QueueInfo
    group: GroupLike
    stream: Stream

    @property
    def given(self) -> Json:
        return fields.load(self.body)


Handler = Callable[[Served], Json | Awaitable[Json | None] | None]
OnAsked = Callable[[Asked], Coroutine[Any, Any, Json]]


class Api:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterNode,
        peer_rpc: PeerRpc,
        subjects: Subjects,
        leading: Leading,
        post: Post,
        tasks: Tasks,
    ) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._routes = subjects.routes
        self._leading = leading
        self._post = post
        self._tasks = tasks
        self._retries = cluster.forwarder.new_retries()
        self._forwarded = Forwarded(post)
        self.served = self.errors = 0
        self.domain = ""
        self._here: dict[str, OnAsked] = {  # done where they are asked
            "INFO": self._account,
            "META.LEADER.STEPDOWN": self._step_down_meta,
            "ACCOUNT.PURGE": self._purge_account,
            "STREAM.NAMES": self._stream_names,
            "STREAM.LIST": self._stream_list,
            "STREAM.CREATE": self._create_stream,
            "STREAM.UPDATE": self._update_stream,
            "STREAM.DELETE": self._delete_stream,
        }
        self._led: dict[str, Handler] = {
            "STREAM.INFO": self._stream_info,
            "STREAM.PURGE": self._purge,
            "STREAM.MSG.GET": self._get_message,
            "STREAM.MSG.DELETE": self._delete_message,
            "STREAM.LEADER.STEPDOWN": self._step_down,
            "DIRECT.GET": self._direct_get,
            "CONSUMER.CREATE": self._create_consumer,
            "CONSUMER.DURABLE.CREATE": self._create_consumer,
            "CONSUMER.NAMES": self._consumer_names,
            "CONSUMER.LIST": self._consumer_list,
            "CONSUMER.INFO": self._consumer_info,
            "CONSUMER.DELETE": self._delete_consumer,
            "CONSUMER.PAUSE": self._pause_consumer,
            "CONSUMER.LEADER.STEPDOWN": self._step_down,
            "CONSUMER.UNPIN": self._unpin,
            "CONSUMER.RESET": self._reset,
            "STREAM.PEER.REMOVE": self._remove_peer,
            "CONSUMER.MSG.NEXT": self._next,
        }
        peer_rpc.on(KIND, self._from_peer)
        cluster.on_link_lost.append(self._link_lost)

    def serve_here(self, verb: str, handler: OnAsked) -> None:
        """Requests that are done where they are asked, by another part of the node."""
        self._here[verb] = handler

    # --- who serves it ----------------------------------------------------------------------------

    def ask(self, vhost: str, subject: bytes, reply: bytes, body: bytes, by: Caller) -> bool:
        """False: it is no request that anybody knows."""
        call = call_of(subject)
        if call is None or (call.verb not in self._here and call.verb not in self._led):
            return False
        self.served += 1
        client = None
        if call.verb not in _PLAIN and self._leading.audited(vhost):
            home = {"server": self._cluster.node, "cluster": self._cluster.config.cluster}
            client = by.who(self._cluster.now_ms()) | home
        asked = Asked(vhost, call, Inbox(vhost, reply), body, client)
        if call.verb in self._here:
            self._tasks.start(self._answered(asked, self._here[call.verb](asked)), name="js_api")
        else:
            self.to_leader(asked, subject)
        return True

    def pull(self, vhost: str, stream: str, consumer: str, inbox: bytes, body: bytes) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        call = Call("CONSUMER.MSG.NEXT", stream, consumer)
        self.to_leader(Asked(vhost, call, Inbox(vhost, inbox), body), subject)

    def to_leader(self, asked: Asked, subject: bytes, hops: int = 0) -> None:
        info = self._stream(asked.vhost, asked.call.stream)
        if info is None or not self._try(info, asked, subject, hops):
            self._tasks.start(self._later(asked, subject, hops), name="js_api_later")

    def _stream(self, vhost: str, name: str) -> QueueInfo | None:
        """One that is being restored is not there yet."""
        info = self._cluster.queue_info(vhost, name)
        if info is None or info.stream is None or stream_config.is_restored(info.stream):
            return None
        return info

    def _try(self, info: QueueInfo, asked: Asked, subject: bytes, hops: int) -> bool:
        leader = self._cluster.leader_of(info.group)
        if leader is None:
            return False
        if leader != self._cluster.node:
            if hops >= HOPS_MAX:
                return False
            self._routes.flush()  # it is known there where the answer is wanted
            more = (asked.vhost, subject, asked.inbox.subject, asked.body, hops + 1, asked.client)
            sent = self._peer_rpc.notify(leader, KIND, "api", *more)
            if sent and asked.call.verb == "CONSUMER.MSG.NEXT":
                now_s = asyncio.get_running_loop().time()
                self._forwarded.add(leader, asked.inbox, asked.body, now_s)
            return sent
        led = led_stream(self._cluster, info)
        if led is None:
            return False
        self._serve(Served(*asked, info, *led))
        return True

    async def _later(self, asked: Asked, subject: bytes, hops: int) -> None:
        """There is no such stream, or no leader, as far as is known here."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        if self._stream(asked.vhost, asked.call.stream) is None:
            await self._cluster.names.barrier()
            if self._stream(asked.vhost, asked.call.stream) is None:
                self._fail(asked, known(10059))
                return
        while loop.time() < until_s:
            info = self._stream(asked.vhost, asked.call.stream)
            if info is None:
                self._fail(asked, known(10059))
                return
            if self._try(info, asked, subject, hops):
                return
            await asyncio.sleep(AGAIN_S)
        self._fail(asked, known(10008))

    def _from_peer(self, peer: NodeId, message: list[Any]) -> Any:
        match message:
            case ["api", vhost, subject, reply, body, hops, client]:
                call = call_of(subject)
                if call is not None and call.verb in self._led:
                    asked = Asked(vhost, call, Inbox(vhost, reply), body, client)
                    self.to_leader(asked, subject, hops)
            case ["flow", vhost, name, consumer, subject]:
                self.flow(vhost, name, consumer, subject)
            case ["gone", queue]:
                self._leading.gone(queue)
            case ["info", vhost, name]:
                return self._own_info(vhost, name)
            case ["list", vhost, *names]:
                return self._own_infos(vhost, *names)
            case ["call", vhost, *words, body]:
                return self._called(vhost, Call(*words), body)
            case ["meta", body]:
                catalog = self._cluster.group(CATALOG_GROUP)
                if catalog is None or not catalog.ready:
                    return None
                return self._told(lambda: _hand_over(catalog, body))
            case ["usage", vhost]:
                return self._own_usage(vhost)
            case _:
                log.warning("jetstream_notice_unknown", peer=peer)
        return None

    def _link_lost(self, node: NodeId) -> None:
        self._forwarded.lost(node, asyncio.get_running_loop().time())

    def flow(self, vhost: str, name: str, consumer: str, subject: bytes) -> None:
        """The answer of a client to a request for flow control."""
        info = self._stream(vhost, name)
        if info is None:
            return
        leader = self._cluster.leader_of(info.group)
        if leader == self._cluster.node:
            self._leading.flow(info, consumer, subject)
        elif leader is not None:
            self._peer_rpc.notify(leader, KIND, "flow", vhost, name, consumer, subject)

    # --- for those who do not ask by NATS ---------------------------------------------------------

    async def request(self, vhost: str, call: Call, given: Mapping[str, Any]) -> Json:
        """What is answered, without its type. ApiError: refused. BrokerError: it may be done."""
        body = json_of(given)
        if call.verb in self._here:
            return await self._here[call.verb](Asked(vhost, call, Inbox(vhost, b""), body))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while loop.time() < until_s:
            info = await self.find(vhost, call.stream)
            leader = self._cluster.leader_of(info.group)
            if leader is not None:
                try:
                    found = await self._peer_rpc.request(leader, KIND, "call", vhost, *call, body)
                except Elsewhere:  # surely not done
                    found = None
                if found is not None:
                    return _answer_in(found)
            await asyncio.sleep(AGAIN_S)
        raise known(10008)

    async def _called(self, vhost: str, call: Call, body: bytes) -> Json | None:
        """As `request` gets it from the leader. None: this node does not lead it."""
        info = self._stream(vhost, call.stream)
        led = None if info is None else led_stream(self._cluster, info)
        if info is None or led is None:
            return None
        served = Served(vhost, call, Inbox(vhost, b""), body, None, info, *led)
        return await self._told(lambda: self._led[call.verb](served))

    async def _told(self, work: Callable[[], Json | Awaitable[Json | None] | None]) -> Json:
        """What came of it, for another node: see `_answer_in`."""
        try:
            found: Any = work()
            return {"answer": await found if inspect.isawaitable(found) else found}
        except ApiError as error:
            return {"error": [error.code, error.number, error.text]}

    async def infos(self, streams: Iterable[QueueInfo]) -> dict[tuple[str, str], Json]:
        """By virtual host and name: those of which a leader answers."""
        names: dict[str, list[str]] = {}
        for info in streams:
            names.setdefault(info.vhost, []).append(info.name)
        found: dict[tuple[str, str], Json] = {}
        for vhost, some in names.items():
            for answer in (await self._peer_rpc.request_all(KIND, "list", vhost, some)).values():
                found |= {(vhost, name): shown_ for name, shown_ in answer.items()}
        return found

    # --- answering --------------------------------------------------------------------------------

    def _serve(self, served: Served) -> None:
        asked = Asked(*served[:5])
        try:
            found = self._led[served.call.verb](served)
        except (ApiError, BrokerError) as error:
            self._fail(asked, error)
            return
        except Exception as error:  # a bug: who asked is told, and everybody else goes on
            log.error("jetstream_request_failed", verb=asked.call.verb, exc_info=error)
            self._fail(asked, BUG)
            return
        if found is None:
            return
        if inspect.iscoroutine(found):
            work = cast("Coroutine[Any, Any, Json | None]", found)
            self._tasks.start(self._answered(asked, work), name="js_api")
        else:
            self._answer(asked, cast(Json, found))

    async def _answered(self, asked: Asked, work: Coroutine[Any, Any, Json | None]) -> None:
        try:
            found = await work
        except (ApiError, BrokerError) as error:
            if isinstance(error, Elsewhere) and asked.call.verb in self._led:
                await self._later(asked, subject_of(asked.call).encode(), 0)
            else:
                self._fail(asked, error)
        except Exception as error:  # as above
            log.error("jetstream_request_failed", verb=asked.call.verb, exc_info=error)
            self._fail(asked, BUG)
        else:
            if found is not None:
                self._answer(asked, found)

    def _answer(self, asked: Asked, found: Json) -> None:
        self._reply(asked, {"type": type_of(asked.call.verb), **found})

    def _reply(self, asked: Asked, answer: Json) -> None:
        self._post.json(asked.inbox, answer)
        subject = subject_of(asked.call)
        self._leading.tell_request(asked.vhost, subject, asked.body, answer, asked.client)

    def _fail(self, asked: Asked, error: ApiError | BrokerError) -> None:
        self.errors += 1
        if isinstance(error, BrokerError):
            error = ApiError(503, 10008, error.reason)
        verb = asked.call.verb
        if verb == "CONSUMER.MSG.NEXT" and error.number in (10003, 10025):
            self._post.send(asked.inbox, b"", status(400, f"Bad Request - {error.text}"))
        elif verb in _PLAIN:
            self._post.send(asked.inbox, b"", NO_RESPONDERS)
        else:
            self._reply(asked, {"type": type_of(verb), "error": error.map})

    # --- the account, and lists of streams --------------------------------------------------------

    async def _account(self, asked: Asked) -> Json:
        rows = (await self._peer_rpc.request_all(KIND, "usage", asked.vhost)).values()
        limits: Json = {
            "max_memory": -1,
            "max_storage": -1,
            "max_streams": -1,
            "max_consumers": -1,
            "max_ack_pending": -1,
            "memory_max_stream_bytes": -1,
            "storage_max_stream_bytes": -1,
            "max_bytes_required": False,
        }
        return {
            "memory": 0,
            "storage": sum(row[0] for row in rows),
            "reserved_memory": 0,
            "reserved_storage": 0,
            "streams": len(self._cluster.catalog_machine.streams(asked.vhost)),
            "consumers": sum(row[1] for row in rows),
            "limits": limits,
            **({"domain": self.domain} if self.domain else {}),
            "api": {"level": LEVEL, "total": self.served, "errors": self.errors},
        }

    async def _step_down_meta(self, asked: Asked) -> Json:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while True:
            leader, found = self._cluster.leader_of(CATALOG_GROUP), None
            if leader is not None:
                found = await self._peer_rpc.request(leader, KIND, "meta", asked.body)
            if found is not None:
                return _answer_in(found)
            if loop.time() > until_s:  # else whoever leads it has only just been elected
                raise known(10008)
            await asyncio.sleep(AGAIN_S)

    async def _purge_account(self, asked: Asked) -> Json:
        """All streams of the account that is named."""
        vhost = asked.call.stream
        await self._cluster.names.barrier()
        for info in self._cluster.catalog_machine.streams(vhost):
            call = Call("STREAM.DELETE", info.name)
            try:
                await self._delete_stream(asked._replace(vhost=vhost, call=call))
            except ApiError as error:
                if error.number != 10059:  # else somebody deleted it meanwhile
                    raise
        return {"initiated": True}

    def _own_usage(self, vhost: str) -> list[int]:
        states = [
            stream.state() for info, stream in self._leading.all() if info.vhost == vhost and stream
        ]
        return [sum(each.bytes for each in states), sum(each.consumers for each in states)]

    def _wanted_streams(self, asked: Asked) -> tuple[list[QueueInfo], int]:
        """By name, those that have the subject that is asked for; and from where on. A stream of
        AMQP's clients may have a name that no request can say.
        """
        given = fields.load(asked.body)
        subject = fields.text(given, "subject").encode()
        if subject and not is_subject(subject):
            raise known(10003)
        streams = self._cluster.catalog_machine.streams(asked.vhost)
        found = [
            info
            for info in sorted(streams, key=lambda each: each.name)
            if stream_config.is_name(info.name)
            and not stream_config.is_restored(info.stream)
            and (
                not subject
                or any(overlap(each.encode(), subject) for each in (info.stream or {})["subjects"])
            )
        ]
        return found, max(0, fields.number(given, "offset"))

    async def _stream_names(self, asked: Asked) -> Json:
        streams, offset = self._wanted_streams(asked)
        names = [info.name for info in streams]
        return _page(len(names), offset, NAMES_MAX) | {
            "streams": names[offset : offset + NAMES_MAX]
        }

    async def _stream_list(self, asked: Asked) -> Json:
        streams, offset = self._wanted_streams(asked)
        page = streams[offset : offset + INFOS_MAX]
        infos = {name: each for (_, name), each in (await self.infos(page)).items()}
        found = _page(len(streams), offset, INFOS_MAX)
        found["streams"] = [infos[each.name] for each in page if each.name in infos]
        missing = [each.name for each in page if each.name not in infos]
        return found | ({"missing": missing} if missing else {})

    def _own_infos(self, vhost: str, names: Iterable[str] | None = None) -> dict[str, Json]:
        """`names` None: of all."""
        if names is None:
            names = [info.name for info in self._cluster.catalog_machine.streams(vhost)]
        infos = {name: self._own_info(vhost, name) for name in names}
        return {name: info for name, info in infos.items() if info is not None}

    def _own_info(self, vhost: str, name: str) -> Json | None:
        """None: this node does not lead it."""
        info = self._stream(vhost, name)
        led = None if info is None else led_stream(self._cluster, info)
        if info is None or led is None:
            return None
        group, stream = led
        return self.stream_row(info, stream, self.cluster_row(group))

    def stream_row(self, info: QueueInfo, stream: Stream, group: Json, **more: Any) -> Json:
        """As this node's copy has it; `group` is its `cluster_row`."""
        found = shown.stream(
            info.stream or {}, stream.state(), group, self._cluster.now_ms(), **more
        )
        return found | self._leading.following.shown(info)

    def cluster_row(self, group: GroupLike) -> Json:
        """Of a group that has a copy here."""
        lag, heard_s, cluster = group.lag(), group.heard_s(), self._cluster
        leader = cluster.leader_of(group.id)
        peers = [
            shown.Peer(
                each,
                each == cluster.node or cluster.peers.is_up(each),
                lag.get(each, 0),
                round(heard_s.get(each, 0.0) * 1e9),
            )
            for each in group.members
            if each != leader
        ]
        return shown.cluster(cluster.config.cluster, leader, peers)

    # --- streams in the catalog -------------------------------------------------------------------

    def _config_of(self, asked: Asked) -> stream_config.Config:
        given = fields.load(asked.body)
        if fields.text(given, "name") != asked.call.stream:
            raise known(10056)
        config = stream_config.stream_config(given)
        origins.check_others(config, lambda name: self._config_known(asked.vhost, name))
        if fields.flag(given, "pedantic"):
            fields.check_pedantic(given, config)
        return config

    def _config_known(self, vhost: str, name: str) -> Mapping[str, Any] | None:
        info = self._stream(vhost, name)
        return None if info is None else info.stream

    async def _create_stream(self, asked: Asked) -> Json:
        config = self._config_of(asked)
        vhost, name = asked.vhost, asked.call.stream
        if config["sealed"]:
            raise invalid_stream("stream configuration for create can not be sealed")
        if config.get("mirror"):
            other = self._config_known(vhost, config["mirror"]["name"]) or {}
            config["mirror_direct"] |= bool(other.get("allow_direct"))
        if self._is_there(vhost, name, config):
            return await self.info_of(vhost, name) | {"did_create": True}
        config[stream_config.CREATED] = self._cluster.now_ms()
        outcome = await self._cluster.declare_queue(vhost, name, _arguments(config))
        if outcome.kind != "ok":
            if outcome.code == INEQUIVALENT and self._is_there(vhost, name, config):
                return await self.info_of(vhost, name) | {"did_create": True}
            raise _error_of(outcome)
        self._leading.tell_stream(vhost, name, "create")
        return await self.info_of(vhost, name) | {"did_create": True}

    def _is_there(self, vhost: str, name: str, config: stream_config.Config) -> bool:
        info = self._cluster.queue_info(vhost, name)
        if info is None:
            return False
        known_ = info.stream
        if known_ is None or stream_config.is_restored(known_):
            raise known(10058)
        if not stream_config.equal(known_, config):
            raise known(10058)
        return True

    async def _update_stream(self, asked: Asked) -> Json:
        config = self._config_of(asked)
        vhost, name = asked.vhost, asked.call.stream
        info = await self.find(vhost, name)
        config = stream_config.changed(dict(info.stream or {}), config)
        arguments = {**info.arguments, **_arguments(config)}
        outcome = await self._cluster.change_stream(info, arguments)
        if outcome.kind != "ok":
            raise _error_of(outcome)
        self._leading.tell_stream(vhost, name, "modify")
        return await self.info_of(vhost, name)

    async def _delete_stream(self, asked: Asked) -> Json:
        vhost, name = asked.vhost, asked.call.stream
        info = await self.find(vhost, name)
        outcome = await self._cluster.remove_queue(vhost, name)
        if outcome.kind != "ok":
            raise _error_of(outcome)
        for node in (self._cluster.node, *self._peer_rpc.others()):
            self._peer_rpc.notify(node, KIND, "gone", info.queue)
        self._leading.tell_stream(vhost, name, "delete")
        return {"success": True}

    async def find(self, vhost: str, name: str) -> QueueInfo:
        info = self._stream(vhost, name)
        if info is None:
            await self._cluster.names.barrier()
            info = self._stream(vhost, name)
        if info is None:
            raise known(10059)
        return info

    async def info_of(self, vhost: str, name: str) -> Json:
        """As the leader shows it, once there is one."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while loop.time() < until_s:
            info = self._stream(vhost, name)
            if info is None:
                raise known(10059)
            leader = self._cluster.leader_of(info.group)
            if leader is not None:
                try:
                    found = await self._peer_rpc.request(leader, KIND, "info", vhost, name)
                except BrokerError:
                    found = None
                if found is not None:
                    return found
            await asyncio.sleep(AGAIN_S)
        raise known(10008)

    # --- a stream, at its leader ------------------------------------------------------------------

    def _stream_info(self, served: Served) -> Json:
        given, stream = served.given, served.stream
        pattern = fields.text(given, "subjects_filter").encode()
        offset = max(0, fields.number(given, "offset"))
        more: Json = {}
        page = _page(0, 0, 0)
        if pattern:
            rows = stream.subject_counts(pattern, SUBJECTS_MAX + 1, offset)
            more["subjects"] = rows[:SUBJECTS_MAX]
            total = offset + len(rows)
            page = _page(total, offset, SUBJECTS_MAX)
        if fields.flag(given, "deleted_details"):
            more["deleted"] = stream.deleted(DELETED_MAX)
        return page | self.stream_row(served.info, stream, self.cluster_row(served.group), **more)

    async def _purge(self, served: Served) -> Json:
        given, config = served.given, served.info.stream or {}
        if config.get("sealed"):
            raise known(10109)
        if config.get("deny_purge"):
            raise ApiError(500, 10110, "stream purge not permitted")
        below, keep = fields.number(given, "seq"), fields.number(given, "keep")
        if below and keep:
            raise known(10003)
        subject = fields.text(given, "filter").encode()
        if subject and not is_subject(subject):
            raise known(10003)
        command = Purge(served.info.queue, subject or None, max(0, below), max(0, keep))
        done = await self._do(served, command)
        return {"success": True, "purged": done.count}

    async def _delete_message(self, served: Served) -> Json:
        given, config = served.given, served.info.stream or {}
        if not given:
            raise known(10003)
        seq = fields.number(given, "seq")
        if config.get("sealed"):
            raise known(10109)
        if config.get("deny_delete"):
            raise ApiError(500, 10057, "message delete not permitted")
        if served.stream.find(seq) is None:
            state = served.stream.state()
            if state.first_seq <= seq <= state.last_seq or config.get("storage") == "memory":
                raise ApiError(400, NO_SUCH_SEQUENCE, f"sequence {seq} not found")
            raise ApiError(500, 10057, NO_MESSAGE)
        await self._do(served, DeleteMessage(served.info.queue, seq))
        return {"success": True}

    async def _get_message(self, served: Served) -> Json:
        given, stream = served.given, served.stream
        if not given:
            raise known(10003)
        await self._see_all(served)
        found = _look_up(stream, given)
        if found is None:
            raise known(10037)
        body, header = await _read(served, found)
        if fields.flag(given, "no_hdr"):
            header = b""
        return {
            "message": shown.message(found.subject, found.sequence, header, body, found.stored_ms)
        }

    async def _see_all(self, served: Served) -> None:
        """What was answered before, by whichever node, is seen here. Elsewhere: another one leads
        the stream by now.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while (await served.group.ask(Barrier())).kind != "ok":
            if loop.time() > until_s:
                raise known(10008)
            if not served.group.ready:
                raise Elsewhere(None)
            await asyncio.sleep(AGAIN_S)  # leadership is being handed over

    async def _do(self, served: Served, command: Command) -> Ok:
        """Wherever the stream is led by now."""
        outcome = await self._retries.ask(served.info.group, command, within_s=PATIENCE_S)
        if outcome.kind == "ok" and isinstance(outcome.reply, Ok):
            return outcome.reply
        if outcome.in_doubt and type(command) is DropConsumer:
            return Ok(1)  # an earlier try did it
        error = _error_of(outcome)
        is_gone = error.number == CONSUMER_MISSING and not served.call.verb.endswith("CREATE")
        raise known(10014) if is_gone else error  # while it was asked for

    async def _step_down(self, served: Served) -> Json:
        if served.call.consumer and served.call.consumer not in served.stream.consumers:
            raise known(10014)
        return await _hand_over(served.group, served.body)

    def _remove_peer(self, served: Served) -> Json:
        """Where copies are, the catalog decides: nobody is removed by clients of one stream."""
        peer = fields.text(served.given, "peer")
        if not peer:
            raise known(10003)
        raise known(10075 if peer in served.group.members else 10040)

    # --- direct get -------------------------------------------------------------------------------

    async def _direct_get(self, served: Served) -> None:
        if not (served.info.stream or {}).get("allow_direct"):
            raise known(10003)
        try:
            await self._get_directly(served)
        except ApiError as error:
            if error.number not in _OF_DIRECT_GETS:
                raise
            self._post.send(served.inbox, b"", status(*_OF_DIRECT_GETS[error.number]))

    async def _get_directly(self, served: Served) -> None:
        given = served.given
        if served.call.rest:
            given = {"last_by_subj": served.call.rest, **given}
        if given.get("multi_last") or given.get("batch"):
            await self._direct_batch(served, given)
            return
        if not any(
            given.get(each) for each in ("seq", "last_by_subj", "next_by_subj", "start_time")
        ):
            self._post.send(served.inbox, b"", status(408, "Empty Request"))
            return
        found = _look_up(served.stream, given)
        if found is None:
            raise known(10037)
        await self._send_direct(served, found, given, [])

    async def _send_direct(
        self, served: Served, found: Found, given: Json, more: Sequence[tuple[str, object]]
    ) -> int:
        body, header = await _read(served, found)
        about: list[tuple[str, object]] = [
            ("Nats-Stream", served.info.name),
            ("Nats-Subject", found.subject.decode(errors="replace")),
            ("Nats-Sequence", found.sequence),
            ("Nats-Time-Stamp", text_of_ms(found.stored_ms)),
            *more,
        ]
        if fields.flag(given, "no_hdr") and not given.get("multi_last"):
            self._post.send(served.inbox, body)
        else:
            head = with_fields(header, about) if header else block(about)
            self._post.send(served.inbox, body, head)
        return len(body)

    async def _direct_batch(self, served: Served, given: Json) -> None:
        stream, send, inbox = served.stream, self._post.send, served.inbox
        if given.get("last_by_subj"):
            raise known(10003)
        count = fields.number(given, "batch") or DIRECT_BATCH_MAX
        count = min(max(1, count), DIRECT_BATCH_MAX)
        room = fields.number(given, "max_bytes") or DIRECT_BYTES_MAX
        patterns = [each.encode() for each in fields.texts(given, "multi_last")]
        up_to = fields.number(given, "up_to_seq")
        if given.get("up_to_time") is not None:
            if up_to:
                raise known(10003)
            up_to = max(0, stream.seq_at(_point(given, "up_to_time")) - 1)
        rows: list[Found]
        if patterns:
            last = up_to or stream.state().last_seq
            last_ones = stream.last_of_each(tuple(patterns), last, DIRECT_BATCH_MAX + 1)
            if len(last_ones) > DIRECT_BATCH_MAX:
                send(inbox, b"", status(413, "Too Many Results"))
                return
            start = fields.number(given, "seq")
            rows = [each for each in last_ones if each.sequence >= start]
            rows.sort(key=lambda each: each.sequence)
            pending = len(rows)
        else:
            pattern = (fields.text(given, "next_by_subj") or ">").encode()
            seq = fields.number(given, "seq") or 1
            if given.get("start_time") is not None:
                seq = stream.seq_at(_point(given, "start_time"))
            rows = []
            while len(rows) < count and (each := stream.next_of(pattern, seq)) is not None:
                rows.append(each)
                seq = each.sequence + 1
            pending = stream.count_of(pattern, rows[0].sequence) if rows else 0
        if not rows:
            send(inbox, b"", status(404, "No Results" if patterns else "Message Not Found"))
            return
        last_seq = 0
        for number, each in enumerate(rows[:count], 1):
            pending -= 1
            more = [("Nats-Num-Pending", max(0, pending)), ("Nats-Last-Sequence", last_seq)]
            room -= await self._send_direct(served, each, given, more)
            last_seq = each.sequence
            if room <= 0 and number < len(rows):
                break
        end: list[tuple[str, object]] = [
            ("Nats-Num-Pending", max(0, pending)),
            ("Nats-Last-Sequence", last_seq),
        ]
        if patterns:
            end.append(("Nats-UpTo-Sequence", up_to or stream.state().last_seq))
        send(inbox, b"", status(204, "EOB", end))

    # --- consumers --------------------------------------------------------------------------------

    async def _create_consumer(self, served: Served) -> Json:
        given, call = served.given, served.call
        if fields.text(given, "stream_name") != call.stream:
            raise known(10056)
        wanted = fields.part(given, "config") or {}
        action = fields.text(given, "action")
        if action not in ("", "create", "update"):
            raise invalid_json(f"{action!r} is no action")
        stream = served.stream
        _check_names(call, wanted)
        config = consumer_config.consumer_config(wanted, served.info.stream or {})
        if fields.flag(given, "pedantic"):
            fields.check_pedantic(wanted, config)
        own = config.get("name") or secrets.token_hex(EPHEMERAL_NAME_BYTES)
        config["name"] = name = call.consumer or own
        about = served.info.stream or {}
        depends = about.get("retention") == "workqueue" or about.get("max_consumers", -1) > 0
        seen = depends or action == "update" or name in stream.consumers
        if seen:
            await self._see_all(served)
        try:
            await self._make(served, action, config)
        except ApiError as error:
            if error.number != 10148 or seen:
                raise
            await self._see_all(served)  # somebody has made it meanwhile
            await self._make(served, action, config)
        return self._consumer(served, name)

    async def _make(self, served: Served, action: str, config: Json) -> None:
        """Or change it, if it is there: what is fixed is only known once it is seen here."""
        name, stream, about = config["name"], served.stream, served.info.stream or {}
        existing = stream.consumers.get(name)
        others = {each: consumer.config for each, consumer in stream.consumers.items()}
        if existing is None:
            if action == "update":
                raise known(10149)
            most = about.get("max_consumers", -1)
            if 0 < most <= len(stream.consumers):
                raise known(10026)
            action = "create"
        else:
            config = consumer_config.paused_as(existing.config, config)
            if action == "create" and consumer_config.shown(existing.config) != (
                consumer_config.shown(config)
            ):
                raise known(10148)
            deliver = existing.config.get("deliver_subject")
            moved = deliver and deliver != config.get("deliver_subject")
            if moved and self._leading.waiting(served.info, name)[1]:
                raise known(10013)
            config = consumer_config.changed(existing.config, config)
        if about.get("retention") == "workqueue":
            consumer_config.check_workqueue(config, others)
        if existing is None or existing.config != config:
            command = PutConsumer(served.info.queue, config, cast(Any, action))
            if (await self._put(served, command, name)).count:
                self._leading.tell_consumer(served.info, name, "create")

    async def _put(self, served: Served, command: PutConsumer, name: str) -> Ok:
        """And it is known here, even if this node no longer leads the stream."""
        done = await self._do(served, command)
        for _ in range(round(PATIENCE_S / AGAIN_S)):
            if name in served.stream.consumers:
                break
            await asyncio.sleep(AGAIN_S)
        if served.group.ready:
            self._leading.put(served.info, served.group, name)
        return done

    async def _change(self, served: Served, name: str, begin: int = 0, **changes: Any) -> None:
        """Only this: somebody else may be changing the rest."""
        queue, version = served.info.queue, served.group.machine.version
        config: Json = {"name": name, **changes}
        if version < CHANGES_SINCE:
            whole = served.stream.consumers[name].config | config
            config = {field: value for field, value in whole.items() if value is not None}
        only = version >= CHANGES_SINCE
        await self._put(served, PutConsumer(queue, config, "update", begin, only), name)

    def _consumer(self, served: Served, name: str) -> Json:
        consumer = served.stream.consumers.get(name)
        if consumer is None:
            raise known(10014)
        return self.consumer_row(served.info, consumer, self.cluster_row(served.group))

    def consumer_row(self, info: QueueInfo, consumer: StreamConsumer, group: Json) -> Json:
        """The same."""
        name = consumer.settings.name
        waiting, bound = self._leading.waiting(info, name)
        return shown.consumer(
            info.name,
            name,
            consumer.created_ms,
            consumer.config,
            consumer.info(),
            group,
            self._cluster.now_ms(),
            waiting=waiting,
            bound=bound,
            pin=self._leading.pin(info, name),
        )

    def _consumer_info(self, served: Served) -> Json:
        return self._consumer(served, served.call.consumer)

    def _consumer_names(self, served: Served) -> Json:
        names, offset = sorted(served.stream.consumers), self._offset(served)
        found = _page(len(names), offset, NAMES_MAX)
        return found | {"consumers": names[offset : offset + NAMES_MAX]}

    def _consumer_list(self, served: Served) -> Json:
        names, offset = sorted(served.stream.consumers), self._offset(served)
        rows = [self._consumer(served, each) for each in names[offset : offset + INFOS_MAX]]
        return _page(len(names), offset, INFOS_MAX) | {"consumers": rows}

    def _offset(self, served: Served) -> int:
        return max(0, fields.number(served.given, "offset"))

    async def _find_consumer(self, served: Served) -> StreamConsumer:
        """One that is not known here may have been made a moment ago."""
        name, consumers = served.call.consumer, served.stream.consumers
        if name not in consumers:
            await self._see_all(served)
        if name not in consumers:
            raise known(10014)
        return consumers[name]

    async def _delete_consumer(self, served: Served) -> Json:
        name = served.call.consumer
        await self._find_consumer(served)
        await self._do(served, DropConsumer(served.info.queue, name))
        self._leading.dropped(served.info)
        return {"success": True}

    async def _pause_consumer(self, served: Served) -> Json:
        name = served.call.consumer
        await self._find_consumer(served)
        point = served.given.get("pause_until")
        ms = 0 if point is None else _point(served.given, "pause_until")
        now_ms = self._cluster.now_ms()
        config: Json = {"pause_until": None, "pause_until_ms": None}
        if ms > now_ms:
            config = {"pause_until": point, "pause_until_ms": ms}
        await self._change(served, name, **config)
        found = shown.paused({"pause_until_ms": max(0, ms)}, now_ms) or {
            "paused": False,
            "pause_until": text_of_ms(ms),
        }
        self._leading.tell_pause(served.info, name, found)
        return found

    def _unpin(self, served: Served) -> Json:
        group = fields.text(served.given, "group")
        if not group:
            raise invalid_json("consumer group not specified")
        if GROUP.fullmatch(group) is None:
            raise known(10162)
        feed = self._leading.feed(served.info, served.group, served.call.consumer)
        if feed is None:
            raise known(10014)
        if group not in feed.config.get("priority_groups", ()):
            raise known(10160)
        feed.unpin(group)
        return {}

    async def _reset(self, served: Served) -> Json:
        name, stream = served.call.consumer, served.stream
        await self._see_all(served)  # how far it is, too
        consumer = await self._find_consumer(served)
        begin = fields.number(served.given, "seq")
        if begin:
            _check_reset(stream, consumer, begin)
        else:
            begin = consumer.info().floor_stream + 1
        await self._change(served, name, begin)
        return self._consumer(served, name) | {"reset_seq": begin}

    def _next(self, served: Served) -> None:
        feed = self._leading.feed(served.info, served.group, served.call.consumer)
        if feed is None:
            self._post.send(served.inbox, b"", NO_RESPONDERS)
            return
        if served.inbox.subject:
            feed.pull(served.inbox.subject, ask_of(served.body))


def _page(total: int, offset: int, limit: int) -> Json:
    return {"total": total, "offset": offset, "limit": limit}


def _arguments(config: stream_config.Config) -> Json:
    return {QUEUE_TYPE: STREAM, STREAM_CONFIG: config}


def _answer_in(told: Json) -> Json:
    """What another node told. ApiError: it refused."""
    if "error" in told:
        raise ApiError(*told["error"])
    return told["answer"]


async def _hand_over(group: GroupLike, body: bytes) -> Json:
    """Another node leads it now: the one that is asked for, or whoever is closest."""
    if not isinstance(group, Group) or len(group.members) < 2:
        raise ApiError(503, 10010, "JetStream clustering support required")
    placement = fields.part(fields.load(body), "placement") or {}
    preferred = fields.text(placement, "preferred")
    if fields.texts(placement, "tags"):
        raise ApiError(400, 10005, "nodes have no tags here: name one as preferred")
    if preferred and preferred not in group.members:
        raise ApiError(400, 10005, f'preferred server "{preferred}" not known')
    if preferred and preferred == group.leader:
        raise ApiError(400, 10005, f'preferred server "{preferred}" is already leader')
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE_S
    to = NodeId(preferred) if preferred else None
    while group.leader in (None, group.node):
        if group.leader and not group.transferring and not group.transfer(to):
            raise ApiError(503, 10008, f"no link to {to or 'any other copy'}: try again")
        if loop.time() > until_s:
            raise ApiError(503, 10008, "no other node has taken over yet: try again")
        await asyncio.sleep(AGAIN_S)
    if preferred and group.leader != preferred:
        raise ApiError(503, 10008, f"{group.leader} has taken over, not {preferred}: try again")
    return {"success": True}


def _error_of(outcome: Outcome) -> ApiError:
    detail = getattr(outcome.reply, "detail", None)
    if type(detail) is int and detail >= 10_000:
        return known(detail)
    if outcome.code == INEQUIVALENT:
        return known(10058)
    if outcome.code == NO_QUEUE:
        return known(10059)
    if outcome.code == LIMIT_REACHED:
        return ApiError(400, 10027, "maximum number of streams reached")
    if outcome.reply is None:
        return ApiError(503, 10008, outcome.reason or "JetStream system temporarily unavailable")
    return invalid_stream(outcome.reason or "refused")


def _check_names(call: Call, given: Mapping[str, Any]) -> None:
    """What the subject of a request says must be what its body says."""
    durable = fields.text(given, "durable_name")
    if call.verb == "CONSUMER.DURABLE.CREATE":
        if not durable:
            raise known(10018)
        if durable != call.consumer:
            raise known(10017)
    elif not call.consumer:
        if durable:
            raise known(10020)
    else:
        if not stream_config.is_name(call.consumer):
            raise known(10127)
        if durable and durable != call.consumer:
            raise known(10017)
        if call.rest:
            if fields.texts(given, "filter_subjects"):
                raise known(10137)
            if fields.text(given, "filter_subject") != call.rest:
                raise known(10131)


def _check_reset(stream: Stream, consumer: StreamConsumer, begin: int) -> None:
    settings = consumer.settings
    wrong = ""
    match settings.deliver_policy:
        case "all":
            pass
        case "by_start_sequence":
            wrong = "below start seq" if begin < settings.start_seq else ""
        case "by_start_time":
            wrong = "below start time" if begin < stream.seq_at(settings.start_ms) else ""
        case _:
            wrong = "not allowed"
    if wrong:
        raise ApiError(400, 10204, f"invalid reset: {wrong}")


def _point(given: Json, name: str) -> int:
    ms = ms_of_text(given[name])
    if ms is None:
        raise invalid_json(f"{name} is no point in time")
    return ms


def _look_up(stream: Stream, given: Json) -> Found | None:
    """What the machine found. None: there is none."""
    seq = fields.number(given, "seq")
    last, following = fields.text(given, "last_by_subj"), fields.text(given, "next_by_subj")
    if last:
        if not is_subject(last.encode()) or following or seq:
            raise known(10003)
        return stream.last_of(last.encode())
    if given.get("start_time") is not None:
        if seq:
            raise known(10003)
        seq = stream.seq_at(_point(given, "start_time"))
        following = following or ">"
    if following:
        if not is_subject(following.encode()):
            raise known(10003)
        return stream.next_of(following.encode(), max(1, seq))
    if seq <= 0:
        raise known(10003)
    return stream.find(seq)


async def _read(served: Served, found: Found) -> tuple[bytes, bytes]:
    """Body and header block."""
    rows = await load(served.group, found.bodies)
    if not rows:
        raise known(10037)
    ((body, meta),) = rows
    whole = body.head if isinstance(body, LargeBody) else body
    return whole, header_of(meta, served.info)
