"""What PySyncObj is given in place of its own clock, dice, journal, poller and pickle.

These are names of its module that it looks up when it uses them. Pickle is refused for good; the
others are put in place only while one of its functions runs that needs them, because every member
has its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from random import Random
from typing import Any, NoReturn, cast

import pysyncobj.serializer
import pysyncobj.syncobj
from pysyncobj.node import Node
from pysyncobj.version import VERSION

from cluster.seams import Clock
from cluster.types import NodeId

#: `cluster.raft.member` overrides private names of this very version.
PINNED = "0.3.17"
assert VERSION == PINNED, f"cluster.raft is written for pysyncobj {PINNED}, not {VERSION}"

#: Regular and no-op commands as PySyncObj numbers them: the first byte of every entry. Those about
#: members begin with `cluster.log.MEMBERSHIP`.
REGULAR = b"\x00"
NO_OP = b"\x01"


class PickleRefused(RuntimeError):
    """PySyncObj was about to pickle or, far worse, to unpickle something."""


class _NoPickle:
    """Stands where PySyncObj looks for pickle: bytes of ours are CBOR."""

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PickleRefused("nothing of ours is a pickle: bytes on the wire and on disk are CBOR")

    loads = dumps = load = dump = refuse


class _NoDump:
    """Stands where PySyncObj keeps its snapshot of everything: ours are the journal's."""

    def __init__(self, *_: Any) -> None: ...


class _NoPoller:
    """Stands where PySyncObj polls sockets: a member owns no descriptor."""

    def __init__(self, *_: Any) -> None: ...


class Peer(Node):
    """A member's name inside PySyncObj.

    Its hash is its number, so that no order depends on the hash seed.
    """

    def __init__(self, node: NodeId, number: int) -> None:
        super().__init__(node)  # pyright: ignore[reportUnknownMemberType] no types there
        self._id: NodeId = node
        self.number = number

    @property
    def id(self) -> NodeId:
        return self._id

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self.id == other.id


def _refuse_for_good() -> None:
    refuse: Any = _NoPickle()
    for module in (pysyncobj.syncobj, pysyncobj.serializer):
        cast("Any", module).pickle = refuse
    cast("Any", pysyncobj.syncobj).PIPE_NOTIFIER_ENABLED = False


_refuse_for_good()


@contextmanager
def injected(*, journal: object, clock: Clock, random: Random) -> Generator[None]:
    """While this is open, PySyncObj's code runs on this journal, this clock and these dice."""
    module: Any = pysyncobj.syncobj
    ours: dict[str, Any] = {
        "createJournal": lambda _file: journal,  # pyright: ignore[reportUnknownLambdaType] of no use
        "monotonicTime": lambda: clock.monotonic_ns() / 1e9,
        "random": random,
        "createPoller": _NoPoller,
        "Serializer": _NoDump,
    }
    theirs = {name: getattr(module, name) for name in ours}
    for name, value in ours.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in theirs.items():
            setattr(module, name, value)
