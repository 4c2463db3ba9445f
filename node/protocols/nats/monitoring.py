"""What NATS's monitoring tools ask for by HTTP: how this node, its clients and its streams are.

The paths and the names of fields are those that `nats`, exporters and clients' own tests read. What
a node does not know is left out. Nothing can be changed here, and nobody needs a password.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from aiohttp import web

from cluster.cluster_node import ClusterNode
from cluster.groups.group_like import GroupLike
from cluster.machine.catalog import QueueInfo
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.settings import matches
from cluster.machine.stream.stream import Stream
from node.memory import resident_bytes
from node.operating.health import Health
from node.protocols.connection_limiter import ConnectionLimiter
from node.protocols.http_server import HttpServer
from node.protocols.nats.connection import (
    LOGIN_S_MAX,
    PENDING_BYTES_MAX,
    PING_S,
    PINGS_MAX,
    WRITE_S_MAX,
    NatsConnection,
    NatsPhase,
    text_of,
)
from node.protocols.nats.interest import Subscription
from node.protocols.nats.jetstream.api import LEVEL
from node.protocols.nats.jetstream.reading import stream_of
from node.protocols.nats.jetstream.times import NS_PER_S, text_of_ms
from node.protocols.nats.reader import CONTROL_LINE_BYTES_MAX
from node.protocols.nats.server import VERSION, NatsServer
from node.protocols.tls import Certificates
from node.settings.settings import Settings

#: Rows of a page, unless fewer are asked for.
ROWS_MAX: Final = 1024
#: Of a list of everything, between two breaths of the loop.
ROWS_AT_ONCE: Final = 100
DIGITS_MAX: Final = 18
FLAGS: Final = {"": False, "0": False, "f": False, "false": False} | dict.fromkeys(
    ("1", "t", "true"), True
)

Json = dict[str, Any]
#: A stream of which this node has a copy.
Copy = tuple[QueueInfo, GroupLike, Stream]

#: By what lists of connections may be sorted, largest first but for the number.
_SORTS: Final[Mapping[str, Callable[[NatsConnection], float]]] = {
    "cid": lambda each: -each.number,
    "start": lambda each: -each.opened_s,
    "uptime": lambda each: -each.opened_s,
    "subs": lambda each: len(each.subscriptions),
    "pending": lambda each: each.pending_bytes,
    "msgs_to": lambda each: each.counters.out_messages,
    "msgs_from": lambda each: each.counters.in_messages,
    "bytes_to": lambda each: each.counters.out_bytes,
    "bytes_from": lambda each: each.counters.in_bytes,
    "last": lambda each: each.active_s,
    "idle": lambda each: -each.active_s,
}


class Monitoring:
    """One per node, if it listens for NATS's clients; by HTTP if `nats_monitor` is set."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterNode,
        nats: NatsServer,
        health: Health,
        *,
        limiter: ConnectionLimiter,
        certificates: Certificates,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._nats = nats
        self._api = nats.jetstream.api
        self._node = cluster.node
        self._health = health
        self._started_s = time.monotonic()
        self._started_ms = cluster.now_ms()
        self._asked: Counter[str] = Counter()
        self._http = HttpServer(
            settings, limiter, certificates, {"nats_monitor": (settings.nats_monitor, None)}
        )
        self._answers: dict[str, Callable[[_Query], Awaitable[Json]]] = {
            "varz": self._varz,
            "connz": self._connz,
            "subsz": self._subsz,
            "jsz": self._jsz,
            "accountz": self._accountz,
            "routez": self._routez,
            "accstatz": self._accstatz,
            "gatewayz": self._gatewayz,
            "leafz": self._leafz,
        }
        router = self._http.app.router
        for name, answer in self._answers.items():
            router.add_get(f"/{name}", self._answering(answer))
        router.add_get("/healthz", self._healthz)
        self._paths = "".join(f"/{name}\n" for name in (*self._answers, "healthz"))
        router.add_get("/", self._index)

    @property
    def address(self) -> str | None:
        """None: not by HTTP."""
        return self._http.addresses.get("nats_monitor")

    async def listen(self) -> None:
        """SettingsError: it cannot."""
        await self._http.bind()
        await self._http.start()

    async def stop(self) -> None:
        """Safe without `listen`."""
        await self._http.stop()
        self._http.unbind()

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text=self._paths)

    def _answering(
        self, answer: Callable[[_Query], Awaitable[Json]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self._asked[request.path] += 1
            return web.json_response(await answer(_Query(request.query)))

        return handle

    async def answer(self, name: str, query: Mapping[str, str]) -> Json | None:
        """As HTTP would be, for those who ask otherwise. None: there is nothing of this name.
        Raises web.HTTPBadRequest.
        """
        if name == "healthz":
            return self._health_of(_Query(query))
        answer = self._answers.get(name)
        return None if answer is None else await answer(_Query(query))

    def _about(self) -> Json:
        return {"server_id": self._nats.id, "now": text_of_ms(self._cluster.now_ms())}

    # --- the node ---------------------------------------------------------------------------------

    async def _varz(self, _: _Query) -> Json:
        settings, nats, counted = self._settings, self._nats, self._nats.counted()
        host, port = _parts(nats.address or nats.tls_address)
        http_host, http_port = _parts(self.address)
        peer_host, peer_port = _parts(self._cluster.address_of(self._node, "peer"))
        up_s = time.monotonic() - self._started_s
        return {
            **self._about(),
            "server_name": settings.node,
            "version": VERSION,
            "proto": 1,
            "go": "none",
            "host": host,
            "port": port,
            "auth_required": True,
            "connect_urls": nats.urls(tls=nats.address is None),
            "max_connections": settings.limits.connections_max,
            "max_subscriptions": nats.subscriptions_max,
            "ping_interval": round(PING_S * NS_PER_S),
            "ping_max": PINGS_MAX,
            "http_host": http_host,
            "http_port": http_port,
            "http_base_path": "",
            "https_port": 0,
            "auth_timeout": LOGIN_S_MAX,
            "tls_timeout": settings.limits.handshake_ms_max / 1000,
            "max_control_line": CONTROL_LINE_BYTES_MAX,
            "max_payload": nats.payload_bytes_max,
            "max_pending": PENDING_BYTES_MAX,
            "write_deadline": round(WRITE_S_MAX * NS_PER_S),
            "cluster": {
                "name": settings.cluster,
                "addr": peer_host,
                "cluster_port": peer_port,
                "urls": list(settings.peers.values()),
            },
            "gateway": {},
            "leaf": {},
            "mqtt": {},
            "websocket": {},
            "jetstream": await self._jetstream_row(),
            "start": text_of_ms(self._started_ms),
            "uptime": _uptime(up_s),
            "mem": resident_bytes(),
            "cores": os.cpu_count(),
            "cpu": round(100 * time.process_time() / max(up_s, 1.0), 1),
            "connections": len(nats.connected),
            "total_connections": nats.opened_count,
            "routes": len(nats.subjects.routes.others()),
            "remotes": len(nats.subjects.routes.others()),
            "leafnodes": 0,
            "in_msgs": counted.in_messages,
            "in_bytes": counted.in_bytes,
            "out_msgs": counted.out_messages,
            "out_bytes": counted.out_bytes,
            "slow_consumers": nats.slow_count,
            "subscriptions": self._subscription_count(),
            "http_req_stats": dict(self._asked),
            "config_load_time": text_of_ms(self._started_ms),
        }

    async def _jetstream_row(self) -> Json:
        used, meta = self._usage([each async for each in self._copies()]), self._meta()
        found: Json = {"config": self._config(used), "stats": used}
        return found if meta is None else found | {"meta": meta}

    async def _routez(self, _: _Query) -> Json:
        routes, cluster, rows = self._nats.subjects.routes, self._cluster, list[Json]()
        for number, (node, wanted) in enumerate(routes.others(), 1):
            host, port = _parts(cluster.address_of(node, "peer"))
            up_s = routes.up_s(node)
            rows.append(
                {
                    "rid": number,
                    "remote_id": node,
                    "remote_name": node,
                    "ip": host,
                    "port": port,
                    "start": text_of_ms(cluster.now_ms() - round(up_s * 1000)),
                    "uptime": _uptime(up_s),
                    "pending_size": cluster.links.buffered(node),
                    "subscriptions": wanted,
                }
            )
        name = self._settings.node
        return {**self._about(), "server_name": name, "num_routes": len(rows), "routes": rows}

    async def _healthz(self, request: web.Request) -> web.Response:
        self._asked[request.path] += 1
        found = self._health_of(_Query(request.query))
        return web.json_response(found, status=found.get("status_code", 200))

    def _health_of(self, query: _Query) -> Json:
        """Of the node; or of one stream or consumer, as this node's copy has it."""
        account, name, consumer = map(query.text, ("account", "stream", "consumer"))
        if reasons := self._health.why_not_ready():
            return _unwell(503, "; ".join(reasons))
        if not name:
            return {"status": "ok"}
        if not account:
            return _unwell(400, '"account" must not be empty when checking stream health')
        info = self._cluster.queue_info(account, name)
        if info is None or info.stream is None:
            return _unwell(404, f'JetStream stream "{name}" not found on account "{account}"')
        group = self._cluster.group(info.group)
        if self._cluster.leader_of(info.group) is None:
            return _unwell(503, f'JetStream stream "{name}" has no leader')
        stream = None if group is None else stream_of(group, info.queue)
        if consumer and stream is not None and consumer not in stream.consumers:
            return _unwell(404, f'JetStream consumer "{consumer}" not found for stream "{name}"')
        return {"status": "ok"}

    # --- clients ----------------------------------------------------------------------------------

    async def _connz(self, query: _Query) -> Json:
        offset, limit = query.page()
        sort, user, account = query.text("sort") or "cid", query.text("user"), query.text("acc")
        cid, state = query.number("cid"), query.text("state") or "open"
        if sort not in _SORTS:
            _refuse(f"invalid sorting option: {sort}")
        if state not in ("open", "closed", "all", "any"):
            _refuse(f"invalid state: {state}")
        found = [
            each
            for each in self._nats.connected
            if state != "closed"  # those are not remembered
            and (not cid or each.number == cid)
            and (not user or each.user_name == user)
            and (not account or each.vhost == account)
        ]
        # The number decides among equals: they are in its order.
        page = heapq.nlargest(offset + limit, found, _SORTS[sort])[offset:]
        auth, subscriptions = query.flag("auth"), query.text("subs")
        rows: list[Json] = []
        for number, connection in enumerate(page):
            rows.append(self._connection_row(connection, subscriptions, auth=auth))
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return {
            **self._about(),
            "num_connections": len(rows),
            "total": len(found),
            "offset": offset,
            "limit": limit,
            "connections": rows,
        }

    def _connection_row(self, each: NatsConnection, subscriptions: str, *, auth: bool) -> Json:
        counters, ends = each.counters, each.ends
        now_ms, up_s, idle_s = self._cluster.now_ms(), each.up_s, each.idle_s
        found: Json = {
            "cid": each.number,
            "kind": "Client",
            "type": "websocket" if each.origin.websocket else "nats",
            "ip": ends.peer_host,
            "port": ends.peer_port,
            "start": text_of_ms(now_ms - round(up_s * 1000)),
            "last_activity": text_of_ms(now_ms - round(idle_s * 1000)),
            "uptime": _uptime(up_s),
            "idle": _uptime(idle_s),
            "pending_bytes": each.pending_bytes,
            "in_msgs": counters.in_messages,
            "out_msgs": counters.out_messages,
            "in_bytes": counters.in_bytes,
            "out_bytes": counters.out_bytes,
            "subscriptions": len(each.subscriptions),
            **each.about,
        }
        if auth and each.phase is NatsPhase.RUNNING:
            found |= {"authorized_user": each.user_name, "account": each.vhost}
        rows = map(_subscription_row, each.subscriptions.values())
        if subscriptions == "detail":
            found["subscriptions_list_detail"] = [{**row, "cid": each.number} for row in rows]
        elif FLAGS.get(subscriptions):
            found["subscriptions_list"] = [row["subject"] for row in rows]
        return found

    async def _subsz(self, query: _Query) -> Json:
        offset, limit = query.page()
        account, test = query.text("acc"), query.text("test").encode()
        found: Json = {**self._about(), "num_subscriptions": self._subscription_count()}
        rows: list[Json] = []
        total = 0
        if query.flag("subs") or test:
            every = [
                (connection, each)
                for connection in self._nats.connected
                if not account or connection.vhost == account
                for each in connection.subscriptions.values()
                if not test or matches(each.subject, test)
            ]
            total = len(every)
            rows = [
                {
                    "account": connection.vhost,
                    **_subscription_row(each),
                    "cid": connection.number,
                }
                for connection, each in every[offset : offset + limit]
            ]
            found["subscriptions_list"] = rows
        return found | {"total": total, "offset": offset, "limit": limit}

    def _subscription_count(self) -> int:
        return sum(len(each.subscriptions) for each in self._nats.connected)

    async def _accountz(self, query: _Query) -> Json:
        vhosts = [key[0] for key in sorted(self._cluster.catalog_machine.entries("vhosts"))]
        name = query.text("acc")
        if not name:
            return {**self._about(), "accounts": vhosts}
        if name not in vhosts:
            _refuse(f"Account {name} does not exist")
        here = [each for each in self._nats.connected if each.vhost == name]
        detail: Json = {
            "account_name": name,
            "expired": False,
            "complete": True,
            "jetstream_enabled": True,
            "client_connections": len(here),
            "leafnode_connections": 0,
            "subscriptions": sum(len(each.subscriptions) for each in here),
        }
        return {**self._about(), "account_detail": detail}

    async def _accstatz(self, query: _Query) -> Json:
        """Of those that have clients here, or of one that is named."""
        account, unused = query.text("acc"), query.flag("unused")
        here: dict[str, list[NatsConnection]] = {}
        for each in self._nats.connected:
            here.setdefault(each.vhost, []).append(each)
        vhosts = (key[0] for key in sorted(self._cluster.catalog_machine.entries("vhosts")))
        names = [account] if account else [name for name in vhosts if unused or name in here]
        rows: list[Json] = []
        for name in names:
            found, counted = here.get(name, []), self._nats.counted(name)
            rows.append(
                {
                    "acc": name,
                    "name": name,
                    "conns": len(found),
                    "leafnodes": 0,
                    "total_conns": len(found),
                    "num_subscriptions": sum(len(each.subscriptions) for each in found),
                    "sent": {"msgs": counted.out_messages, "bytes": counted.out_bytes},
                    "received": {"msgs": counted.in_messages, "bytes": counted.in_bytes},
                    "slow_consumers": self._nats.slow_counts[name],
                }
            )
        return {**self._about(), "account_statz": rows}

    # --- what is not here, for those who ask all the same -----------------------------------------

    async def _gatewayz(self, _: _Query) -> Json:
        return {**self._about(), "outbound_gateways": {}, "inbound_gateways": {}}

    async def _leafz(self, _: _Query) -> Json:
        return {**self._about(), "leafnodes": 0, "leafs": []}

    # --- streams ----------------------------------------------------------------------------------

    async def _copies(self) -> AsyncIterator[Copy]:
        """All of this node, by virtual host and name."""
        catalog = self._cluster.catalog_machine
        for key in sorted(catalog.entries("vhosts")):
            for number, info in enumerate(sorted(catalog.streams(key[0]), key=lambda i: i.name)):
                group = self._cluster.group(info.group)
                stream = None if group is None else stream_of(group, info.queue)
                if group is not None and stream is not None:
                    yield info, group, stream
                if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                    await asyncio.sleep(0)

    def _usage(self, copies: Sequence[Copy]) -> Json:
        api = self._api
        return {
            "memory": 0,
            "storage": sum(stream.state().bytes for _, _, stream in copies),
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": len({info.vhost for info, _, _ in copies}),
            "ha_assets": sum(len(group.members) > 1 for _, group, _ in copies),
            "api": {"level": LEVEL, "total": api.served, "errors": api.errors},
        }

    def _config(self, used: Json) -> Json:
        space = self._cluster.log.space()
        storage = used["storage"] + space.free_bytes
        return {"max_memory": 0, "max_storage": storage, "sync_interval": 0, "sync_always": True}

    def _meta(self) -> Json | None:
        """Who leads the catalog; None: there are no others who could."""
        cluster = self._cluster
        group = cluster.catalog
        if len(group.members) < 2:
            return None
        found = self._api.cluster_row(group)
        peers = {"peer": found["leader"]} if "leader" in found else {}
        for each in found.get("replicas", ()):
            each["peer"] = each["name"]
        return {
            **found,
            **peers,
            "cluster_size": len(group.members),
            "quorum_needed": len(group.members) // 2 + 1,
            "pending": 0,
        }

    async def _jsz(self, query: _Query) -> Json:
        offset, limit = query.page()
        account = query.text("acc")
        copies = [each async for each in self._copies()]
        used, meta = self._usage(copies), self._meta()
        states = [stream.state() for _, _, stream in copies]
        found: Json = {
            **self._about(),
            **used,
            "config": self._config(used),
            "streams": len(copies),
            "consumers": sum(each.consumers for each in states),
            "messages": sum(each.messages for each in states),
            "bytes": used["storage"],
            "total": used["accounts"],
        }
        if meta is not None:
            found["meta_cluster"] = meta
        consumers = query.flag("consumers")
        if account or consumers or any(map(query.flag, ("accounts", "streams", "config"))):
            only_led = query.flag("stream-leader-only")
            vhosts = {key[0] for key in self._cluster.catalog_machine.entries("vhosts")}
            with_streams = {info.vhost for info, _, _ in copies}
            accounts = sorted(vhosts & {account} if account else with_streams)
            found["account_details"] = [
                await self._account_row(
                    name,
                    [
                        each
                        for each in copies
                        if each[0].vhost == name
                        and (not only_led or self._cluster.leader_of(each[1].id) == self._node)
                    ],
                    streams=consumers or query.flag("streams") or query.flag("config"),
                    consumers=consumers,
                    config=query.flag("config"),
                    raft=query.flag("raft"),
                )
                for name in accounts[offset : offset + limit]
            ]
        return found

    async def _account_row(
        self,
        name: str,
        copies: Sequence[Copy],
        *,
        streams: bool,
        consumers: bool,
        config: bool,
        raft: bool,
    ) -> Json:
        found: Json = {"name": name, "id": name, **self._usage(copies)}
        del found["accounts"]
        if not streams:
            return found
        groups: dict[int, Json] = {}
        rows: list[Json] = []
        for number, (info, group, stream) in enumerate(copies):
            if group.id not in groups:
                groups[group.id] = self._api.cluster_row(group)
            row = self._api.stream_row(info, stream, groups[group.id])
            shown = {"name": info.name, "created": row["created"], "cluster": row["cluster"]}
            if config:
                shown["config"] = row["config"]
            shown["state"] = row["state"]
            shown |= {each: row[each] for each in ("mirror", "sources") if each in row}
            if raft:
                # NATS's tools tell streams and consumers apart by it.
                own = f"{group.name}:{info.name}"
                shown["stream_raft_group"] = own
                shown["consumer_raft_groups"] = [
                    {"name": each, "raft_group": f"{own}:{each}"} for each in stream.consumers
                ]
            if consumers:
                shown["consumer_detail"] = [
                    self._consumer_row(info, each, groups[group.id], config=config)
                    for each in stream.consumers.values()
                ]
            rows.append(shown)
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return found | {"stream_detail": rows}

    def _consumer_row(
        self, info: QueueInfo, consumer: StreamConsumer, group: Json, *, config: bool
    ) -> Json:
        row = self._api.consumer_row(info, consumer, group)
        if not config:
            del row["config"]
        return row


class _Query:
    """What is asked for; what cannot be is refused as NATS does, in plain text."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str:
        return self._given.get(name, "")

    def number(self, name: str) -> int:
        text = self.text(name)
        if text and not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
            _refuse(f"Error decoding int for '{name}': {text!r} is no number from 0 on")
        return int(text or 0)

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text.lower() not in FLAGS:
            _refuse(f"Error decoding boolean for '{name}': {text!r} is neither true nor false")
        return FLAGS[text.lower()]

    def page(self) -> tuple[int, int]:
        """Offset and limit."""
        limit = self.number("limit") or ROWS_MAX
        return self.number("offset"), min(limit, ROWS_MAX)


def _subscription_row(each: Subscription) -> Json:
    found: Json = {"subject": text_of(each.subject)}
    if each.queue:
        found["qgroup"] = text_of(each.queue)
    found |= {"sid": text_of(each.sid), "msgs": each.delivered}
    return found | ({"max": each.most} if each.most else {})


def _parts(address: str | None) -> tuple[str, int]:
    host, _, port = (address or ":0").rpartition(":")
    return host.strip("[]"), int(port)


def _uptime(seconds: float) -> str:
    """In days and less, as NATS's server does."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [f"{days}d", f"{hour}h", f"{minute}m", f"{second}s"]
    first = next((at for at, some in enumerate((days, hours, minutes)) if some), len(parts) - 1)
    return "".join(parts[first:])


def _refuse(text: str) -> NoReturn:
    raise web.HTTPBadRequest(text=text)


def _unwell(status: int, error: str) -> Json:
    word = "error" if status == 400 else "unavailable"
    return {"status": word, "status_code": status, "error": error}
