"""Bodies on their way: cutting them into frames, and one frame's life until it is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from typing import Any, NamedTuple, cast

from quorate import wire
from quorate.errors import QuorateError

Meta = Mapping[str, Any]


class Published(NamedTuple):
    """One message is safe on a majority."""

    position: int | None  # its number in the queue; None when it was stored by an earlier attempt
    duplicate: bool  # true: it was there already and was not stored again


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All given messages are safe on a majority."""

    count: int
    stored: int
    duplicates: int  # were there already: from an earlier attempt, or by their de-duplication id


@dataclass(frozen=True, slots=True)
class Row:
    """What CONFIRM says of one frame."""

    first: int
    stored: int
    duplicates: int
    refused: Sequence[Sequence[int]]  # ranges of offsets within the frame

    def outcomes(self) -> Iterator[Published | None]:
        """Of each message in turn, without end; None: the full queue refused it."""
        if self.duplicates:
            # Which of them was the duplicate is only plain when all were.
            stored = repeat(Published(None, self.stored == 0))
        else:
            stored = map(Published, count(self.first), repeat(False))
        if not self.refused:
            return stored
        over = {offset for first, last in self.refused for offset in range(first, last + 1)}
        return (None if offset in over else next(stored) for offset in count())


@dataclass(slots=True, eq=False)
class Batch:
    """Bodies of one PUBLISH frame. `seqno` 0: never sent, so it can still grow or be taken back."""

    bodies: list[bytes]
    metas: Any  # as in the frame, or a list with one a body while it is open
    attrs: Any
    size: int
    single: bool  # made of single publishes, each with its own waiter
    #: Of single messages each has its own, which gets a `Published`; else one, for the `Row`.
    waiters: list[asyncio.Future[Any]]
    deadlines_s: list[float] = field(default_factory=list[float])  # of single messages
    large: dict[int, Any] | None = None  # which bodies were sent in parts before
    name: str = ""
    seqno: int = 0
    request: int = 0
    unsure: set[int] = field(default_factory=set[int])  # requests not surely refused
    sent_at_s: float = 0.0  # the first time, in the loop's time
    confirmed_at_s: float = 0.0
    done: bool = False
    shards: list[str] | None = None  # to which its bodies go, once a node has said so

    def fields(self) -> tuple[Any, Any]:
        """Meta and attrs for the frame."""
        if not self.single:
            return self.metas, self.attrs
        metas: list[Any] = self.metas
        attrs: list[Any] = self.attrs
        return (
            metas if metas.count(None) < len(metas) else None,
            attrs if attrs.count(None) < len(attrs) else None,
        )

    @property
    def has_dedup_id(self) -> bool:
        """Whether it may be a duplicate for another reason than its number."""
        attrs: Any = self.attrs
        each: list[Any] = cast("list[Any]", attrs) if isinstance(attrs, list) else [attrs]
        return any(one is not None and wire.ATTR_DEDUP_ID in one for one in each)

    def resolve(self, row: Row, refusal: Callable[[], QuorateError]) -> None:
        """`refusal`: what the caller of a refused message is told."""
        self.done = True
        if not self.single:
            if not self.waiters[0].done():
                self.waiters[0].set_result(row)
            return
        for waiter, published in zip(self.waiters, row.outcomes(), strict=False):
            if waiter.done():
                continue
            if published is not None:
                waiter.set_result(published)
            else:
                waiter.set_exception(refusal())

    def fail(self, error: Exception) -> None:
        self.done = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)


def cut(
    bodies: Iterator[bytes], count_max: int, bytes_max: int
) -> Iterator[tuple[list[bytes], int]]:
    """Frames of at most `count_max` bodies and `bytes_max` bytes (one larger body goes alone), with
    their size.
    """
    while piece := list(islice(bodies, count_max)):
        if not set(map(type, piece)) <= {bytes}:
            raise TypeError("a message body must be bytes: encode text first, as in text.encode()")
        size = sum(map(len, piece))
        if size <= bytes_max:
            yield piece, size
            continue
        part: list[bytes] = []
        part_size = 0
        for body in piece:
            if part and part_size + len(body) > bytes_max:
                yield part, part_size
                part, part_size = [], 0
            part.append(body)
            part_size += len(body)
        yield part, part_size
