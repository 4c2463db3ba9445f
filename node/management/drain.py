"""A node is drained before it is stopped, and that is taken back."""

from __future__ import annotations

from typing import Any

from cluster.types import NodeId
from node.errors import Refused
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import ApiError, bad_request, no_such
from node.operating.drain import QUORUM_CRITICAL

Json = dict[str, Any]

TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 24 * 3_600_000


async def put_drain(call: Call) -> Json:
    """Answers when the node is drained; 409 when the others could not do without it in time."""
    timeout_ms = call.body.integer("timeout_ms", TIMEOUT_MS)
    if not 0 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise bad_request(f"timeout_ms may be 0 to {TIMEOUT_MS_MAX}")
    force = call.body.boolean("force", False)
    try:
        return await call.services.drain.drain(
            _node(call), timeout_s=timeout_ms / 1000, force=force, by=call.user.name
        )
    except Refused as refused:
        if refused.code != QUORUM_CRITICAL:
            raise
        raise ApiError(409, refused.code, refused.reason) from None


async def delete_drain(call: Call) -> Response:
    await call.services.drain.undo(_node(call), by=call.user.name)
    return DONE


def _node(call: Call) -> NodeId:
    node = NodeId(call.names["node"])
    cluster = call.services.cluster
    if node != cluster.node and all(info.node != node for info in call.catalog.nodes()):
        raise no_such(f"there is no node {node!r} in the cluster")
    return node


ROUTES = (
    Endpoint("PUT", "nodes/{node}/drain", put_drain, "administrator", local=True),
    Endpoint("DELETE", "nodes/{node}/drain", delete_drain, "administrator", local=True),
)
