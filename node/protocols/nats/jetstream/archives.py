"""Backups of one stream by NATS's clients, and their restoring: at the node where they are asked.

A backup is read like any reader reads, from whichever copy there is. What is restored is stored as
a mirror stores, under its sequences and with its times, in a stream that clients do not see: its
catalog entry says that it is being restored. One change of the catalog makes it whole. What was cut
off before is removed: by this node, or by the next one that restores a stream of this name.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Outcome
from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    Barrier,
    Command,
    DeleteMessage,
    Enqueue,
    Origin,
    PutConsumer,
    RestoreConsumer,
    RestoreIds,
)
from cluster.machine.replies import INEQUIVALENT, OUT_OF_SEQUENCE, Declared, Refused
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.settings import ASKED_TTL_MS, origin_key
from cluster.machine.stream.stream import Stream
from cluster.types import LargeBody, NodeId, QueueId
from node.broker.ingress import Ingress
from node.broker.stream_reads import StreamReader, StreamReads
from node.errors import BrokerError, Elsewhere
from node.messages.subjects import is_literal, is_subject
from node.peer_rpc import PeerRpc
from node.protocols.nats.jetstream import consumer_config, fields, stream_config
from node.protocols.nats.jetstream.api import BUG, Api, Asked, Json
from node.protocols.nats.jetstream.archive import (
    ArchiveReader,
    BadArchive,
    ConsumerState,
    End,
    Head,
    Ids,
    Message,
    end_of,
    head_of,
    ids_of,
    messages_of,
)
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import copied, status
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.jetstream.reading import header_of, stream_of
from node.protocols.nats.jetstream.requests import type_of
from node.protocols.nats.reader import Publish
from node.tasks import Tasks

log = structlog.get_logger(__name__)

KIND: Final = "jetstream_archive"
PREFIX: Final = "$JS.SNAPSHOT."
#: Of a backup, on its way: as NATS has it.
CHUNK_BYTES: Final = 128 << 10
CHUNK_BYTES_MIN: Final = 1 << 10
CHUNK_BYTES_MAX: Final = 1 << 20
WINDOW_BYTES: Final = 8 << 20
WINDOW_BYTES_MAX: Final = 32 << 20
#: For somebody to want the backup, and for the answer to a chunk.
WANTED_S_MAX: Final = 2.0
ANSWER_S_MAX: Final = 5.0
#: Without a chunk for so long a restore ends.
SILENT_S_MAX: Final = 10.0
#: Chunks of a restore that were not looked at yet.
AHEAD_MAX: Final = 8
#: At once on a node, of each kind.
UNDER_WAY_MAX: Final = 16
#: Read at once; and how long to wait for it, when what was there has been deleted since.
MESSAGES_AT_ONCE: Final = 1_000
IDS_AT_ONCE: Final = 10_000
BYTES_AT_ONCE: Final = 512 << 10
READ_S_MAX: Final = 5.0
#: For a command of a restore.
STORE_S_MAX: Final = 30.0
LOOK_S: Final = 0.02

_DONE: Final = b"NATS/1.0 204\r\n\r\n"


class _Sending:
    """A backup on its way to a client."""

    def __init__(self, chunks: int) -> None:
        self.room = asyncio.Semaphore(chunks)


class _Receiving:
    """A restore: what its client sent and nobody looked at yet, and where answers go."""

    def __init__(self, vhost: str, name: str) -> None:
        self.vhost = vhost
        self.name = name
        self.chunks: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue(AHEAD_MAX)


class Archives:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterNode,
        api: Api,
        reads: StreamReads,
        ingress: Ingress,
        post: Post,
        peer_rpc: PeerRpc,
        tasks: Tasks,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._reads = reads
        self._ingress = ingress
        self._post = post
        self._peer_rpc = peer_rpc
        self._tasks = tasks
        self._retries = cluster.forwarder.new_retries()
        self._sending: dict[str, _Sending] = {}
        self._receiving: dict[str, _Receiving] = {}
        api.serve_here("STREAM.SNAPSHOT", self._back_up)
        api.serve_here("STREAM.RESTORE", self._restore)
        peer_rpc.on(KIND, self._from_peer)

    def take(self, vhost: str, message: Publish) -> bool:
        """What a client says of a backup or a restore. False: of none that is under way here."""
        words = message.subject.decode(errors="replace").split(".")
        match words:
            case [_, _, "ACK", _, number, _, _] if number in self._sending:
                self._sending[number].room.release()
                return True
            case [_, _, "RESTORE", _, number]:
                receiving = self._receiving.get(number)
                if receiving is None or receiving.vhost != vhost:
                    return False
                for payload in message.payloads:
                    body = payload[message.header_bytes : -2]
                    with contextlib.suppress(asyncio.QueueFull):  # who is not answered has to wait
                        receiving.chunks.put_nowait((message.reply, body))
                return True
            case _:
                return False

    # --- what other nodes ask ---------------------------------------------------------------------

    def _from_peer(self, _: NodeId, message: list[Any]) -> Any:
        match message:
            case ["state", vhost, name, last]:
                return self._own_state(vhost, name, last)
            case ["ids", vhost, name, after, last]:
                return self._own_ids(vhost, name, after, last)
            case ["restores", vhost, name]:
                return self._restores(vhost, name)
            case _:
                return None

    def _restores(self, vhost: str, name: str) -> bool:
        return any((each.vhost, each.name) == (vhost, name) for each in self._receiving.values())

    async def _own_state(self, vhost: str, name: str, last: int) -> Json | None:
        """Up to that sequence; 0: all. None: this node does not lead it."""
        stream = await self._led(vhost, name)
        return None if stream is None else _state_of(stream, last or stream.retained.next - 1)

    async def _own_ids(
        self, vhost: str, name: str, after: int, last: int
    ) -> list[tuple[str, int, int]] | None:
        """Those behind that sequence, some at a time. None: as above."""
        stream = await self._led(vhost, name)
        if stream is None:
            return None
        found: list[tuple[str, int, int]] = []
        room = BYTES_AT_ONCE
        for row in stream.appending.ids.rows(after):
            room -= len(row[0])
            if row[1] > last or room < 0 or len(found) == IDS_AT_ONCE:
                break
            found.append(row)
        return found

    async def _led(self, vhost: str, name: str) -> Stream | None:
        """With all that was answered before. None: this node does not lead it."""
        info = self._cluster.queue_info(vhost, name)
        group = None if info is None else self._cluster.group(info.group)
        if info is None or group is None or not group.ready:
            return None
        if (await group.ask(Barrier())).kind != "ok":
            return None
        return stream_of(group, info.queue)

    async def _ask_leader(self, info: QueueInfo, word: str, *words: Any) -> Any:
        """TimeoutError, BrokerError."""
        async with asyncio.timeout(READ_S_MAX):
            while True:
                leader = self._cluster.leader_of(info.group)
                found = None
                if leader is not None:
                    with contextlib.suppress(Elsewhere):
                        where = (leader, KIND, word, info.vhost, info.name)
                        found = await self._peer_rpc.request(*where, *words)
                if found is not None:
                    return found
                await asyncio.sleep(LOOK_S)

    # --- backups ----------------------------------------------------------------------------------

    async def _back_up(self, asked: Asked) -> Json:
        given = fields.load(asked.body)
        if not given:
            raise known(10003)
        deliver = fields.text(given, "deliver_subject").encode()
        if not (is_subject(deliver) and is_literal(deliver)) or deliver[:1] == b"$":
            raise ApiError(400, 10015, "deliver subject not valid")
        chunk = fields.number(given, "chunk_size") or CHUNK_BYTES
        chunk = min(max(chunk, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        window = min(fields.number(given, "window_size") or WINDOW_BYTES, WINDOW_BYTES_MAX)
        info = await self._api.find(asked.vhost, asked.call.stream)
        if len(self._sending) >= UNDER_WAY_MAX:
            raise _no_backup(f"this node makes {UNDER_WAY_MAX} already")
        try:
            state = await self._ask_leader(info, "state", 0)
        except (BrokerError, TimeoutError):
            raise known(10008) from None
        if fields.flag(given, "no_consumers"):
            state["consumers"] = []
        shown = await self._api.info_of(asked.vhost, info.name)
        number = secrets.token_hex(8)
        sending = self._sending[number] = _Sending(max(1, window // chunk))
        inbox = Inbox(asked.vhost, deliver)
        work = self._send(info, state, number, sending, inbox, chunk)
        self._tasks.start(work, name="stream_backup")  # which begins after the answer
        return {"config": shown["config"], "state": shown["state"]}

    async def _send(
        self,
        info: QueueInfo,
        state: Json,
        number: str,
        sending: _Sending,
        inbox: Inbox,
        chunk_bytes: int,
    ) -> None:
        """All of it, in chunks that are answered; then why it ended."""
        end, sent, data = _DONE, 0, bytearray()
        try:
            await self._until_wanted(inbox)
            async for frame in self._frames(info, state):
                data += frame
                while len(data) >= chunk_bytes:
                    sent += 1
                    await self._send_chunk(info, number, sending, inbox, data[:chunk_bytes], sent)
                    del data[:chunk_bytes]
            await self._send_chunk(info, number, sending, inbox, data, sent + 1)
        except _Over as over:
            end = over.header
        except (BadArchive, BrokerError, TimeoutError) as error:
            end = status(500, f"snapshot failed: {error or 'the stream cannot be read now'}")
        finally:
            del self._sending[number]
            log.info("stream_backup_ended", stream=info.name, chunks=sent, whole=end is _DONE)
        self._post.send(inbox, b"", end)

    async def _until_wanted(self, inbox: Inbox) -> None:
        """A client subscribes when it has the answer. Before that its inboxes' wildcard matches,
        where nobody would take the chunks.
        """
        until_s = asyncio.get_running_loop().time() + WANTED_S_MAX
        while not self._post.subscribed(inbox):
            if asyncio.get_running_loop().time() > until_s:
                if self._post.wanted(inbox):  # at another node, or by a wildcard
                    return
                raise _Over(status(408, "No Interest"))
            await asyncio.sleep(LOOK_S)

    async def _send_chunk(
        self,
        info: QueueInfo,
        number: str,
        sending: _Sending,
        inbox: Inbox,
        chunk: bytearray,
        sent: int,
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await sending.room.acquire()
        except TimeoutError:
            raise _Over(status(408, "No Flow Response")) from None
        if not self._post.wanted(inbox):
            raise _Over(status(408, "No Interest"))
        reply = f"{PREFIX}ACK.{info.name}.{number}.{len(chunk)}.{sent}".encode()
        self._post.send(inbox, bytes(chunk), b"", reply)

    async def _frames(self, info: QueueInfo, state: Json) -> AsyncIterator[bytes]:
        yield head_of(info.name)
        last, live, count = state["last"], state["live"], 0
        reader = StreamReader(self._reads, info, state["first"])
        while reader.sequence <= live:
            try:
                async with asyncio.timeout(READ_S_MAX):
                    found = await reader.next(MESSAGES_AT_ONCE, BYTES_AT_ONCE)
            except TimeoutError:  # the rest was deleted meanwhile, or cannot be read
                live = (await self._ask_leader(info, "state", last))["live"]
                if reader.sequence <= live:
                    raise
                break
            batch: list[Message] = []
            for sequence, body, meta, subject, stored_ms in found:
                if sequence > last:
                    break
                if isinstance(body, LargeBody):
                    raise BadArchive(
                        f"message {sequence} has {len(body)} bytes: back up the cluster instead"
                    )
                batch.append(Message(sequence, stored_ms, subject, header_of(meta, info), body))
            count += len(batch)
            if batch:
                yield await asyncio.to_thread(messages_of, batch)
        after = 0
        while rows := await self._ask_leader(info, "ids", after, last):
            yield ids_of(Ids(rows))
            after = rows[-1][1]
        consumers = [ConsumerState(*row) for row in state["consumers"]]
        yield end_of(End(last, state["last_ms"], count, consumers, state["last_id"]))

    # --- restores ---------------------------------------------------------------------------------

    async def _restore(self, asked: Asked) -> Json:
        given = fields.load(asked.body)
        config = fields.part(given, "config") or {}
        if not given:
            raise known(10003)
        vhost, name = asked.vhost, asked.call.stream
        if fields.text(config, "name") not in ("", name):
            raise known(10056)
        wanted = stream_config.stream_config({**config, "name": name, "sealed": False})
        wanted["sealed"] = fields.flag(config, "sealed")
        if wanted.get("mirror") or wanted.get("sources"):
            raise _not_restored(
                "a stream that follows others would take all of them again: restore it with a"
                " configuration without mirror and sources"
            )
        if wanted["allow_msg_schedules"]:
            raise _not_restored("schedules are not restored: use a backup of the cluster")
        if len(self._receiving) >= UNDER_WAY_MAX:
            raise _not_restored(f"this node restores {UNDER_WAY_MAX} already")
        if self._restores(vhost, name):
            raise _in_use()
        receiving = _Receiving(vhost, name)
        number = secrets.token_hex(8)
        self._receiving[number] = receiving
        try:
            self._check_room(vhost)
            await self._remove_remains(vhost, name)
            info = await self._begin(vhost, name, wanted, number)
        except BaseException:
            del self._receiving[number]
            raise
        work = self._receive(number, receiving, info, wanted)
        self._tasks.start(work, name="stream_restore")
        return {"deliver_subject": f"{PREFIX}RESTORE.{name}.{number}"}

    def _check_room(self, vhost: str) -> None:
        try:
            self._ingress.check_alarms()
            self._ingress.check_vhost(vhost)
        except BrokerError as error:
            raise _not_restored(error.reason) from None

    async def _remove_remains(self, vhost: str, name: str) -> None:
        """Of a restore that nobody goes on with. ApiError: there is a stream, or there is one."""
        await self._cluster.names.barrier()
        info = self._cluster.queue_info(vhost, name)
        if info is None:
            return
        if not stream_config.is_restored(info.stream):
            raise _in_use()
        answers = await self._peer_rpc.request_others(KIND, "restores", vhost, name)
        if any(answers.values()):
            raise _in_use()
        # Who said that it restores nothing may just have finished, and who is cut off says nothing:
        # the catalog removes this one, and only while it is not whole.
        outcome = await self._cluster.remove_unchanged(info)
        if outcome.kind != "ok":
            raise _not_restored(outcome.reason or "what is left of an earlier one cannot go now")
        if self._cluster.queue_info(vhost, name) is not None:
            raise _in_use()

    async def _begin(
        self, vhost: str, name: str, wanted: Mapping[str, Any], number: str
    ) -> QueueInfo:
        config = stream_config.restored(wanted, number)
        arguments = {QUEUE_TYPE: STREAM, STREAM_CONFIG: config}
        outcome = await self._cluster.declare_queue(vhost, name, arguments)
        reply = outcome.reply
        if outcome.code == INEQUIVALENT:  # somebody else was first
            raise _in_use()
        if outcome.kind != "ok" or not isinstance(reply, Declared):
            raise _not_restored(outcome.reason or "the stream cannot be made now")
        info = self._cluster.catalog_machine.queue_by_id(reply.queue)
        if info is None:
            raise _not_restored("the stream was removed at once")
        return info

    async def _receive(
        self, number: str, receiving: _Receiving, info: QueueInfo, wanted: Mapping[str, Any]
    ) -> None:
        reply = b""
        answer: Json | ApiError = _not_restored("this node stops")
        restoring = _Restoring(self, info, wanted)
        try:
            while True:
                async with asyncio.timeout(SILENT_S_MAX):
                    reply, body = await receiving.chunks.get()
                if not body:
                    break
                self._check_room(info.vhost)
                await restoring.take(body)
                self._post.send(Inbox(info.vhost, reply), b"")
            await restoring.finish()
            answer = await self._publish(info, wanted)
        except TimeoutError:
            log.warning("stream_restore_cut_off", stream=info.name)
            answer = _not_restored("nothing came, or the stream cannot be filled now")
        except BadArchive as error:
            answer = _not_restored(str(error))
        except BrokerError as error:
            answer = _not_restored(error.reason)
        except ApiError as error:
            answer = error
        except Exception as error:  # a bug: who asked is told, and nothing of it stays
            log.error("stream_restore_failed", stream=info.name, exc_info=error)
            answer = BUG
        finally:
            del self._receiving[number]
        if isinstance(answer, ApiError):
            answer = await self._undo(info, answer)
        self._post.json(Inbox(info.vhost, reply), {"type": type_of("STREAM.CREATE"), **answer})

    async def _publish(self, info: QueueInfo, wanted: Mapping[str, Any]) -> Json:
        """It is a whole one from now on."""
        config = {**wanted, stream_config.CREATED: self._cluster.now_ms()}
        arguments = {**info.arguments, STREAM_CONFIG: config}
        outcome = await self._cluster.change_stream(info, arguments)
        if outcome.kind != "ok":
            raise _not_restored(outcome.reason or "the stream cannot be changed now")
        return await self._api.info_of(info.vhost, info.name)

    async def _undo(self, info: QueueInfo, failure: ApiError) -> Json:
        """Nothing stays of a restore that failed, and its answer says so. Another stream that has
        the name by now is not touched. Nor is this one if it became whole by a change whose outcome
        nobody knew: then nothing failed.
        """
        await self._cluster.remove_unchanged(info)  # if not: by the next restore of this name
        left = self._cluster.catalog_machine.queue_by_id(info.queue)
        if left is None or stream_config.is_restored(left.stream):
            return {"error": failure.map}
        try:
            return await self._api.info_of(info.vhost, info.name)
        except ApiError as error:
            return {"error": error.map}

    def now_ms(self) -> int:
        return self._cluster.now_ms()

    async def ask(self, info: QueueInfo, command: Command) -> Outcome:
        return await self._retries.ask(info.group, command, within_s=STORE_S_MAX)


class _Over(Exception):
    def __init__(self, header: bytes) -> None:
        super().__init__()
        self.header = header


class _Restoring:
    """What came of a backup goes into the stream."""

    def __init__(self, home: Archives, info: QueueInfo, wanted: Mapping[str, Any]) -> None:
        self._home = home
        self._info = info
        self._wanted = wanted  # what its configuration will be
        self._consumers: dict[str, dict[str, Any]] = {}  # their configurations
        self._reader = ArchiveReader()
        self._head: Head | None = None
        self._end: End | None = None
        self._after = 0  # the sequence stored last
        self._count = 0
        self._ids: list[tuple[str, int, int]] = []

    async def take(self, data: bytes) -> None:
        """BadArchive, or it is not stored."""
        for frame in self._reader.feed(data):
            if self._end is not None:
                raise BadArchive("something follows its end")
            if isinstance(frame, Head):
                if self._head is not None or frame.name != self._info.name:
                    raise BadArchive(f"it is a backup of stream {frame.name}")
                self._head = frame
            elif self._head is None:
                raise BadArchive("its head is missing")
            elif isinstance(frame, End):
                self._end = frame
            elif isinstance(frame, Ids):
                self._ids += frame.rows
            elif frame:
                await self._store(frame)

    async def finish(self) -> None:
        """All came: what belongs to the stream beside its messages."""
        end = self._end
        if end is None or self._reader.is_cut or end.messages != self._count:
            raise BadArchive("the backup is cut off: its end is missing")
        if end.last > self._after:
            await self._store([Message(end.last, end.last_ms, b"", b"", b"")])
            await self._ask(DeleteMessage(self._info.queue, end.last))
        queue = self._info.queue
        for at in range(0, max(len(self._ids), 1), IDS_AT_ONCE):
            await self._ask(RestoreIds(queue, self._ids[at : at + IDS_AT_ONCE], end.last_id))
        for each in end.consumers:
            await self._restore_consumer(each)

    async def _store(self, messages: Sequence[Message]) -> None:
        info, now_ms = self._info, self._home.now_ms()
        attrs: list[dict[int, Any]] = []
        for each in messages:
            attrs.append({ATTR_SUBJECT: each.subject})
            if (ttl_ms := copied(each.header).get(ASKED_TTL_MS)) is not None:
                attrs[-1][ATTR_ASKED] = {ASKED_TTL_MS: ttl_ms}
        origin = Origin(
            origin_key({"name": stream_config.RESTORED}),
            QueueId(info.queue),
            self._after,
            messages[-1].sequence,
            [(each.sequence, each.sequence) for each in messages],
            [max(0, min(each.stored_ms, now_ms)) for each in messages],
        )
        bodies, metas = [each.body for each in messages], [each.header or None for each in messages]
        command = Enqueue(info.queue, None, 0, bodies, metas, attrs, None, origin=origin)
        outcome = await self._home.ask(info, command)
        again = (
            isinstance(outcome.reply, Refused)
            and outcome.code == OUT_OF_SEQUENCE
            and outcome.reply.detail == origin.last + 1
        )
        if outcome.kind != "ok" and not again:  # else an earlier try did it
            raise BadArchive(outcome.reason or "its messages cannot be stored now")
        self._after = origin.last
        self._count += len(messages)

    async def _ask(self, command: Command) -> Any:
        outcome = await self._home.ask(self._info, command)
        if outcome.kind != "ok":
            raise BadArchive(outcome.reason or "what it says cannot be done now")
        return outcome.reply

    async def _restore_consumer(self, state: ConsumerState) -> None:
        queue, name = self._info.queue, fields.text(state.config, "name")
        if not stream_config.is_name(name):
            raise BadArchive("a consumer has no name")
        config = consumer_config.consumer_config(state.config, self._wanted)
        if self._wanted["retention"] == "workqueue":
            consumer_config.check_workqueue(config, self._consumers)
        self._consumers[name] = config
        await self._ask(PutConsumer(queue, config))
        if state.cursor:
            await self._ask(RestoreConsumer(queue, name, *state[1:]))


def _state_of(stream: Stream, last: int) -> Json:
    retained = stream.retained
    live = retained.last_live(last) if retained.count else 0
    consumers = [list(_consumer_state(each)) for each in stream.consumers.values()]
    return {
        "first": retained.first,
        "last": last,
        "live": live,
        "last_ms": retained.last_ms,
        "consumers": consumers,
        "last_id": stream.appending.ids.last,
    }


def _consumer_state(each: StreamConsumer) -> ConsumerState:
    return ConsumerState(
        consumer_config.shown(each.config),
        each.cursor,
        (each.delivered, each.delivered_stream, each.delivered_ms),
        (each.floor, each.floor_stream, each.floor_ms),
        [(first, last, held.ahead, held.deliveries) for first, last, held in each.held],
        [(first, last) for first, last, _ in each.picked],
        [(first, last) for first, last, _ in each.exhausted],
    )


def _no_backup(why: str) -> ApiError:
    return ApiError(500, 10064, f"snapshot failed: {why}")


def _not_restored(why: str) -> ApiError:
    return ApiError(500, 10062, f"restore failed: {why}")


def _in_use() -> ApiError:
    return ApiError(400, 10130, "stream name already in use, cannot restore")
