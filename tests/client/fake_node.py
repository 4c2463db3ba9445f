"""Nodes that speak docs/protocol.md and keep everything in memory, with switches for all that can
go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import cbor2
from aiohttp import WSMsgType, web

from quorate import wire


class FakeQueue:
    """Numbered messages, consumers served in turn, publishers with their last number."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.metas: dict[int, Any] = {}
        self.acquired: dict[int, int] = {}
        self.last = 0
        self.ready: list[int] = []
        self.held: dict[int, dict[int, int]] = {}  # consumer -> position -> token
        self.settled: list[int] = []
        self.discarded: list[int] = []
        self.publishers: dict[str, int] = {}
        self.consumers: dict[tuple[str, str], int] = {}  # session, tag -> key
        self.credits: dict[int, int] = {}
        self.auto: dict[int, bool] = {}
        self.cancelled: set[int] = set()
        self.where: dict[int, tuple[FakeNode, web.WebSocketResponse]] = {}
        self.token = 0
        self.next_key = 1
        self.length_max: int | None = None

    def enqueue(self, name: str | None, seqno: int, bodies: list[bytes], meta: Any) -> list[Any]:
        """The rest of a CONFIRM row, or an ERROR's code, reason and detail."""
        if name is not None:
            last = self.publishers.get(name, 0)
            if seqno > last + 1 or not bodies:
                return ["out_of_sequence", f"{last + 1} is expected", last + 1]
            if seqno + len(bodies) - 1 <= last:
                return [0, 0, len(bodies), []]
            self.publishers[name] = seqno + len(bodies) - 1
        first, refused = self.last + 1, []
        for offset, body in enumerate(bodies):
            if self.length_max is not None and len(self.ready) >= self.length_max:
                refused.append([offset, offset])
                continue
            self.last += 1
            self.bodies[self.last] = body
            self.metas[self.last] = meta[offset] if isinstance(meta, list) else meta
            self.ready.append(self.last)
        return [first, len(bodies) - len(refused), 0, refused]

    def take(self, key: int, count: int) -> list[list[Any]]:
        """Chunks of one message each, so that ranges are the client's own work."""
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.token += 1
        chunks = []
        for position in taken:
            self.held.setdefault(key, {})[position] = self.token
            chunks.append(self.chunk(position, self.token))
            self.acquired[position] = self.acquired.get(position, 0) + 1
        return chunks

    def chunk(self, position: int, token: int) -> list[Any]:
        before = self.acquired.get(position, 0)
        return [position, token, 0, before, [self.bodies[position]], self.metas[position], None]

    def end(self, session: str) -> None:
        for (owner, tag), key in list(self.consumers.items()):
            if owner == session:
                del self.consumers[owner, tag]
                self.where.pop(key, None)
                self.ready = sorted([*self.ready, *self.held.pop(key, {})])


class FakeCluster:
    def __init__(self, count: int = 1) -> None:
        self.nodes = [FakeNode(self, f"n{number}") for number in range(1, count + 1)]
        self.queues: dict[str, FakeQueue] = {}
        self.leader: FakeNode | None = self.nodes[0]
        self.welcome_nodes = True

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.stop()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes if node.running]

    def queue(self, name: str) -> FakeQueue:
        return self.queues.setdefault(name, FakeQueue())

    async def lead(self, node: FakeNode | None) -> None:
        """Another leader; consumers connected elsewhere are told."""
        self.leader = node
        for name, queue in self.queues.items():
            for key, (at, socket) in list(queue.where.items()):
                if at is not node:
                    del queue.where[key]
                    where = [node.name, node.url] if node else [None, None]
                    await at.send(socket, [wire.REDIRECT, 0, name, *where])


