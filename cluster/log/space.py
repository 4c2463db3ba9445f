"""How much room the volume of the log has, and what follows from that.

There are three marks, each half of the one before: *near* (the node begins to give back what
nobody needs), the *limit* (publishers wait), and the *reserve*, which settles, snapshots and
rewriting have to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The limit unless it is set...
MIN_FREE_BYTES: Final = 256 << 20
#: ...and on a volume where that would be more than one part in so many, that part.
LIMIT_PARTS: Final = 5
#: A volume has room for so many segments at least, or none could be given back in time.
SEGMENTS_MIN: Final = 16
SEGMENT_BYTES_MIN: Final = 1 << 20
#: Publishers go on with this many times the limit free.
CLEAR_SHARE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the volume of the log."""

    free_bytes: int
    total_bytes: int
    limit_bytes: int
    refuse_publishes: bool

    @property
    def near(self) -> bool:
        """Publishers will have to wait soon, or do already."""
        return self.free_bytes < 2 * self.limit_bytes

    @property
    def wanted_bytes(self) -> int:
        """What would have to be given back until that is over."""
        return max(0, 2 * self.limit_bytes - self.free_bytes)

    @property
    def reserve_bytes(self) -> int:
        return self.limit_bytes // 2

    def segment_bytes(self, most: int) -> int:
        """Size at which a segment is sealed."""
        return min(most, max(SEGMENT_BYTES_MIN, self.total_bytes // SEGMENTS_MIN))


def measured(
    free_bytes: int, total_bytes: int, min_free_bytes: int | None, *, refused: bool
) -> Space:
    """`refused`: whether publishers wait already."""
    limit = min_free_bytes
    if limit is None:
        limit = min(MIN_FREE_BYTES, total_bytes // LIMIT_PARTS)
    clear = int(limit * CLEAR_SHARE) if refused else limit
    return Space(free_bytes, total_bytes, limit, free_bytes < clear)
