"""What became of a proposal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from cluster.machine.replies import (
    BAD_ARGUMENT,
    NO_GROUP,
    PARTS_MISSING,
    UNKNOWN_COMMAND,
    Reply,
)
from cluster.types import NodeId, Stamp

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """ok: applied here. refused: surely did not happen. unknown: may have happened."""

    kind: Literal["ok", "refused", "unknown"]
    reply: Reply | None = None  # of the machine; its refusal too, then the kind is refused
    stamp: Stamp | None = None  # of the command, when it was applied
    code: str | None = None
    reason: str | None = None
    leader: NodeId | None = None  # whom to ask instead
    in_doubt: bool = False  # nobody knows what became of an earlier try


#: The cluster still runs a machine version that lacks what was proposed.
NOT_UPGRADED = "not_upgraded"

# Which refusals a repetition can change. A machine's reply is its last word, but for what is said
# beside each; any refusal that is not named here passes: there will be a leader, or room.

#: More than an entry of the log holds; parts of it may fit.
TOO_LARGE = "too_large"
#: Not here, or not now: ask the leader.
ELSEWHERE = frozenset({"not_leader", "no_leader", "stopping"})
#: Nothing but an upgrade of the cluster changes it.
UPGRADE_NEEDED = frozenset({NOT_UPGRADED, UNKNOWN_COMMAND})
#: No repetition of the same command changes it.
FINAL = UPGRADE_NEEDED | {TOO_LARGE, BAD_ARGUMENT, "transient_full", PARTS_MISSING}

Done = Callable[[Outcome], None]


def decided(outcome: Outcome) -> bool:
    """The machine has answered, or no repetition changes it."""
    reply = outcome.reply
    if reply is None:
        return outcome.code in FINAL
    # A cluster that is being born has no groups for queues yet.
    return getattr(reply, "code", None) != NO_GROUP


def refused(code: str, reason: str, leader: NodeId | None = None) -> Outcome:
    return Outcome("refused", None, None, code, reason, leader)


def unknown(reason: str, leader: NodeId | None = None) -> Outcome:
    return Outcome("unknown", None, None, "leadership_lost", reason, leader)


def too_new(needed: int, version: int) -> Outcome:
    """Nothing was written: a node of an older release could not run it."""
    return refused(
        NOT_UPGRADED,
        f"this needs machine version {needed}, and the cluster has {version}: it rises when all"
        " nodes run the newer release (`quorate upgrade status`)",
    )


async def called_back(start: Callable[[Callable[[T], None]], None]) -> T:
    """Start what takes a callback, and wait for what that is given."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not future.done():  # or who waits was cancelled
            future.set_result(result)

    start(done)
    return await future
