"""The history of one message out of this node's own log, for users who may read its queue.

It is told by a process of its own (`node.operating.history_helper`), of lower priority than the
node, so that neither the loop nor the memory of the node has to do with it. There is one at a time;
a few wait.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import structlog

from cluster.cluster_node import ClusterNode
from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.groups.group import Group
from cluster.history.message_events import Wanted
from cluster.machine.commands import Barrier
from cluster.types import CATALOG_GROUP, TRANSIENT_GROUPS, GroupId, NodeId
from node.errors import Elsewhere, Refused

log = structlog.get_logger(__name__)

#: Who asks while so many wait already is refused.
WAITING_MAX = 8
#: How long this copy may take to come as far as the leader was; then it tells what it has.
BEHIND_S_MAX = 2.0
LOOK_S = 0.01
#: What the process may say besides its answer.
COMPLAINT_BYTES_MAX = 2_000

#: Its own folder is not where it takes code from.
HELPER = (sys.executable, "-P", "-m", f"{__package__}.history_helper")

NO_MESSAGE = "no_message"
OUT_OF_REACH = "out_of_reach"

Json = dict[str, Any]


class HistoryLimits(Protocol):
    @property
    def history_ms_max(self) -> int: ...
    @property
    def history_memory_bytes_max(self) -> int: ...


class Histories:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterNode,
        limits: HistoryLimits,
        folders: Sequence[str],
        *,
        helper: Sequence[str] = HELPER,
    ) -> None:
        self._cluster = cluster
        self._helper = helper
        self._limits = limits
        self._folders = list(folders)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def of(self, wanted: Wanted) -> Json:
        """Refused: there is none, or it takes too much. Elsewhere: this node has no copy."""
        group = self._copy(wanted.group)
        if self._waiting >= WAITING_MAX:
            raise Refused("overloaded", "many histories are asked for already: try again")
        self._waiting += 1
        try:
            async with self._turn:
                index = await self._come_up(group)
                history = await self._run(wanted, group.applied_index)
        finally:
            self._waiting -= 1
        # All that was confirmed before it was asked is in it?
        history["read"]["current"] = index is not None and history["read"]["to"] >= index
        return history

    def _copy(self, group_id: GroupId) -> Group:
        if group_id >= TRANSIENT_GROUPS:
            raise Refused(OUT_OF_REACH, "messages of transient queues are in no log")
        info = self._cluster.catalog_machine.group(group_id)
        if group_id == CATALOG_GROUP or info is None:
            raise Refused(NO_MESSAGE, f"there is no group {group_id} with messages")
        group = self._cluster.groups.get(group_id)
        if group is None:
            raise Elsewhere(self._who_has(group_id, info.members))
        return group

    def _who_has(self, group_id: GroupId, members: Sequence[NodeId]) -> NodeId | None:
        """Any copy will do, while the group has no leader."""
        leader = self._cluster.leader_of(group_id)
        if leader is not None:
            return leader
        peers = self._cluster.peers.states
        return next((node for node in members if node in peers and peers[node].up), None)

    async def _come_up(self, group: Group) -> int | None:
        """Wait until this copy has all that was confirmed by now, which is up to this entry. None:
        there is no leader, or it took too long.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(BEHIND_S_MAX):
                outcome = await self._cluster.ask(group.id, Barrier())
                if outcome.stamp is None:
                    return None
                index = outcome.stamp.index
                while group.applied_index < index:  # noqa: ASYNC110 -- it is no event
                    await asyncio.sleep(LOOK_S)
                return index
        return None

    async def _run(self, wanted: Wanted, applied: int) -> Json:
        limits = self._limits
        request = {
            "folders": self._folders,
            "wanted": asdict(wanted),
            "applied": applied,
            "memory_bytes_max": int(limits.history_memory_bytes_max),
            "seconds_max": limits.history_ms_max / 1000,
        }
        process = HelperProcess(self._helper, pack(request), limits.history_ms_max / 1000)
        try:
            return _history_of(*await asyncio.to_thread(process.run))
        except subprocess.TimeoutExpired:
            raise Refused(
                OUT_OF_REACH,
                f"it takes longer than {limits.history_ms_max} ms: raise limits.history_ms_max, or"
                " read the folder with `quorate message --data`",
            ) from None
        finally:
            process.kill()


class HelperProcess:
    """One run of it. A thread waits for it: to make a process of one that has much memory may take
    a tenth of a second, if it is not done in the way that only the standard library has.
    """

    def __init__(self, command: Sequence[str], request: bytes, limit_s: float) -> None:
        self._command = command
        self._request = request
        self._limit_s = limit_s
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[bytes, bytes, int]:
        """What it said, what it complained of, and its status. TimeoutExpired."""
        with subprocess.Popen(  # noqa: S603 -- nothing in the command comes from a client
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        ) as process:
            self._process = process
            if self._killed:  # nobody waits any more
                process.kill()
            try:
                output, complaint = process.communicate(self._request, self._limit_s)
            finally:
                process.kill()
            return output, complaint, process.returncode

    def kill(self) -> None:
        """From any thread. Does nothing to one that has ended."""
        self._killed = True
        if self._process is not None:
            self._process.kill()


def _environment() -> dict[str, str]:
    """Where our own code is, and none of the node's secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[__name__.count(".")])}


def _history_of(output: bytes, complaint: bytes, status: int) -> Json:
    answer: Json = {}
    with suppress(CodecError):
        answer = unpack(output) if status == 0 else {}
    if "told" in answer:
        return answer["told"]
    if "code" in answer:
        raise Refused(answer["code"], answer["reason"])
    log.error(
        "history_failed",
        status=status,
        reason=complaint[-COMPLAINT_BYTES_MAX:].decode(errors="replace"),
    )
    raise Refused("failed", "the history could not be told: the node's log says why")
