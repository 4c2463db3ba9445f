"""Brokers that break one promise each, to see that the suite sees it. Nothing of them exists in the
broker: a harness replaces the functions that matter, in its own process.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from chaos.builds.build import Build, put, take_back
from chaos.builds.clocks import OWN_CLOCK
from chaos.builds.disk import ACK_BEFORE_FSYNC, FORGET_THE_VOTE, WIPED_DISK_VOTES
from chaos.builds.links import ANOTHER_IDENTITY, LEFT_ALONE, OUT_OF_TURN, SETTLED_TOO_SOON
from chaos.builds.machine import DEDUP_NOT_REPLICATED, SAC_WITHOUT_FENCING, UNFLAGGED_REDELIVERY
from chaos.builds.replication import COMMIT_BY_ONE, STALE_READS, TRUNCATE_WITHOUT_CONFLICT
from chaos.builds.streams import (
    COMPARE_NOTHING,
    FORGOTTEN_ACKS,
    FORGOTTEN_IDS,
    HANDED_TO_TWO,
    PASSED_OVER,
    SEQUENCES_OF_ITS_OWN,
    TAKEN_TWICE,
)

BUILDS = {
    build.name: build
    for build in (
        ACK_BEFORE_FSYNC,
        TRUNCATE_WITHOUT_CONFLICT,
        FORGET_THE_VOTE,
        SAC_WITHOUT_FENCING,
        DEDUP_NOT_REPLICATED,
        COMMIT_BY_ONE,
        STALE_READS,
        UNFLAGGED_REDELIVERY,
        WIPED_DISK_VOTES,
        OWN_CLOCK,
        SEQUENCES_OF_ITS_OWN,
        FORGOTTEN_ACKS,
        HANDED_TO_TWO,
        COMPARE_NOTHING,
        FORGOTTEN_IDS,
        PASSED_OVER,
        TAKEN_TWICE,
        SETTLED_TOO_SOON,
        ANOTHER_IDENTITY,
        LEFT_ALONE,
        OUT_OF_TURN,
    )
}

__all__ = ["BUILDS", "Build", "break_node", "broken", "find_build"]


def find_build(name: str) -> Build:
    build = BUILDS.get(name)
    if build is None:
        raise ValueError(f"no broken build is called {name!r}; there are {', '.join(BUILDS)}")
    return build


def break_node(name: str) -> None:
    """This process's node is that build from now on. Before the node starts."""
    put(find_build(name))


@contextmanager
def broken(name: str) -> Generator[None]:
    """All nodes in this process are that build meanwhile."""
    honest = put(find_build(name))
    try:
        yield
    finally:
        take_back(honest)
