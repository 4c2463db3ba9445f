"""Connections, channels and consumers of all nodes."""

from __future__ import annotations

from typing import Any

from node.management.consumers import consumers_of, sessions_of
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import not_authorised, not_found
from node.management.paging import listed_as_is

Json = dict[str, Any]

#: What a close frame of a WebSocket has room for.
REASON_BYTES_MAX = 100

#: What nodes tell each other of a client, and nobody else.
_INTERNAL = frozenset({"session", "id", "consumers"})


def _shown(client: Json) -> Json:
    return {name: value for name, value in client.items() if name not in _INTERNAL}


async def _visible(call: Call, what: str) -> list[Json]:
    """An own connection may be seen; those of others, with the tag for it."""
    every = await call.observer.clients(what)
    if "vhost" in call.names:
        every = [client for client in every if client.get("vhost") == call.vhost]
    if call.has("monitoring"):
        return every
    return [client for client in every if client.get("user") == call.user.name]


async def list_connections(call: Call) -> Any:
    every = await _visible(call, "connections")
    if "username" in call.names:
        every = [each for each in every if each.get("user") == call.names["username"]]
    return await listed_as_is(call.list_query, [_shown(each) for each in every])


async def list_channels(call: Call) -> Any:
    every = await _visible(call, "channels")
    if "connection" in call.names:
        wanted = call.names["connection"]
        every = [c for c in every if c.get("connection_details", {}).get("name") == wanted]
    return await listed_as_is(call.list_query, [_shown(each) for each in every])


async def _one(call: Call, what: str, name: str) -> Json:
    for client in await call.observer.clients(what):
        if client.get("name") == name:
            if client.get("user") != call.user.name and not call.has("monitoring"):
                raise not_authorised("User not authorised to access object")
            return _shown(client)
    raise not_found()


async def one_connection(call: Call) -> Json:
    return await _one(call, "connections", call.names["connection"])


async def one_channel(call: Call) -> Json:
    return await _one(call, "channels", call.names["channel"])


def _reason(call: Call) -> str:
    """What the client is told: a header says it, as in RabbitMQ. Its bytes may be anything."""
    given = call.headers.get("X-Reason", "").encode(errors="surrogateescape")
    return given[:REASON_BYTES_MAX].decode(errors="replace") or "Closed via management plugin"


async def close_connection(call: Call) -> Response:
    """Its own, or anybody's for an administrator."""
    name = call.names["connection"]
    shown = await _one(call, "connections", name)
    if shown.get("user") != call.user.name and not call.has("administrator"):
        raise not_authorised("User not authorised to access object")
    if not await call.observer.close_connection(name, _reason(call)):
        raise not_found()
    return DONE


async def close_connections(call: Call) -> Response:
    """All of a user; what is there already is as good."""
    name = call.names["username"]
    if name != call.user.name and not call.has("administrator"):
        raise not_authorised("User not authorised to access object")
    for each in await _visible(call, "connections"):
        if each.get("user") == name:
            await call.observer.close_connection(each["name"], _reason(call))
    return DONE


async def list_consumers(call: Call) -> Any:
    infos = [info for vhost in call.vhosts() for info in call.catalog.queues(vhost)]
    facts = await call.observer.queues(infos)
    used = [info for info in infos if info.queue in facts and facts[info.queue].consumers]
    sessions = sessions_of(await call.observer.clients("channels")) if used else {}
    every = [each for info in used for each in consumers_of(info, facts[info.queue], sessions)]
    return await listed_as_is(call.list_query, every)


ROUTES = (
    Endpoint("GET", "connections", list_connections),
    Endpoint("GET", "connections/{connection}", one_connection),
    Endpoint("DELETE", "connections/{connection}", close_connection),
    Endpoint("GET", "connections/{connection}/channels", list_channels),
    Endpoint("GET", "connections/username/{username}", list_connections),
    Endpoint("DELETE", "connections/username/{username}", close_connections),
    Endpoint("GET", "vhosts/{vhost}/connections", list_connections),
    Endpoint("GET", "vhosts/{vhost}/channels", list_channels),
    Endpoint("GET", "channels", list_channels),
    Endpoint("GET", "channels/{channel}", one_channel),
    Endpoint("GET", "consumers", list_consumers),
    Endpoint("GET", "consumers/{vhost}", list_consumers),
)
