"""Which management requests the audit log tells of, and in which words."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from node.management import bindings, exchanges, messages
from node.management.context import Endpoint
from node.operating.audit import Audit, Outcome

#: What clients do to messages and topology as well.
_OF_CLIENTS = frozenset(
    (route.method, route.path)
    for routes in (messages.ROUTES, bindings.ROUTES, exchanges.ROUTES)
    for route in routes
) | {("PUT", "queues/{vhost}/{queue}")}
#: Nothing is changed, but hashes of passwords are told.
_AUDITED_READS = frozenset({("GET", "definitions")})
#: Nothing is changed, though it is a POST: commands that move messages ask it for each batch.
_LOOKS = frozenset({("POST", "queues/{vhost}/{queue}/select")})
#: Part of a path that is told to nobody.
HIDDEN = "{password}"


@dataclass(slots=True)
class Act:
    """One request, as far as it is known."""

    request: web.Request
    route: Endpoint | None = None
    who: str = ""

    @property
    def is_audited(self) -> bool:
        if self.route is None:
            return False
        key = (self.route.method, self.route.path)
        changes = self.route.method != "GET" and key not in _OF_CLIENTS | _LOOKS
        return changes or key in _AUDITED_READS

    async def record(self, audit: Audit, status: int, reason: str = "") -> None:
        """An act, or a request that its user had no right to make."""
        denied = status in {401, 403} and "Authorization" in self.request.headers
        if not self.is_audited and not denied:
            return
        method, target = self.request.method, self.request.rel_url.raw_path
        if self.route is not None and HIDDEN in self.route.path:
            target = f"/api/{self.route.path}"
        await audit.write(
            who=self.who,
            address=self.request.remote or "",
            what=method if self.route is None else f"{method} {self.route.path}",
            target=target,
            outcome=_outcome(status),
            reason=reason,
        )


def _outcome(status: int) -> Outcome:
    if status < 400:
        return "ok"
    if status == 504:
        return "unknown"
    return "failed" if status >= 500 and status != 503 else "refused"
