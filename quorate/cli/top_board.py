"""What `quorate top` asks for, and what was answered.

What is asked is what is shown: one page of queues, sorted and filtered by the node that answers,
and of all else a few columns.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from quorate.cli.output import CommandError
from quorate.cli.tables import Row
from quorate.errors import Refused, Unreachable

if TYPE_CHECKING:
    from quorate.management import Management

#: Between two looks; each asks three questions, and others only at every so many-th.
REFRESH_S: Final = 2.0
GROUPS_EVERY: Final = 2
ATTENTION_EVERY: Final = 5
#: A leader that has moved is told for so long, and of so many at most.
MOVED_S: Final = 60.0
MOVED_MAX: Final = 100
#: Of one frame on a pipe.
QUEUES_PRINTED: Final = 50

_OVERVIEW: Final = "cluster_name,node,message_stats,queue_totals,object_totals"
_NODES: Final = (
    "name,running,state,being_drained,mem_used,mem_limit,mem_alarm,disk_free,disk_free_alarm,"
    "sockets_used,fsync_ms,loop_lag_ms,cpu_ms_details.rate"
)
_GROUPS: Final = "name,leader,moving"
_RATES: Final = ("publish", "deliver_get", "ack")
_QUEUES: Final = ",".join(
    (
        "name,vhost,leader,node,state,messages_ready,messages_unacknowledged,consumers",
        "oldest_ready_age,slo_oldest_age",
        *(f"message_stats.{each}_details.rate" for each in _RATES),
    )
)


class Order(NamedTuple):
    """By which queues are sorted: what people type, and the API's name. `up`: the least first."""

    name: str
    column: str
    up: bool = False


ORDERS: Final = (
    Order("oldest", "oldest_ready_age"),
    Order("ready", "messages_ready"),
    Order("unacked", "messages_unacknowledged"),
    Order("in", "message_stats.publish_details.rate"),
    Order("out", "message_stats.deliver_get_details.rate"),
    Order("consumers", "consumers"),
    Order("queue", "name", up=True),
)


def order_named(name: str) -> tuple[Order, bool]:
    """And whether it is turned around, as -NAME says. CommandError: there is none."""
    found = next((each for each in ORDERS if each.name == name.removeprefix("-")), None)
    if found is None:
        names = ", ".join(each.name for each in ORDERS)
        raise CommandError(f"queues cannot be sorted by {name!r}: there are {names}", 2)
    return found, name.startswith("-")


class Moved(NamedTuple):
    at_s: float
    group: str
    before: str | None  # who led it
    after: str | None


@dataclass
class Asked:
    """What a person wants to see of the queues. `turned`: the other way round."""

    order: Order = ORDERS[0]
    turned: bool = False
    filter: str = ""
    page: int = 1
    rows: int = QUEUES_PRINTED

    def query(self) -> dict[str, str]:
        return {
            "page": str(self.page),
            "page_size": str(self.rows),
            "name": self.filter,
            "sort": self.order.column,
            "sort_reverse": "true" if self.order.up == self.turned else "false",
            "columns": _QUEUES,
        }


@dataclass
class Board:
    """The newest answers. None: the user may not see it."""

    overview: Row = field(default_factory=dict[str, Any])
    nodes: Sequence[Row] | None = ()
    queues: Row = field(default_factory=dict[str, Any])  # a page
    leaders: Mapping[str, str | None] | None = field(default_factory=dict[str, str | None])
    moving: int = 0  # groups of which copies are made elsewhere
    findings: Sequence[Row] = ()
    moved: deque[Moved] = field(default_factory=lambda: deque[Moved](maxlen=MOVED_MAX))
    looks: int = 0
    error: str = ""  # why the last look failed

    async def look(self, api: Management, asked: Asked) -> None:
        """QuorateError: nobody answers, or the user may not log in."""
        try:
            await self._look(api, asked)
        except Unreachable:  # a node that hung: it is asked last from now on
            await self._look(api, asked)
        self.error = ""

    async def _look(self, api: Management, asked: Asked) -> None:
        self.overview, self.queues, self.nodes = await asyncio.gather(
            api.get("overview", columns=_OVERVIEW), _page(api, asked), _rows(api, "nodes", _NODES)
        )
        if self.looks % GROUPS_EVERY == 0:
            self._led(await _rows(api, "groups", _GROUPS))
        if self.looks % ATTENTION_EVERY == 0:
            self.findings = (await api.get("attention"))["findings"]
        self.looks += 1

    def _led(self, rows: Sequence[Row] | None) -> None:
        if rows is None:
            self.leaders = None
            return
        now_s, before = time.monotonic(), self.leaders or {}
        self.leaders = {row["name"]: row["leader"] for row in rows}
        self.moving = sum(1 for row in rows if row["moving"])
        for group, leader in self.leaders.items():
            if group in before and before[group] != leader:
                self.moved.append(Moved(now_s, group, before[group], leader))
        while self.moved and self.moved[0].at_s < now_s - MOVED_S:
            self.moved.popleft()

    @property
    def leaderless(self) -> int:
        return sum(1 for leader in (self.leaders or {}).values() if leader is None)

    def as_json(self) -> Row:
        return {
            "cluster": self.overview.get("cluster_name"),
            "overview": self.overview,
            "nodes": self.nodes,
            "leaders": self.leaders,
            "findings": self.findings,
            "queues": self.queues.get("items", []),
            "queue_count": self.queues.get("filtered_count", 0),
        }


async def _page(api: Management, asked: Asked) -> Row:
    """The last page that there is, when queues have become fewer."""
    while True:
        try:
            return cast("Row", await api.get("queues", **asked.query()))
        except Refused as refused:
            if refused.code != "page_out_of_range":
                raise
            asked.page -= 1


async def _rows(api: Management, what: str, columns: str) -> Sequence[Row] | None:
    """None: the user may not see them."""
    try:
        return cast("list[Row]", await api.get(what, columns=columns))
    except Refused as refused:
        if refused.code != "not_authorised":
            raise
        return None
