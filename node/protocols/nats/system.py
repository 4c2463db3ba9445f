"""`$SYS.REQ`: what administrators ask of all nodes, or of one, as `nats server` does.

The node to which a client is connected asks the others and sends an answer for each. Who may look
at nodes in the management API may do so here; others find nobody there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import structlog
from aiohttp import web

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId
from node.errors import BrokerError
from node.peer_rpc import PeerRpc
from node.protocols.nats.connection import NatsConnection, text_of
from node.protocols.nats.jetstream.times import text_of_ms
from node.protocols.nats.monitoring import Monitoring
from node.protocols.nats.reader import CRLF, Publish
from node.protocols.nats.server import VERSION, NatsServer
from node.settings.settings import Settings
from node.tasks import Tasks

KIND: Final = "nats_system"
#: Between nodes, in front of what is asked of one account.
OF_ACCOUNT: Final = "account "
#: Tags of users who may ask about nodes.
WATCHERS: Final = frozenset({"administrator", "monitoring"})

#: What options of requests are called in queries of HTTP, where it is not the same.
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "connz": {"subscriptions": "subs"},
    "jsz": {
        "account": "acc",
        "consumer": "consumers",
        "leader_only": "stream-leader-only",
        "stream_leader_only": "stream-leader-only",
    },
    "accountz": {"account": "acc"},
    "subsz": {"subscriptions": "subs", "account": "acc"},
}
#: What is asked of one account: where that is found, and what of it.
_OF_ACCOUNTS: Final = {
    "connz": ("connz", ""),
    "subsz": ("subsz", ""),
    "leafz": ("leafz", ""),
    "statz": ("accstatz", ""),
    "info": ("accountz", "account_detail"),
    "jsz": ("jsz", "account_details"),
}
#: That of its own, which anybody may ask.
_OWN: Final = "statz"
_STATES: Final = ("open", "closed", "all")

Json = dict[str, Any]

log = structlog.get_logger(__name__)


class System:
    """One per node, if it listens for NATS's clients."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterNode,
        nats: NatsServer,
        monitoring: Monitoring,
        peer_rpc: PeerRpc,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._nats = nats
        self._monitoring = monitoring
        self._peer_rpc = peer_rpc
        self._tasks = tasks
        nats.on_system = self.take
        peer_rpc.on(KIND, self._answer)

    def take(self, connection: NatsConnection, message: Publish) -> bool:
        """False: nobody is there who would answer."""
        if not message.reply:
            return False
        server = account = None
        match text_of(message.subject).split("."):
            case ["$SYS", "REQ", "USER", "INFO"]:
                answer = self._reply(_user_row(connection))
                for _ in message.payloads:
                    self._tell(connection.vhost, message.reply, answer)
                return True
            case ["$SYS", "REQ", "SERVER", "PING", *rest] if len(rest) < 2:
                what = rest[0] if rest else ""
            case ["$SYS", "REQ", "SERVER", *parts, what] if parts:
                server = ".".join(parts)
            case ["$SYS", "REQ", "ACCOUNT", *parts, what] if parts:
                account = ".".join(parts)
            case _:
                return False
        own, what = account == "PING", what.lower()
        user = self._nats.auth.user(connection.user_name)
        if (user is None or WATCHERS.isdisjoint(user.tags)) and not (own and what == _OWN):
            return False
        if account is not None:
            account = connection.vhost if own else account
            what = f"{OF_ACCOUNT}{what}"
        for payload in message.payloads:
            body = payload[message.header_bytes : -len(CRLF)]
            if account is not None:
                body = _with_account(body, account)
            for node in [self._cluster.node, *self._peer_rpc.others()]:
                asked = self._ask(connection.vhost, message.reply, node, server, what, body)
                self._tasks.start(asked, name="nats_system")
        return True

    async def _ask(
        self, vhost: str, reply: bytes, node: NodeId, server: str | None, what: str, body: bytes
    ) -> None:
        try:
            found = await self._peer_rpc.request(node, KIND, server, what, body)
        except BrokerError as error:
            log.info("nats_system_unanswered", node=node, reason=error.reason)
            return
        if found is not None:
            self._tell(vhost, reply, found)

    def _tell(self, vhost: str, reply: bytes, data: bytes) -> None:
        message = Publish(reply, b"", 0, len(data), [data + CRLF])
        self._nats.subjects.send(vhost, reply, (message,))

    # --- for a node that asks ---------------------------------------------------------------------

    async def _answer(self, _: NodeId, fields: list[Any]) -> bytes | None:
        """None: this one is not meant."""
        server, what, body = fields
        if server is not None and server != self._nats.id:
            return None
        try:
            given: Any = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            return self._refused(400, "the request is no JSON")
        if not isinstance(given, dict):
            return self._refused(400, "the request is no object of JSON")
        options = cast("Json", given)
        if server is None and not self._is_meant(options):
            return None
        try:
            if what in ("", "idz"):
                return self._reply(self._server_row()) if what else await self._statistics()
            if what == "statsz":
                return await self._statistics()
            of_account = what.startswith(OF_ACCOUNT)
            name, part = what, ""
            if of_account:
                name, part = _OF_ACCOUNTS.get(what.removeprefix(OF_ACCOUNT), ("", ""))
            found = await self._monitoring.answer(name, _query_of(name, options))
            if part and found is not None:
                found = _part_of(found, part)
        except web.HTTPBadRequest as refused:
            return self._refused(400, refused.text or "")
        if found is None:
            return self._refused(404, f"there is no {what.upper()[:80]}")
        return self._reply({"status_code": 200} | found if what == "healthz" else found)

    def _is_meant(self, options: Json) -> bool:
        row = self._server_row()
        same: Callable[[str, str], bool] = (
            str.__eq__ if options.get("exact_match") is True else str.__contains__
        )
        given = (("name", "server_name"), ("cluster", "cluster"), ("host", "host"))
        return all(
            same(row[key], wanted)
            for key, option in given
            if isinstance(wanted := options.get(option), str) and wanted
        )

    def _server_row(self) -> Json:
        return server_row(self._settings, self._cluster, self._nats)

    def _reply(self, data: Json) -> bytes:
        return json.dumps({"server": self._server_row(), "data": data}).encode()

    def _refused(self, code: int, text: str) -> bytes:
        error = {"code": code, "description": text}
        return json.dumps({"server": self._server_row(), "error": error}).encode()

    async def _statistics(self) -> bytes:
        found = await self._monitoring.answer("varz", {})
        assert found is not None
        same = ("start", "mem", "cores", "cpu", "connections", "total_connections")
        more = ("subscriptions", "slow_consumers", "jetstream")
        routes = enumerate((node for node, _ in self._nats.subjects.routes.others()), 1)
        statistics = {
            **{name: found[name] for name in (*same, *more)},
            "active_accounts": len(self._cluster.catalog_machine.entries("vhosts")),
            "sent": {"msgs": found["out_msgs"], "bytes": found["out_bytes"]},
            "received": {"msgs": found["in_msgs"], "bytes": found["in_bytes"]},
            "routes": [{"rid": number, "name": name} for number, name in routes],
            "active_servers": 1 + len(self._peer_rpc.others()),
        }
        return json.dumps({"server": self._server_row(), "statsz": statistics}).encode()


