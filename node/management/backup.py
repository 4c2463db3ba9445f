"""A backup: where it cuts every group's log, and what it holds of each as a stream."""

from __future__ import annotations

import datetime as dt
from typing import Any

from cluster.recovery.backup import Cut
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.management.context import Call, Endpoint, Response
from node.management.errors import bad_request

#: The media type of a group's file.
MEDIA_TYPE = "application/octet-stream"


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


ROUTES = (
    Endpoint("POST", "backup", post_backup, "administrator"),
    Endpoint("GET", "backup/{group}", get_group, "administrator"),
)
