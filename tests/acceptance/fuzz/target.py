"""What is fuzzed: a protocol, and what there is to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quorate.local import LocalCluster, LocalNode
from tests.acceptance.fuzz.attack import Answers
from tests.acceptance.fuzz.inputs import Draft, Kinds


class Steady(Protocol):
    """Clients that do nothing wrong, and so must not notice what others do."""

    findings: list[str]

    async def start(self) -> None: ...
    async def drain(self) -> None:
        """What was promised has come true."""
        ...

    async def stop(self) -> None: ...

    @property
    def connections_a_node(self) -> int: ...

    @property
    def listed(self) -> Mapping[str, int]:
        """How many the management API's lists have when nobody else is there."""
        ...

    @property
    def facts(self) -> Mapping[str, object]: ...


class Target(Protocol):
    @property
    def kinds(self) -> Kinds: ...

    @property
    def found(self) -> Mapping[str, Draft]:
        """With these every run begins."""
        ...

    @property
    def goodbye(self) -> bytes:
        """After this the node must end the connection."""
        ...

    def port(self, node: LocalNode) -> int: ...
    def answers(self) -> Answers: ...
    def steady(self, nodes: list[LocalNode]) -> Steady: ...

    async def prepare(self, cluster: LocalCluster) -> None:
        """What inputs name is there."""
        ...

    def questions(self, nodes: Sequence[LocalNode]) -> list[tuple[str, str, Any]]:
        """Method, URL and body of what must be answered whatever inputs left behind."""
        ...
