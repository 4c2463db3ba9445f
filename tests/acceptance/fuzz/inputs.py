"""What is thrown at a node: the same seed and number make the same input."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.acceptance.fuzz import wire
from tests.acceptance.fuzz.kinds import KINDS

CHUNK_BYTES = 16_384


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
    polite: bool = False  # ends with connection.close, so the node owes an end
    hold_s: float = 0.0  # after the last step

    @property
    def slow(self) -> bool:
        return self.hold_s > 0 or any(step.pause_s for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        steps = [[step.data.hex(), step.pause_s] for step in self.steps]
        return {**self.__dict__, "steps": steps}

    @classmethod
    def of_json(cls, about: dict[str, Any]) -> Input:
        steps = [Step(bytes.fromhex(data), pause_s) for data, pause_s in about["steps"]]
        fields: dict[str, Any] = {**about, "steps": steps}
        return cls(**fields)


def make(seed: int, number: int) -> Input:
    random = Random(f"{seed}/{number}")
    kind = random.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    draft = KINDS[kind][1](random)
    if draft.polite:
        draft.frames.append(wire.goodbye())
    data = b"".join(draft.frames)
    if draft.pause_s:
        steps = [Step(data[at : at + 1], draft.pause_s) for at in range(len(data))]
    else:
        steps = [Step(piece) for piece in _cut(random, data)]
    return Input(seed, number, kind, steps, draft.reads, draft.polite, draft.hold_s)


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
