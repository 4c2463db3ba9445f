"""What HTTP answers while the node is not there for clients: only probes, or all but clients."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from node.errors import Refused
from node.operating.health import Health
from node.protocols.native.http_answers import failure

PROBES = "/health/"
CLIENTS = "/v1/"
#: For people, who look at a node that is drained too.
STATUS = "/v1/status"


def gate(health: Health) -> Middleware:
    """In front of all routes."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if not path.startswith(PROBES):
            if not health.listening:
                reason = "; ".join(health.why_not_started())
                return failure(request, Refused("stopping", f"not yet: {reason}; try again"))
            if health.draining and path.startswith(CLIENTS) and path != STATUS:
                reason = "this node is about to stop: connect to another one"
                return failure(request, Refused("stopping", reason))
        return await handler(request)

    return check
