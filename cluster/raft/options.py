"""Times of the consensus protocol."""

from __future__ import annotations

from dataclasses import dataclass

BREAK_S = 1.0


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """The same on every node of a cluster. An election timeout must outlast three heartbeats."""

    election_min_ms: int = 1000
    election_max_ms: int = 2000
    heartbeat_ms: int = 200
    #: A follower learns of a commit with the next append, or after this long. 0: at once, where
    #: somebody waits for all of them to know.
    commit_lazy_s: float = 0.010

    @property
    def break_s(self) -> float:
        """Who heard nothing for so long may have missed what was committed meanwhile, and knows it:
        less than others wait for a node that does not say how far its copy is.
        """
        return max(BREAK_S, self.heartbeat_ms * 3 / 1000)

    def __post_init__(self) -> None:
        assert self.heartbeat_ms * 3 < self.election_min_ms < self.election_max_ms
