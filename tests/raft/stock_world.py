"""The stock class in the same world: a fresh copy of pysyncobj with nothing replaced, over the
same links.

Only its transport is ours (it carries the stock messages as they are) and what it does with an
applied command, so that no test needs pickle where pickle is not the question.
"""

from __future__ import annotations

import importlib
import sys
from random import Random
from types import ModuleType
from typing import Any

from tests.raft.world import Wires
from tests.testkit.clocks import FakeClock


def fresh_pysyncobj() -> dict[str, ModuleType]:
    """Its modules, loaded once more: what `cluster.raft` replaces in the shared ones is as shipped
    in these.
    """

    def ours() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] == "pysyncobj"]

    kept = {name: sys.modules.pop(name) for name in ours()}
    try:
        importlib.import_module("pysyncobj.syncobj")
        return {name.removeprefix("pysyncobj."): sys.modules.pop(name) for name in ours()}
    finally:
        sys.modules.update(kept)


class StockWorld:
    """N stock members. One step of a millisecond delivers, then ticks each."""

    def __init__(self, count: int = 3, *, start: bool = True, **conf: Any) -> None:
        self.modules = fresh_pysyncobj()
        self.syncobj: Any = self.modules["syncobj"]
        self.clock = FakeClock()
        self.wires = Wires()
        self.syncobj.monotonicTime = lambda: self.clock.ns / 1e9
        self.syncobj.random = Random(1)
        self.syncobj.PIPE_NOTIFIER_ENABLED = False
        self.names = [f"n{i + 1}" for i in range(count)]
        self.nodes: dict[str, Any] = {}
        self.conf = {
            "raftMinTimeout": 1.0,
            "raftMaxTimeout": 2.0,
            "appendEntriesPeriod": 0.2,
            "appendEntriesUseBatch": False,
            "logCompactionMinEntries": 10**9,
            "logCompactionMinTime": 10**9,
            **conf,
        }
        if start:
            for name in self.names:
                self.start(name)

    def start(self, name: str) -> Any:
        world = self
        base = self.syncobj.SyncObj
        node_class = self.modules["node"].Node

        # type: ignore[misc, name-defined]
        class StockTransport(self.modules["transport"].Transport):
            def send(self, node: Any, message: Any) -> bool:
                return world.wires.send(name, node.id, message)

        class StockMember(base):  # type: ignore[misc, valid-type]
            applied: list[Any]

            def _SyncObj__doApplyCommand(self, command: bytes) -> None:
                if command[:1] == b"\x00":
                    self.applied.append(command[1:])

        StockMember.applied = []
        transport = StockTransport(None, None, [])
        member = StockMember(
            node_class(name),
            [node_class(other) for other in self.names if other != name],
            self.modules["config"].SyncObjConf(autoTick=False, **self.conf),
            transport=transport,
        )
        member.transport = transport
        self.nodes[name] = member
        for other in self.names:
            if other != name:
                transport._onNodeConnected(node_class(other))
        return member

    def __getitem__(self, name: str) -> Any:
        return self.nodes[name]

    def node(self, name: str) -> Any:
        return self.modules["node"].Node(name)

    def log(self, name: str) -> list[tuple[bytes, int, int]]:
        return list(self[name]._SyncObj__raftLog[:])

    def receive(self, to: str, sender: str, message: dict[str, Any]) -> None:
        self[to].transport._onMessageReceived(self.node(sender), message)

    def sent_by(self, name: str) -> list[dict[str, Any]]:
        return [message for a, _b, message in self.wires.sent if a == name]

    def step(self) -> None:
        self.wires.now_ms += 1
        self.clock.ns += 1_000_000
        for name, member in self.nodes.items():
            for sender, message in self.wires.arriving(name):
                self.receive(name, sender, message)
            member.doTick(0)

    def run(self, ms: int) -> None:
        for _ in range(ms):
            self.step()

    def leader(self) -> Any:
        led = [m for m in self.nodes.values() if m._isLeader()]
        return max(led, key=lambda m: m.raftCurrentTerm, default=None)

    def elect(self) -> Any:
        for _ in range(10_000):
            if self.leader() is not None:
                self.run(300)
                return self.leader()
            self.step()
        raise AssertionError("no leader")

    def cut(self, name: str, other: str) -> None:
        self.wires.cut.add(frozenset((name, other)))
        for a, b in ((name, other), (other, name)):
            self.wires.queues.pop((a, b), None)
            self[a].transport._onNodeDisconnected(self.node(b))

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        pairs, self.wires.cut = self.wires.cut, set()
        for pair in pairs:
            a, b = sorted(pair)
            self[a].transport._onNodeConnected(self.node(b))
            self[b].transport._onNodeConnected(self.node(a))
