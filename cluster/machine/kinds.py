"""What the group's machine asks of a queue, whatever its type.

The types are a closed set, named by `QueueConfig.type`. `queue` is the one there is. A retained
stream, whose consumers are cursors over messages that stay, is another class with these methods
and another line in `KINDS`; the group's machine does not change for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cluster.machine.commands import (
    BodyPart,
    Cancel,
    DeadLettersMoved,
    Discard,
    Enqueue,
    Extend,
    Get,
    Handed,
    HandedTo,
    QueueConfig,
    Ranges,
    Return,
    SetCredit,
    Settle,
    Subscribe,
)
from cluster.machine.deadletters import Deaths
from cluster.machine.effects import DeadLetter, Effect
from cluster.machine.interface import QueueGauges, QueueView, Removed, Row, RowState
from cluster.machine.queue import Queue
from cluster.machine.replies import Chunk, Refused, Reply
from cluster.machine.turn import Turn
from cluster.machine.witness import Witness
from cluster.types import ConsumerKey, QueueId


class QueueKind(Protocol):
    id: QueueId
    vhost: str
    name: str
    config: QueueConfig
    paused: bool
    version: int  # of the group's machine: `set_version` changes it later
    due_ms: int | None  # nothing happens by itself before
    removed: dict[str, Removed]
    scheduled_ms: int | None  # for the group's timetable
    witness: Witness | None

    @property
    def message_count(self) -> int: ...
    @property
    def waiting_count(self) -> int:
        """Those of them that are with no consumer."""
        ...

    @property
    def is_used(self) -> bool:
        """Somebody is subscribed."""
        ...

    @property
    def is_held_up(self) -> bool:
        """Messages are ready, and those who are subscribed may not have them now."""
        ...

    # Commands; every one is followed by `advance`.
    def enqueue(self, turn: Turn, command: Enqueue, /) -> Reply: ...
    def keep_part(self, turn: Turn, command: BodyPart, /) -> Reply: ...
    def subscribe(self, turn: Turn, command: Subscribe, /) -> Reply: ...
    def cancel(self, turn: Turn, command: Cancel, /) -> Reply: ...
    def set_credit(self, turn: Turn, command: SetCredit, /) -> Reply: ...
    def settle(self, turn: Turn, command: Settle, /) -> Reply: ...
    def give_back(self, turn: Turn, command: Return, /) -> Reply: ...
    def discard(self, turn: Turn, command: Discard, /) -> Reply: ...
    def extend(self, turn: Turn, command: Extend, /) -> Reply: ...
    def get(self, turn: Turn, command: Get, /) -> Reply: ...
    def purge(self, turn: Turn, /) -> Reply: ...
    def handed(self, command: Handed, /) -> Reply: ...
    def dead_letters_moved(self, command: DeadLettersMoved, /) -> Reply: ...
    def update(self, config: QueueConfig, /) -> None: ...
    def set_version(self, version: int, /) -> None: ...
    def used(self, now_ms: int, /) -> None: ...
    def close(self, turn: Turn, /) -> None: ...
    def session_here(self, key: ConsumerKey, /, *, here: bool) -> None: ...
    def session_was_handed(self, key: ConsumerKey, handed: HandedTo | None, /) -> None: ...
    def session_over(self, turn: Turn, key: ConsumerKey, /, *, failed: bool) -> None: ...
    def takes_all(self, count: int, sizes: Sequence[int], /) -> bool:
        """Is there surely room for so many more?"""
        ...

    @property
    def room_kept(self) -> tuple[int, int]:
        """For how many messages, and of how many bytes."""
        ...

    def keep_room(self, count: int, size: int, /) -> None:
        """For so many messages, of so many bytes in all; of less than none: give it back."""
        ...

    def admits(self, sizes: Sequence[int], /) -> bool:
        """Would messages of these sizes all be taken now?"""
        ...

    def lacks(
        self, key: ConsumerKey, ranges: Ranges, token: int | None = None, /
    ) -> Refused | None:
        """Why the consumer could not settle these now."""
        ...

    def take_dead_letters(
        self,
        turn: Turn,
        /,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        priority: int,
        deaths: Deaths,
        parts: Mapping[int, Sequence[tuple[int, int]]],
    ) -> None:
        """Messages that died in another queue of the group. `parts`: entries of large bodies, by
        their places among these.
        """
        ...

    def advance(self, turn: Turn, /) -> None: ...

    # Looking.
    def owed(self) -> Sequence[Effect]: ...
    def view(self) -> QueueView: ...
    def gauges(self) -> QueueGauges: ...
    def rows(self, start: int, count: int, state: RowState | None, /) -> Sequence[Row]: ...
    def holds(self, key: ConsumerKey, /) -> Sequence[Chunk] | None: ...
    def is_windowed(self, key: ConsumerKey, /) -> bool: ...
    def dead_letters(self, count: int, /) -> Sequence[DeadLetter]: ...
    def consumer_keys(self) -> Sequence[tuple[str, ConsumerKey]]:
        """(session, key) of every consumer, oldest first."""
        ...

    def live_indexes(self) -> list[tuple[int, int]]: ...
    def dump(self) -> list[Any]: ...
    def fingerprint(self) -> list[Any]:
        """Less than `dump`, yet different when it is."""
        ...

    def load(self, data: Sequence[Any], now_ms: int, /) -> None: ...
    def invariants(self) -> None: ...


KINDS: dict[str, Callable[[QueueId, str, str, QueueConfig, int], QueueKind]] = {"queue": Queue}