class FakeNode:
    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.url = ""
        self.running = False
        self.sockets: set[web.WebSocketResponse] = set()
        self.seen: list[list[Any]] = []  # every frame of every client
        self.hellos: list[dict[str, Any]] = []
        self.authorizations: list[tuple[str, str | None]] = []  # path, header
        self.closed_to_strangers = False  # everybody is one
        self.mute: set[int] = set()  # opcodes done and not answered
        self.script: Callable[[list[Any]], list[Any] | None] | None = None  # answers instead
        self.deaf = False  # pings are not answered
        self.owed: list[Any] = []  # a DELIVER that follows the SUBSCRIBED
        self._port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[self._door])
        app.router.add_get("/v1/connect", self._connect)
        app.router.add_get("/v1/queues", self._list)
        app.router.add_get("/v1/queues/{vhost}/{name}/peek", self._peek)
        app.router.add_get("/v1/status", self._status)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.running = True

    async def stop(self) -> None:
        if self._runner is not None:
            self.running = False
            self.cut()
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Every connection is reset; the sessions stay."""
        for socket in list(self.sockets):
            transport = socket._req.transport if socket._req else None
            if transport is not None:
                transport.abort()

    async def send(self, socket: web.WebSocketResponse, frame: list[Any]) -> None:
        if not socket.closed:
            await socket.send_bytes(cbor2.dumps(frame))

    @web.middleware
    async def _door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.authorizations.append((request.path, request.headers.get("Authorization")))
        if self.closed_to_strangers:
            refusal = {"outcome": "refused", "code": "access_refused", "reason": "who?"}
            return web.json_response(refusal, status=401)
        return await handler(request)

    # --- HTTP -------------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        rows = [{"name": name, "vhost": "/"} for name in self.cluster.queues]
        return web.Response(body=cbor2.dumps(rows), content_type="application/cbor")

    async def _peek(self, request: web.Request) -> web.Response:
        leader = self.cluster.leader
        if leader is None:
            return web.json_response({"outcome": "refused", "code": "no_leader"}, status=503)
        if leader is not self:
            raise web.HTTPTemporaryRedirect(f"{leader.url}{request.path_qs}")
        queue = self.cluster.queues.get(request.match_info["name"])
        if queue is None:
            refusal = {"outcome": "refused", "code": "no_queue", "reason": "declare it first"}
            return web.json_response(refusal, status=404)
        rows = [{"position": p, "state": "ready", "body": queue.bodies[p]} for p in queue.ready]
        return web.Response(
            body=cbor2.dumps({"messages": rows[: int(request.query["count"])]}),
            content_type="application/cbor",
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"cluster": "fake", "nodes": [{"node": self.name}], "groups": []})

    # --- WebSocket --------------------------------------------------------------------------------

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(request)
        self.sockets.add(socket)
        hello = cbor2.loads(await socket.receive_bytes())
        assert hello[0] == wire.HELLO
        self.hellos.append(hello[2])
        nodes = {n.name: n.url for n in self.cluster.nodes} if self.cluster.welcome_nodes else {}
        about = {"node": self.name, "cluster": "fake", "session": hello[2]["session"]}
        limits = {"frame_bytes_max": 1 << 20, "in_flight_bytes_max": 1 << 20}
        await self.send(
            socket, [wire.WELCOME, 1, {**about, **limits, "resumed": False, "nodes": nodes}]
        )
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    await self._handle(socket, hello[2]["session"], cbor2.loads(message.data))
        finally:
            self.sockets.discard(socket)
        return socket

    async def _handle(self, socket: web.WebSocketResponse, session: str, frame: list[Any]) -> None:
        self.seen.append(frame)
        opcode = frame[0]
        if opcode == wire.PING:
            if self.deaf:
                return
            await self.send(socket, [wire.PONG, frame[1]])
            return
        if opcode == wire.CLOSE:
            for queue in self.cluster.queues.values():
                queue.end(session)
            return
        if self.script is not None and (answer := self.script(frame)) is not None:
            if answer:
                await self.send(socket, answer)
            return
        if self.cluster.leader is not self:
            leader = self.cluster.leader
            where = [leader.name, leader.url] if leader else [None, None]
            await self.send(socket, [wire.REDIRECT, frame[1], frame[2], *where])
            return
        answer = self._do(socket, session, opcode, frame[1], frame[2], frame[3:])
        if opcode not in self.mute:
            await self.send(socket, answer)
        if self.owed:
            owed, self.owed = self.owed, []
            await self.send(socket, owed)
        await self._deliver(frame[2])

    def _do(
        self,
        socket: web.WebSocketResponse,
        session: str,
        opcode: int,
        request: int,
        name: str,
        fields: list[Any],
    ) -> list[Any]:
        queues = self.cluster.queues
        if opcode == wire.DECLARE:
            created = name not in queues
            self.cluster.queue(name)
            return [wire.OK, request, {"created": created, "leader": self.name, "group": "g1"}]
        queue = queues.get(name)
        if queue is None:
            return [wire.ERROR, request, "no_queue", f"declare {name} first", None]
        if opcode == wire.PUBLISH:
            outcome = queue.enqueue(fields[0], fields[1], fields[2], fields[3])
            if isinstance(outcome[0], str):
                return [wire.ERROR, request, *outcome]
            return [wire.CONFIRM, [[request, *outcome]]]
        if opcode == wire.SUBSCRIBE:
            return self._subscribe(socket, session, request, name, queue, fields[0])
        if opcode == wire.GET:
            key, queue.next_key = queue.next_key, queue.next_key + 1
            chunks = queue.take(key, fields[0])
            return [wire.GOT, request, name, key, len(queue.ready), chunks]
        if opcode == wire.CANCEL:
            return self._cancel(queue, request, *fields)
        if opcode in (wire.SETTLE, wire.RETURN, wire.DISCARD, wire.EXTEND):
            return self._answer(queue, opcode, request, fields)
        if opcode == wire.PURGE:
            count, queue.ready = len(queue.ready), []
            return [wire.OK, request, count]
        if opcode == wire.DELETE:
            del queues[name]
            return [wire.OK, request, None]
        if opcode == wire.INFO:
            return [wire.OK, request, {"ready": len(queue.ready)}]
        return [wire.OK, request, None]

    def _subscribe(
        self,
        socket: web.WebSocketResponse,
        session: str,
        request: int,
        name: str,
        queue: FakeQueue,
        options: dict[str, Any],
    ) -> list[Any]:
        key = queue.consumers.get((session, options["tag"]))
        if key is None:
            key, queue.next_key = queue.next_key, queue.next_key + 1
            queue.consumers[session, options["tag"]] = key
        queue.credits[key] = options["credit"] or 1_000_000
        queue.auto[key] = options["auto_settle"]
        queue.where[key] = (self, socket)
        has = {p for first, last, _ in options["held"] for p in range(first, last + 1)}
        lacks = [
            queue.chunk(p, token) for p, token in queue.held.get(key, {}).items() if p not in has
        ]
        if lacks:
            self.owed = [wire.DELIVER, name, key, lacks]
        return [wire.SUBSCRIBED, request, key, True]

    def _cancel(
        self, queue: FakeQueue, request: int, key: int, give_back: bool = False
    ) -> list[Any]:
        if key not in queue.consumers.values():
            return [wire.ERROR, request, "no_consumer", "there is none", None]
        queue.where.pop(key, None)
        queue.cancelled.add(key)
        if give_back:
            queue.consumers = {who: k for who, k in queue.consumers.items() if k != key}
            queue.ready = sorted([*queue.ready, *queue.held.pop(key, {})])
        return [wire.OK, request, None]

    def _answer(self, queue: FakeQueue, opcode: int, request: int, fields: list[Any]) -> list[Any]:
        held = queue.held.get(fields[0], {})
        positions = [p for first, last in fields[1] for p in range(first, last + 1)]
        for position in positions:
            if position not in held:
                return [wire.ERROR, request, "unknown_delivery", "not yours", position]
            if opcode != wire.EXTEND and held[position] > fields[-1]:
                return [wire.ERROR, request, "unknown_delivery", "delivered again", position]
        if opcode == wire.EXTEND:
            return [wire.OK, request, None]
        for position in positions:
            del held[position]
        if opcode == wire.SETTLE:
            queue.settled += positions
        elif opcode == wire.DISCARD:
            queue.discarded += positions
        else:
            queue.ready = sorted([*queue.ready, *positions])
        return [wire.OK, request, None]

    async def _deliver(self, name: str) -> None:
        queue = self.cluster.queues.get(name)
        if queue is None:
            return
        for key, (node, socket) in list(queue.where.items()):
            room = queue.credits[key] - len(queue.held.get(key, {}))
            if node is self and queue.ready and room > 0:
                chunks = queue.take(key, room)
                if queue.auto[key]:
                    queue.settled += list(queue.held.pop(key))
                await self.send(socket, [wire.DELIVER, name, key, chunks])
