"""One kind of load, what it leaves in the history, and the checkers that judge that.

A run puts several workloads on one cluster. Each has its own queues, whose names begin with its
own, so that it is judged alone. All randomness is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos.checker.verdict import Checker, Verdict
from chaos.history import History, Op, OpType
from chaos.load.driver import Answer, Driver, Protocols
from chaos.load.http_calls import HttpCalls
from chaos.load.nats_client import StreamClient


class Nodes(Protocol):
    """What links have to be told: where all nodes are. Vhosts are named as they are."""

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password, of all protocols."""
        ...

    def uris(self, vhost: str) -> Sequence[str]:
        """One of AMQP for each node."""
        ...

    def open_amqp(self, name: str, vhost: str) -> Driver: ...
    def open_api(self, name: str) -> HttpCalls: ...


@dataclass(eq=False)
class Scene:
    """What a run gives each of its workloads."""

    recorder: History
    open_driver: Callable[[str, Protocols], Driver]  # a new client of this name
    seed: int
    #: How many times as often as on a real machine publishers publish.
    pace: float = 1.0
    #: Set when the load ends: publishers stop, consumers go on until their queues are drained.
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    #: A new NATS client of this name; None: the nodes do not listen for any.
    open_nats: Callable[[str], StreamClient] | None = None
    #: None: links cannot be had.
    nodes: Nodes | None = None

    def dice(self, name: str) -> random.Random:
        """Of one client, whatever the others do."""
        return random.Random(f"{self.seed}/{name}")


class Workload(Protocol):
    """Driven by a run: `prepare`, then `run` until it returns after `ending`, then `drain`."""

    @property
    def name(self) -> str:
        """Such as w1-native."""
        ...

    @property
    def checkers(self) -> Mapping[str, Checker]:
        """Of the part of the history whose processes' names begin with `name`."""
        ...

    async def prepare(self) -> None:
        """Declare what it needs; the cluster is whole. Raises when that fails."""
        ...

    async def run(self) -> None:
        """Load, from now on under faults; returns soon after `ending` is set."""
        ...

    async def drain(self) -> None:
        """All faults are healed: take out what is left, and write into the history what is empty.
        Returns when that is done, however long it takes: the run has the bound.
        """
        ...


def only(queue: str, checker: Checker) -> Checker:
    """Of one queue of several."""

    def check(ops: Sequence[Op]) -> Verdict:
        return checker([op for op in ops if op.value.get("queue") == queue])

    return check


async def recorded(
    recorder: History,
    process: str,
    f: str,
    value: dict[str, Any],
    call: Awaitable[Answer],
    extra: Callable[[Answer], dict[str, Any]] | None = None,
) -> Answer:
    """One call, its invocation and its outcome in the history."""
    invoked = recorder.invoke(process, f, value)
    kind: OpType = "unknown"
    answer = Answer("unknown", reason="given up")
    try:
        answer = await call
        kind = answer.type
    finally:
        more = {} if extra is None else extra(answer)
        if answer.reason:
            more["reason"] = answer.reason[:200]
        recorder.end(invoked, kind, more, node=answer.node)
    return answer