def server_row(settings: Settings, cluster: ClusterNode, nats: NatsServer) -> Json:
    """Who says something of itself."""
    address = nats.address or nats.tls_address or ""
    return {
        "name": settings.node,
        "host": address.rpartition(":")[0].strip("[]"),
        "id": nats.id,
        "cluster": settings.cluster,
        "ver": VERSION,
        "jetstream": True,
        "flags": 1,  # the same
        "seq": 0,
        "time": text_of_ms(cluster.now_ms()),
    }


def _user_row(connection: NatsConnection) -> Json:
    return {"user": connection.user_name, "account": connection.vhost}


def _with_account(body: bytes, account: str) -> bytes:
    """What is no object of JSON is refused where it is answered."""
    try:
        given: Any = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return body
    return json.dumps({**given, "acc": account}).encode() if isinstance(given, dict) else body


def _part_of(found: Json, name: str) -> Json:
    """An account is shown by itself, or as the only one of a list."""
    part = found[name]
    if isinstance(part, list):
        return cast("list[Json]", part)[0] if part else {}
    return cast("Json", part)


def _query_of(what: str, options: Json) -> dict[str, str]:
    """As HTTP has it; what is no plain value is left out."""
    names = _NAMES.get(what, {})
    found: dict[str, str] = {}
    for name, value in options.items():
        if name == "state" and type(value) is int and 0 <= value < len(_STATES):
            value = _STATES[value]
        if isinstance(value, bool):
            if value:
                found[names.get(name, name)] = "1"
        elif isinstance(value, int | str) and value:
            found[names.get(name, name)] = str(value)
    if found.pop("subscriptions_detail", None):
        found["subs"] = "detail"
    return found
