"""`GET /v1/messages/{id}/history`, and the same by queue: what happened to one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from cluster.history.message_events import Wanted
from cluster.history.message_history import queue_of
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.types import MessageId
from node.access.auth import Auth, User
from node.broker.broker import Broker, check_shared
from node.errors import AccessRefused, Refused
from node.operating.history import Histories
from node.protocols.basic_auth import OTHER_SITES, of_another_site
from node.protocols.native.http import HttpRoutes
from node.protocols.native.http_answers import answer

NUMBER_MAX = 2**63 - 1

Json = dict[str, Any]


class HistoryRoutes:
    """For users who may read the queue. What happened in other queues is told to those who may read
    them.
    """

    def __init__(
        self, routes: HttpRoutes, broker: Broker, auth: Auth, histories: Histories
    ) -> None:
        self._routes = routes
        self._broker = broker
        self._auth = auth
        self._histories = histories

    def add_to(self, app: web.Application) -> None:
        guarded = self._routes.guarded
        app.router.add_get("/v1/messages/{message}/history", guarded(self._by_id))
        by_queue = "/v1/queues/{vhost}/{name}/history"
        app.router.add_get(by_queue, guarded(self._by_queue, "read"))

    async def _by_id(self, request: web.Request) -> web.Response:
        message = MessageId.parse(request.match_info["message"])
        if message is None:
            reason = "a message's id is GROUP-ENTRY-OFFSET, such as 1-18200-0: a peek shows it"
            raise Refused(codes.BAD_ARGUMENT, reason)
        user = await self._routes.user(request)
        if not await self._may_ask(user, message):
            raise AccessRefused(f"user '{user.name}' may not read the queue of message {message}")
        return await self._answer(request, user, Wanted.of(message))

    async def _by_queue(self, request: web.Request) -> web.Response:
        where = request.match_info
        info = await self._broker.find(where["vhost"], where["name"])
        check_shared(info)
        user = await self._routes.user(request)
        return await self._answer(request, user, _wanted(info, request.query))

    async def _answer(self, request: web.Request, user: User, wanted: Wanted) -> web.Response:
        if of_another_site(request):  # it changes nothing, and costs much
            raise AccessRefused(OTHER_SITES)
        history = await self._histories.of(wanted)
        events: list[Json] = history["events"]
        places = {(event["vhost"], event["queue"]) for event in events}
        readable = {place for place in places if await self._may_read(user, *place)}
        if not readable:
            raise AccessRefused(f"user '{user.name}' may not read the queue of this message")
        shown = [event for event in events if (event["vhost"], event["queue"]) in readable]
        now = history["now"]
        if (now["vhost"], now["queue"]) not in readable:
            now = {"state": "withheld"}
        withheld = len(events) - len(shown)
        return answer(request, {**history, "events": shown, "withheld": withheld, "now": now})

    # --- who may ----------------------------------------------------------------------------------

    async def _may_ask(self, user: User, message: MessageId) -> bool:
        """As far as it can be said before any work is done: who may not read the queue that it was
        published to, or none of the group when the entry is gone, has nothing to ask.
        """
        cluster = self._broker.cluster
        group = cluster.groups.get(message.group)
        if group is None:
            return True  # it is not told here
        catalog = cluster.catalog_machine
        command = group.journal.read(message.entry)
        queue = None if command is None else queue_of(command, message.offset)
        info = None if queue is None else catalog.queue_by_id(queue)
        infos = catalog.queues_of(message.group) if info is None else [info]
        for each in infos:
            if await self._may_read(user, each.vhost, each.name):
                return True
        return False

    async def _may_read(self, user: User, vhost: str, name: str) -> bool:
        try:
            access = await self._auth.admit(user, vhost)
        except Refused as refused:
            if refused.code not in {codes.NO_VHOST, "access_refused"}:
                raise
            return False
        info = self._broker.locate(vhost, name)
        return access.may("read", name) and (info is None or not info.exclusive)


def _wanted(info: QueueInfo, query: Mapping[str, str]) -> Wanted:
    position, publisher = query.get("position"), query.get("publisher")
    if (position is None) == (publisher is None):
        raise Refused(codes.BAD_ARGUMENT, "give position, or publisher and seqno")
    if position is not None:
        return Wanted(info.group, queue=info.queue, position=_number(position, "position"))
    seqno = _number(query.get("seqno", ""), "seqno")
    return Wanted(info.group, queue=info.queue, publisher=publisher, seqno=seqno)


def _number(text: str, name: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= NUMBER_MAX:
        return int(text)
    raise Refused(codes.BAD_ARGUMENT, f"{name} is a number from 1 to {NUMBER_MAX}")
