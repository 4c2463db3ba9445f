"""PySyncObj as a part of a member: the one place that knows its names.

A `PySyncObjCore` holds one SyncObj, which keeps role, term, vote and leader, and takes the step to
leadership. It has no peers, no sockets and no timer, so whatever else it could do is never begun.
In place of its own clock, dice, journal, poller and pickle it is given ours. These are names of its
module that it looks up when it uses them. Pickle is refused for good; the others are put in place
only while one of its functions runs that needs them, because every member has its own.
"""
# ruff: noqa: N802 -- the names that SyncObj calls are not ours to choose

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from operator import attrgetter
from random import Random
from typing import Any, NoReturn, cast

import pysyncobj.serializer
import pysyncobj.syncobj
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from cluster.raft.host import Role
from cluster.raft.journal_protocol import RaftJournal
from cluster.seams import Clock
from cluster.types import NodeId

#: `PySyncObjCore` uses private names of this very version.
PINNED = "0.3.17"
assert VERSION == PINNED, f"cluster.raft is written for pysyncobj {PINNED}, not {VERSION}"

#: Regular and no-op entries as PySyncObj numbers them: the first byte of every entry. Those about
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


class _Journal:
    """The journal, as far as SyncObj asks for it."""

    def __init__(self, journal: RaftJournal) -> None:
        self._journal = journal

    def __len__(self) -> int:
        return 1  # never empty: entry 1 is in every log from birth

    def __getitem__(self, position: int) -> tuple[bytes, int, int]:
        """The last entry, of which SyncObj wants index and term."""
        assert position == -1
        return b"", self._journal.last_index, self._journal.last_term

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._journal.add(command, idx, term)

    def setCurrentTerm(self, term: int, votedForNodeId: NodeId | None) -> None:  # noqa: N803
        self._journal.set_term(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self._journal.current_term

    def getVotedForNodeId(self) -> str | None:
        return self._journal.voted_for

    def getRaftCommitIndex(self) -> int:
        return self._journal.commit_index


def _field(name: str) -> Any:
    """A private field of SyncObj. Importing this module fails when this version has none."""
    private = f"_SyncObj__{name}"
    assert private in vars(SyncObj)["__init__"].__code__.co_names, f"SyncObj has no __{name}"
    return property(attrgetter(f"_syncobj.{private}"))


def _method(name: str) -> Any:
    """A private method, likewise."""
    private = f"_SyncObj__{name}"
    assert private in vars(SyncObj), f"SyncObj has no method __{name}"
    return property(attrgetter(f"_syncobj.{private}"))


class PySyncObjCore:
    """The SyncObj of one member."""

    term: int = _field("raftCurrentTerm")
    voted_for: NodeId | None = _field("votedForNodeId")
    leader: Peer | None = _field("raftLeader")
    noop_index: int | None = _field("noopIDx")  # the first entry of its last leadership
    #: Term and vote, also into the journal: they must be synced before anybody hears of them.
    set_term: Callable[[int, NodeId | None], None] = _method("setCurrentTerm")
    _set_state: Callable[[int], None] = _method("setState")
    _become_leader: Callable[[], None] = _method("onBecomeLeader")

    def __init__(
        self,
        me: Peer,
        journal: RaftJournal,
        *,
        clock: Clock,
        random: Random,
        on_state: Callable[[int, int], None],
    ) -> None:
        """`on_state` is told the role before and after each change."""
        self._journal = _Journal(journal)
        self._clock = clock
        self._random = random
        conf = SyncObjConf(autoTick=False, onStateChanged=on_state)
        with self._injected():
            self._syncobj: Any = SyncObj(me, (), conf, transport=Transport(None, None, []))

    def set_role(self, role: Role) -> None:
        self._set_state(role.value)

    def follow(self, leader: Peer | None) -> None:
        self._syncobj._SyncObj__raftLeader = leader

    def become_leader(self) -> None:
        """Leads from now on; the first entry of its term, a no-op, is in the journal."""
        with self._injected():
            self._become_leader()

    @contextmanager
    def _injected(self) -> Generator[None]:
        """While this is open, PySyncObj's code runs on this journal, this clock and these dice."""
        module: Any = pysyncobj.syncobj
        journal, clock = self._journal, self._clock
        ours: dict[str, Any] = {
            "createJournal": lambda _file: journal,  # pyright: ignore[reportUnknownLambdaType] of no use
            "monotonicTime": lambda: clock.monotonic_ns() / 1e9,
            "random": self._random,
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
