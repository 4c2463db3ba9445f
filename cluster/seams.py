"""Where the cluster touches the world: clock, disk and links. The simulator has its own of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from cluster.types import NodeId


class Clock(Protocol):
    """Time as this node sees it. Wall clocks of nodes differ and may jump; monotonic ones only
    compare locally.
    """

    def wall_ms(self) -> int: ...
    def wall_ns(self) -> int: ...
    def monotonic_ns(self) -> int: ...


class File(Protocol):
    """One open file. Offsets and sizes in bytes. Every method may raise OSError."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all of the buffers at the end, in one vectored call; returns the offset of the
        first byte.
        """
        ...

    def read(self, offset: int, size: int) -> bytes: ...
    async def fetch(self, offset: int, size: int) -> bytes:
        """As `read`, but the event loop goes on while the device works. A file that is closed
        meanwhile is read all the same.
        """
        ...

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    async def sync(self) -> None:
        """On stable storage when it returns. An error is final: never call it again."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A folder tree. Paths are absolute or relative to the process; directories are created with
    `make_dir`.
    """

    def open(self, path: str, *, create: bool = False) -> File: ...
    def exists(self, path: str) -> bool: ...
    def list_dir(self, path: str) -> list[str]: ...
    def make_dir(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    async def sync_dir(self, path: str) -> None: ...
    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...


#: A peer that was not heard for so long is down.
LINK_TIMEOUT_MS = 1_500
#: A node whose host refuses every connection for so long is taken for gone.
GONE_AFTER_S = 10.0


class Down(Enum):
    """What is known of a peer whose link is down."""

    SILENT = "silent"  # nothing was heard for a while: perhaps a partition
    CLOSED = "closed"  # its link was reset or closed: perhaps its process ended, perhaps a firewall
    #: Its process ended: it said so, a later one took its place, or nothing but refusals was heard
    #: for a long time.
    GONE = "gone"


OnMessage = Callable[[NodeId, list[Any]], None]
OnUp = Callable[[NodeId, int], None]
OnDown = Callable[[NodeId, Down], None]


class Links(Protocol):
    """One authenticated, ordered connection to every other node.

    A message is a list that CBOR can hold: `[group, kind, ...]`, group -1 for node-level ones.
    Order holds within a connection; what was sent when a connection broke may be lost, and both
    ends are told: down, later up.
    """

    incarnation: int  # of this process: grows with every start
    #: Told the name and incarnation of a node that called and is no peer. Nothing of it is proven.
    #: True: once it has proven that it holds the secret of this cluster its connection stays. It is
    #: up then, though it is no peer, and forgotten when it is down.
    on_unknown_peer: Callable[[NodeId, int], bool]

    def renumber(self, incarnation: int) -> None:
        """This process turns out to need a higher one: its connections are made anew."""
        ...

    def peers(self) -> list[NodeId]:
        """Those of the settings and those that were added, connected or not."""
        ...

    def add_peer(self, peer: NodeId, address: str) -> None:
        """A node joined. One that is known already may have another address from now on."""
        ...

    def remove_peer(self, peer: NodeId) -> None:
        """A node left for good: its connection ends, and it is not let in again."""
        ...

    async def start(self, on_message: OnMessage, on_up: OnUp, on_down: OnDown) -> None:
        """`on_down` is called again when more is known of a peer that is down."""
        ...

    async def stop(self) -> None: ...
    def send(self, peer: NodeId, message: list[Any]) -> bool:
        """Queue until `flush`, or, in a callback, until what came together with its message was
        delivered too. False: not connected, or over LINK_BYTES_MAX; the message is
        dropped.
        """
        ...

    def flush(self) -> None: ...
    def connected(self, peer: NodeId) -> bool: ...
    def buffered(self, peer: NodeId) -> int: ...
    def version(self, peer: NodeId) -> int:
        """Of the link, as both ends speak it; 0: not connected."""
        ...
