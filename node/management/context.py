"""What a management request asks, and how it is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import Command
from cluster.machine.replies import Ok
from cluster.types import NodeId
from node.access.auth import User
from node.access.permissions import Access
from node.errors import Elsewhere, reply_of
from node.management.errors import no_such, not_authorised, not_found
from node.management.observer import Observer
from node.management.paging import ListQuery, list_query
from node.management.services import ManagementServices
from node.management.values import Body

#: Who may do it: anybody with a tag, or who has this one; an administrator may do everything.
Needs = Literal["management", "monitoring", "policymaker", "administrator"]

_TAGS: dict[Needs, frozenset[str]] = {
    "management": frozenset({"management", "policymaker", "monitoring", "administrator"}),
    "monitoring": frozenset({"monitoring", "administrator"}),
    "policymaker": frozenset({"policymaker", "administrator"}),
    "administrator": frozenset({"administrator"}),
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a user who is known."""

    services: ManagementServices
    observer: Observer
    user: User
    names: Mapping[str, str]  # from the path, decoded
    query: Mapping[str, str]
    body: Body = field(default_factory=lambda: Body({}))
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def catalog(self) -> CatalogMachine:
        return self.services.catalog

    @property
    def vhost(self) -> str:
        return self.names["vhost"]

    @property
    def name(self) -> str:
        return self.names["name"]

    @property
    def node(self) -> NodeId:
        """One of the cluster, or it is said that there is none."""
        node = NodeId(self.names["node"])
        if all(info.node != node for info in self.catalog.nodes()):
            raise no_such(f"there is no node {node!r} in the cluster")
        return node

    @property
    def list_query(self) -> ListQuery:
        return list_query(self.query)

    def flag(self, name: str) -> bool:
        return self.query.get(name) == "true"

    def has(self, needs: Needs) -> bool:
        return has_tag(self.user, needs)

    def sees(self, vhost: str) -> bool:
        """Whether what is in this virtual host may be shown."""
        return self.has("monitoring") or self.services.auth.may_enter(self.user, vhost)

    def vhosts(self) -> list[str]:
        """Those that may be shown: the one of the path, or all."""
        if "vhost" in self.names:
            return [self.vhost]
        return sorted(key[0] for key in self.catalog.entries("vhosts") if self.sees(key[0]))

    @property
    def access(self) -> Access:
        """Raises BrokerError: no permissions in the virtual host of the path."""
        return self.services.auth.access(self.user, self.vhost)

    async def catch_up(self) -> None:
        """This node's copy of the catalog may lag: before what it lacks counts as missing, or what
        it says is kept.
        """
        if not await self.services.broker.catch_up():
            raise Elsewhere(None)

    async def change(self, command: Command) -> int:
        """Of the catalog. How much it did: 0 when all was so already."""
        reply = reply_of(await self.services.cluster.change(command))
        return reply.count if isinstance(reply, Ok) else 0


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    value: Any = None  # JSON; None: no body
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    stream: AsyncIterator[bytes] | None = None  # the body, when it is too long for one piece
    html: str | None = None  # the body, when it is a page


CREATED = Response(201)
DONE = Response(204)

Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path` has `{names}` for what varies; its handler answers a Response, or JSON."""

    method: str
    path: str
    handler: Handler
    needs: Needs = "management"
    open: bool = False  # anybody may ask
    form: bool = False  # who asks says so in a form, not in a header
    local: bool = False  # the node's own machine may ask with the token of its data folder


def has_tag(user: User, needs: Needs) -> bool:
    return not _TAGS[needs].isdisjoint(user.tags)


def check_tag(user: User, needs: Needs) -> None:
    if not has_tag(user, "management"):
        raise not_authorised("Not management user")
    if not has_tag(user, needs):
        raise not_authorised(f"Not {needs} user")


def created(made: int) -> Response:
    """201: it is new. 204: it was there."""
    return CREATED if made else DONE


def deleted(count: int) -> Response:
    if not count:
        raise not_found()
    return DONE
