"""Sums that tell contents apart and cost what changes, for digests.

Every position has a weight, and what is known of it is a factor; the content is the sum of the
products. Weights are differences of scrambled neighbours, so those of a range add up to the one
behind its end less the one at its start: a range costs the same however long it is, and however a
set is cut into ranges, its sum is the same. Factors are fields times random constants. Against a
bug or a bad machine that is as good as a hash; it is none against somebody who chooses numbers.
"""

from __future__ import annotations

from hashlib import blake2b

_WORD = (1 << 64) - 1
_SUM_BYTES = 32
_SUMS = 1 << (8 * _SUM_BYTES)
_FACTOR_BYTES = 16


def weight(first: int, last: int) -> int:
    """Of all positions of the range."""
    return _scrambled(last + 1) - _scrambled(first)


def factor(data: bytes) -> int:
    """Random, and always the same for the same bytes."""
    return int.from_bytes(blake2b(data, digest_size=_FACTOR_BYTES).digest(), "big")


def packed(total: int) -> bytes:
    return (total % _SUMS).to_bytes(_SUM_BYTES, "big")


def _scrambled(number: int) -> int:
    """The end of SplitMix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _WORD
    return number ^ number >> 31
