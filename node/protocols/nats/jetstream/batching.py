"""Messages of atomic batches, until the last one comes. Pure.

Nothing of a batch is proposed before it is whole: then it is one command. So it is held where its
client is connected, and a change of leader does not touch it. A gap in its numbers, silence, or too
much of it ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from cluster.types import QueueId
from node.protocols.nats.jetstream.errors import ApiError, known

MESSAGES_MAX: Final = 1_000
#: One command holds it: below what fits into an entry.
BYTES_MAX: Final = 8 << 20
ID_CHARS_MAX: Final = 64
#: After so long without a message of it.
SILENCE_S: Final = 10.0
#: At once: of one stream; on a node, and their bytes there.
OF_STREAM_MAX: Final = 50
OF_NODE_MAX: Final = 1_000
HELD_BYTES_MAX: Final = 64 << 20

Reason = Literal["timeout", "large", "incomplete"]


class Part(NamedTuple):
    """What a message says of the batch that it is of."""

    id: str
    number: int  # from 1 on; 0: it does not say
    commit: str = ""  # "1": it is the last one; "eob": the one before it was


class Member(NamedTuple):
    body: bytes
    header: bytes | None
    attrs: dict[int, Any]
    size_bytes: int
    increment: int | None = None  # of a counter


class Columns(NamedTuple):
    """Messages, as they are published."""

    bodies: list[bytes]
    headers: list[bytes | None]
    attrs: list[dict[int, Any]]
    size_bytes: int


def columns_of(members: Sequence[Member]) -> Columns:
    return Columns(
        [each.body for each in members],
        [each.header for each in members],
        [each.attrs for each in members],
        sum(each.size_bytes for each in members),
    )


class Abandoned(NamedTuple):
    queue: QueueId
    id: str
    reason: Reason


@dataclass(slots=True)
class _Open:
    members: list[Member] = field(default_factory=list[Member])
    bytes: int = 0
    used_s: float = 0.0


class Batches:
    """Of one node. What was given up is collected in `abandoned`."""

    def __init__(self) -> None:
        self.abandoned: list[Abandoned] = []
        self.bytes = 0
        self._open: dict[tuple[QueueId, str], _Open] = {}  # in the order of their last messages

    def __len__(self) -> int:
        return len(self._open)

    def add(self, queue: QueueId, part: Part, member: Member, now_s: float) -> list[Member] | None:
        """All of the batch, if this one ends it. ApiError: there is no such batch any more."""
        self.look(now_s)
        if len(part.id) > ID_CHARS_MAX:
            raise known(10179)
        if not part.number:
            raise known(10175)
        key = queue, part.id
        batch = self._open.pop(key, None)
        if batch is None:
            self._may_begin(queue, part)
            batch = _Open()
        else:
            self.bytes -= batch.bytes
        if part.commit not in ("", "1", "eob"):
            raise known(10200)
        ends_before = part.commit == "eob"
        if part.number != len(batch.members) + 1 or (ends_before and not batch.members):
            self.abandoned.append(Abandoned(queue, part.id, "incomplete"))
            raise known(10176)
        if not ends_before:
            batch.members.append(member)
            batch.bytes += member.size_bytes
        if len(batch.members) > MESSAGES_MAX or batch.bytes > BYTES_MAX:
            self.abandoned.append(Abandoned(queue, part.id, "large"))
            raise _too_large()
        if part.commit:
            return batch.members
        if self.bytes + batch.bytes > HELD_BYTES_MAX:
            self.abandoned.append(Abandoned(queue, part.id, "large"))
            raise known(10210)
        batch.used_s = now_s
        self.bytes += batch.bytes
        self._open[key] = batch
        return None

    def _may_begin(self, queue: QueueId, part: Part) -> None:
        if part.number > MESSAGES_MAX + (part.commit == "eob"):
            raise _too_large()
        if part.number != 1:
            raise known(10176)
        of_stream = sum(each == queue for each, _ in self._open)
        if of_stream >= OF_STREAM_MAX or len(self._open) >= OF_NODE_MAX:
            raise known(10210)

    def look(self, now_s: float) -> None:
        """Gives up those that are silent."""
        while self._open:
            key = next(iter(self._open))
            if self._open[key].used_s + SILENCE_S > now_s:
                break
            self.bytes -= self._open.pop(key).bytes
            self.abandoned.append(Abandoned(*key, "timeout"))

    @property
    def due_s(self) -> float | None:
        """When to look again."""
        return next((each.used_s + SILENCE_S for each in self._open.values()), None)


def _too_large() -> ApiError:
    most = f"{MESSAGES_MAX} messages, {BYTES_MAX} bytes"
    return ApiError(400, 10199, f"atomic publish batch is too large: {most}")
