"""What is thrown at a node: the same seed and number make the same input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

CHUNK_BYTES = 16_384
#: A connection that does nothing is held for so long at most.
HOLD_S_MAX = 6.0


@dataclass
class Draft:
    """What a kind makes of an input: frames, to be cut into steps."""

    frames: list[bytes]
    reads: bool = True
    polite: bool = False  # ends with a goodbye, so the node owes an end
    replies: int = 0  # so many answers it owes before that
    hold_s: float = 0.0
    pause_s: float = 0.0  # after each byte


#: By name: how often, beside the others, and what makes it.
Kinds = Mapping[str, tuple[int, Callable[[Random], Draft]]]


@dataclass(frozen=True)
class Step:
    """Bytes, and how long to wait after they were sent."""

    data: bytes
    pause_s: float = 0.0


@dataclass(frozen=True)
class Input:
    """One connection's doings."""

    seed: int
    number: int
    kind: str
    steps: list[Step]
    reads: bool = True
    polite: bool = False
    replies: int = 0
    goodbye: bytes = b""  # said once the replies are there
    hold_s: float = 0.0  # after the last step

    @property
    def slow(self) -> bool:
        return self.hold_s > 0 or any(step.pause_s for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        steps = [[step.data.hex(), step.pause_s] for step in self.steps]
        return {**self.__dict__, "steps": steps, "goodbye": self.goodbye.hex()}

    @classmethod
    def of_json(cls, about: dict[str, Any]) -> Input:
        steps = [Step(bytes.fromhex(data), pause_s) for data, pause_s in about["steps"]]
        goodbye = bytes.fromhex(about["goodbye"])
        fields: dict[str, Any] = {**about, "steps": steps, "goodbye": goodbye}
        return cls(**fields)


def make(kinds: Kinds, goodbye: bytes, seed: int, number: int) -> Input:
    random = Random(f"{seed}/{number}")
    kind = random.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
    return _finished(kinds[kind][1](random), goodbye, random, seed, number, kind)


def found(drafts: Mapping[str, Draft], goodbye: bytes) -> list[Input]:
    """What once found something. Numbers below zero, so that no generated one is meant."""
    return [
        _finished(draft, goodbye, None, 0, -number, what)
        for number, (what, draft) in enumerate(drafts.items(), 1)
    ]


def _finished(
    draft: Draft, goodbye: bytes, random: Random | None, seed: int, number: int, kind: str
) -> Input:
    data = b"".join(draft.frames)
    last = b""
    if draft.polite and draft.replies:
        last = goodbye
    elif draft.polite:
        data += goodbye
    if draft.pause_s:
        steps = [Step(data[at : at + 1], draft.pause_s) for at in range(len(data))]
    else:
        steps = [Step(data)] if random is None else [Step(each) for each in _cut(random, data)]
    return Input(
        seed, number, kind, steps, draft.reads, draft.polite, draft.replies, last, draft.hold_s
    )


def _cut(random: Random, data: bytes) -> list[bytes]:
    """In one piece, in small ones, or wherever it happens."""
    sizes = random.choice(((len(data) or 1,), (1, 2, 7, 100), (500, 5_000, CHUNK_BYTES)))
    if len(data) > CHUNK_BYTES:
        sizes = (CHUNK_BYTES, 4 * CHUNK_BYTES)
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        size = random.choice(sizes)
        pieces.append(data[at : at + size])
        at += size
    return pieces
