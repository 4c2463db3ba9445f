"""Links of federation: which there are, how they are, and a new start of one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from node.links.definition import without_password
from node.links.federation.connecting import Federated
from node.links.federation.links import KIND, id_of
from node.links.link import LinkKey
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import not_found
from node.management.paging import listed_as_is

Json = dict[str, Any]

#: States of links that need no look.
WELL: Final = frozenset({"running", "starting"})


async def rows(call: Call) -> list[tuple[LinkKey, Json]]:
    """Of the virtual hosts that may be shown."""
    vhosts = set(call.vhosts())
    found = await call.services.links.statuses(KIND)
    return [
        (spec.key, _shown(spec.key, spec.definition, status))
        for spec, status in found
        if spec.key.vhost in vhosts
    ]


def _shown(key: LinkKey, federated: Federated, status: Mapping[str, Any]) -> Json:
    what, upstream = federated.what, federated.upstream
    since = datetime.fromtimestamp(status["since_ms"] / 1000, UTC)
    shown: Json = {
        "node": status["node"] or "",  # tools want text
        what: federated.end.name,
        f"upstream_{what}": federated.upstream_name,
        "type": what,
        "vhost": key.vhost,
        "upstream": upstream.name,
        "uri": without_password(upstream.uris[0]),  # until it is known which of them answers
        "consumer_tag": upstream.consumer_tag,
        "id": id_of(key),
        "status": "error" if status["error"] else status["state"],
        "timestamp": f"{since:%Y-%m-%d %H:%M:%S}",
        "messages": status["messages"],
        "failures": status["failures"],
        **status["facts"],
    }
    return shown | ({"error": status["error"]} if status["error"] else {})


async def list_links(call: Call) -> Any:
    return await listed_as_is(call.list_query, [row for _, row in await rows(call)])


async def list_down(call: Call) -> Any:
    down = [row for _, row in await rows(call) if row["status"] not in WELL]
    return await listed_as_is(call.list_query, down)


async def restart(call: Call) -> Response:
    for key, row in await rows(call):
        asked = row["id"] == call.names["id"] and row["node"] in ("", call.names["node"])
        if asked and await call.services.links.restart(key):
            return DONE
    raise not_found()


ROUTES = (
    Endpoint("GET", "federation-links", list_links, "monitoring"),
    Endpoint("GET", "federation-links/state/down", list_down, "monitoring"),
    Endpoint("GET", "federation-links/{vhost}", list_links, "monitoring"),
    Endpoint("GET", "federation-links/{vhost}/state/down", list_down, "monitoring"),
    Endpoint(
        "DELETE", "federation-links/vhost/{vhost}/{id}/{node}/restart", restart, "policymaker"
    ),
)
