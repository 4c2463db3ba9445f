"""One destination of several by the hash of a text, in proportion to their weights.

Weighted rendezvous hashing: each destination draws a number from its own name and the text, and
the best wins. So a destination that comes takes its share from all others, one that goes leaves
its share to all others, and no other text moves. It is a function of the set alone, so all nodes
agree without a stored ring. It is done once for each of some slots of texts: there may be a new
text with every message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")

_MASK = 2**64 - 1
SLOTS = 16_384


class Shares(Generic[T]):
    """Destinations with weights. Names are distinct."""

    def __init__(self, shares: Iterable[tuple[str, int, T]]) -> None:
        self._shares = [(hash_of(name), weight, value) for name, weight, value in shares]
        self._picked: dict[int, T | None] = {}  # by slot

    def pick(self, text: str) -> T | None:
        """None when there is no destination at all."""
        slot = hash_of(text) % SLOTS
        if slot not in self._picked:
            self._picked[slot] = self._best(mixed(slot + 1))
        return self._picked[slot]

    def _best(self, base: int) -> T | None:
        best = math.inf
        picked: T | None = None
        for seed, weight, value in self._shares:
            score = -math.log((mixed(base ^ seed) + 1) / 2**64) / weight
            if score < best or picked is None:
                best, picked = score, value
        return picked


def weight_of(key: str) -> int:
    """A binding key as a weight; 0 when it is none."""
    return int(key) if key.isascii() and key.isdecimal() and len(key) <= 9 else 0


def hash_of(text: str) -> int:
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)


def mixed(value: int) -> int:
    """Every bit of the result depends on every bit of the value (the finalizer of splitmix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
