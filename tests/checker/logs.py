"""Real logs in folders, as nodes leave them: one verb a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaos.checker import Verdict, log_safety
from cluster.codec.cbor import pack
from cluster.log import KIND_DIGEST, KIND_ROLE, Journal, Log, LogIdentity, LogOptions, RealDisk
from cluster.types import NodeId
from tests.log.support import fill, save
from tests.testkit.clocks import FakeClock

GROUP = 4
NODES = ("a", "b", "c")


class Replica:
    """One node's log; open until `close`."""

    def __init__(self, folder: Path, node: str, log: Log) -> None:
        self.folder, self.node, self.log = folder, node, log

    @classmethod
    async def open(cls, folder: Path, node: str) -> Replica:
        (folder / node).mkdir(parents=True, exist_ok=True)
        identity = LogIdentity(node, "test")
        log = await Log.open(
            str(folder / node),
            disk=RealDisk(),
            clock=FakeClock(step_ns=1_000),
            identity=identity,
            options=LogOptions(),
        )
        return cls(folder, node, log)

    @property
    def journal(self) -> Journal:
        return self.log.journal(GROUP)

    def vote(self, term: int, candidate: str | None) -> None:
        self.journal.set_term(term, candidate)

    def lead(self, term: int) -> None:
        payload = pack(["leader", self.node])
        self.log.note(KIND_ROLE, GROUP, self.journal.last_index, term, payload)

    def digest(self, index: int, state: bytes) -> None:
        self.log.note(KIND_DIGEST, GROUP, index, 1, state)

    def entries(self, count: int, *, term: int = 1) -> None:
        fill(self.journal, count, term=term)

    def members(self, *voters: str, term: int = 1) -> None:
        command = b"\2" + pack([list(voters), []])
        self.journal.add(command, self.journal.last_index + 1, term)

    async def close(self) -> None:
        await save(self.log)
        await self.log.close()


class Replicas(dict[str, Replica]):
    """Three that agree: `a` was elected in term 1, and ten entries are committed."""

    @classmethod
    async def agreeing(cls, folder: Path) -> Replicas:
        found = cls()
        for node in NODES:
            replica = found[node] = await Replica.open(folder, node)
            replica.vote(1, "a" if node != "c" else None)
            if node == "a":
                replica.lead(1)
            replica.entries(10)
            replica.journal.set_commit(11)
            replica.digest(10, b"state")
        return found

    async def close(self) -> None:
        for replica in self.values():
            await replica.close()

    async def judged(self, **more: Any) -> Verdict:
        await self.close()
        return judged([replica.folder / node for node, replica in self.items()], **more)


def judged(folders: Iterable[Path], **more: Any) -> Verdict:
    """Of nodes that are named as their folders."""
    return log_safety({NodeId(folder.name): folder for folder in folders}, **more)
