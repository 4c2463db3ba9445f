"""A backup: where it cuts every group's log, what it holds of each as a stream, and which were
made: that is a parameter of the catalog each, so every node knows them after a restart, too.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from cluster.machine.commands import DropEntry, PutEntry
from cluster.recovery.backup import Cut
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.management.context import Call, Endpoint, Response, created
from node.management.errors import bad_request
from node.management.paging import listed_as_is

#: The media type of a group's file.
MEDIA_TYPE = "application/octet-stream"
#: What the parameters are of; with no virtual host, so that no list nor export shows them.
COMPONENT: Final = "backup"
#: As many are remembered.
MADE_MAX: Final = 50

Json = dict[str, Any]


async def post_backup(call: Call) -> Any:
    """The leaders keep what it names for ten minutes from here, and from each read."""
    time = dt.datetime.now(dt.UTC)
    cuts = await call.services.backups.cut()
    infos = {info.node: info for info in call.catalog.nodes()}
    own = call.services.cluster.node
    return {
        "cluster": call.services.settings.cluster,
        "node": own,
        "time": time.isoformat(timespec="milliseconds"),
        "groups": [
            {
                "group": each.group,
                "name": each.name,
                "node": each.node,
                "http": infos[each.node].addresses.get("http") if each.node in infos else None,
                "index": each.index,
                "term": each.term,
                "digest": each.digest.hex(),
                "messages": each.messages,
            }
            for each in cuts
        ],
    }


async def get_group(call: Call) -> Response:
    """Its file, from the node that keeps it."""
    try:
        group = GroupId(int(call.names["group"]))
        index, term = int(call.query["index"]), int(call.query["term"])
        digest, messages = bytes.fromhex(call.query["digest"]), int(call.query["messages"])
    except (KeyError, ValueError):
        raise bad_request(
            "group, index, term, digest and messages are as POST /api/backup said"
        ) from None
    info = call.catalog.group(group)
    name = "catalog" if group == CATALOG_GROUP or info is None else info.name
    wanted = Cut(group, name, NodeId(""), index, term, digest, messages)
    stream = await call.services.backups.open(wanted)
    return Response(headers={"Content-Type": MEDIA_TYPE}, stream=stream)


async def record(call: Call) -> Response:
    """That one was made, by who has written all of it."""
    body = call.body
    try:
        time = dt.datetime.fromisoformat(body.text("time"))
    except ValueError:
        raise bad_request("time is as POST /api/backup said") from None
    if time.tzinfo is None:
        raise bad_request("time has a zone, as in 2026-11-21T20:00:00Z")
    made: Json = {name: body.text(name) for name in ("folder", "host")}
    made |= {name: body.integer(name) for name in ("messages", "bytes", "groups")}
    made["user"] = call.user.name
    name = time.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    answer = await call.change(PutEntry("parameters", (COMPONENT, "", name), {"value": made}))
    for old in _made(call)[MADE_MAX:]:
        await call.change(DropEntry("parameters", (COMPONENT, "", old["time"])))
    return created(answer)


async def list_made(call: Call) -> Any:
    return await listed_as_is(call.list_query, _made(call))


def _made(call: Call) -> list[Json]:
    """Newest first."""
    entries = call.catalog.entries("parameters").items()
    found = [(key[2], entry["value"]) for key, entry in entries if key[0] == COMPONENT]
    return [{"time": time, **made} for time, made in sorted(found, reverse=True, key=_time)]


def _time(made: tuple[str, Json]) -> str:
    return made[0]


ROUTES = (
    Endpoint("GET", "backups", list_made, "monitoring"),
    Endpoint("POST", "backups", record, "administrator"),
    Endpoint("POST", "backup", post_backup, "administrator"),
    Endpoint("GET", "backup/{group}", get_group, "administrator"),
)
