"""A link: something that one node of the cluster runs as long as the catalog has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from cluster.types import GroupId, NodeId

#: starting: it connects, or waits to do so again; terminated: it is done, and rests.
State = Literal["starting", "running", "terminated"]


class LinkKey(NamedTuple):
    """`name` may be several words with a separator of its kind's choice."""

    kind: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What is wanted. `definition`: a link whose definition changes is started anew. `anchor`: who
    leads this group runs it. `run`: from its start to its end; it says `link.running()` when it is
    connected, returns when nothing is left to do, and raises when it failed: it is run again then.
    """

    key: LinkKey
    definition: Any
    anchor: GroupId
    reconnect_delay_s: float
    run: Callable[[Link], Awaitable[None]] = field(compare=False)


class LinkKind(Protocol):
    """Where links come from: one component of parameters, say. `wanted` is a function of this
    node's copy of the catalog; it is asked after each change.
    """

    @property
    def name(self) -> str: ...
    def wanted(self) -> list[LinkSpec]: ...


class Link:
    """One that this node runs, and what has become of it."""

    def __init__(self, spec: LinkSpec, node: NodeId, now_ms: Callable[[], int]) -> None:
        self.spec = spec
        self.state: State = "starting"
        #: Why it failed last; while it runs, what stays at the source, if anything does.
        self.error = ""
        self.kept = 0  # messages that stay there since it runs
        self.messages = 0  # that were moved, since this node has the link
        self.bytes = 0
        self.failures = 0
        self.facts: dict[str, Any] = {}  # what its kind shows besides
        self._node = node
        self._now_ms = now_ms
        self.since_ms = now_ms()  # when `state` began

    def running(self, **facts: Any) -> None:
        """It is connected."""
        self.error, self.kept = "", 0
        self.facts = facts
        self.become("running")

    def moved(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.bytes += size_bytes

    def keeps(self, reason: str) -> None:
        """The destination never takes one of these messages: it stays where it is."""
        self.kept += 1
        what = "one message stays" if self.kept == 1 else f"{self.kept} messages stay"
        self.error = f"{what} at the source, and others pass: {reason}"

    def failed(self, reason: str) -> None:
        self.failures += 1
        self.error = reason
        self.become("starting")

    def become(self, state: State) -> None:
        if state != self.state:
            self.state, self.since_ms = state, self._now_ms()

    def status(self) -> dict[str, Any]:
        """As it travels between nodes."""
        return {
            "node": self._node,
            "state": self.state,
            "since_ms": self.since_ms,
            "error": self.error,
            "messages": self.messages,
            "bytes": self.bytes,
            "failures": self.failures,
            "facts": self.facts,
        }


def nobody_runs_it(now_ms: int) -> Mapping[str, Any]:
    """The status of a link whose owner does not answer, or has not begun."""
    return {
        "node": None,
        "state": "starting",
        "since_ms": now_ms,
        "error": "",
        "messages": 0,
        "bytes": 0,
        "failures": 0,
        "facts": {},
    }
