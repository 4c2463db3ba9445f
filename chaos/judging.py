"""From the history of a run and what was left of it to all verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checker import Verdict, check_all, convergence, liveness, log_safety, low_disk
from chaos.checker.verdict import judge
from chaos.history import HANDING, PUBLISHING, Op
from chaos.load.workload import Workload
from chaos.report.outcome import CLUSTER
from chaos.report.series import workload_of
from cluster.types import NodeId

#: After these a node's disk may not know any more what it promised. A disk that lies is not among
#: them: under it only processes die, and what they wrote is there.
FORGETFUL = ("wipe", "old_copy")


@dataclass
class Aftermath:
    """What a run saw when its faults were over."""

    healed: bool = False  # everything was, and started
    moved: bool = False  # groups had other members in between
    findings: list[str] = field(default_factory=list[str])  # what nodes did that they must not
    not_whole: list[str] = field(default_factory=list[str])
    not_drained: list[str] = field(default_factory=list[str])
    not_stopped: list[str] = field(default_factory=list[str])
    #: None: it did not answer.
    statuses: Mapping[NodeId, Mapping[str, Any] | None] = field(default_factory=dict[NodeId, Any])
    folders: Mapping[NodeId, Path] = field(default_factory=dict[NodeId, Path])


def judge_run(
    ops: Sequence[Op], workloads: Sequence[Workload], aftermath: Aftermath
) -> dict[str, list[Verdict]]:
    """By workload, each on its own part of the history; and of the cluster."""
    parts: dict[str, list[Op]] = {}
    for op in ops:
        parts.setdefault(workload_of(op), []).append(op)
    verdicts = {
        workload.name: check_all(parts.get(workload.name, []), workload.checkers)
        for workload in workloads
    }
    if aftermath.healed:
        verdicts[CLUSTER] = [load(parts, list(verdicts)), *_of_cluster(ops, aftermath)]
    return verdicts


def load(parts: Mapping[str, Sequence[Op]], workloads: Sequence[str]) -> Verdict:
    """A workload of which nothing was confirmed, or nothing came out, shows nothing."""
    idle: list[str] = []
    for name in workloads:
        ops = parts.get(name, ())
        confirmed = sum(1 for op in ops if op.type == "ok" and op.f in PUBLISHING)
        delivered = sum(1 for op in ops if op.f in HANDING)
        if not confirmed * delivered:
            idle.append(f"{name}: {confirmed} confirms, {delivered} deliveries")
    return judge("load", {}, undecided={"idle": idle}, reported={"workloads": len(workloads)})


def _of_cluster(ops: Sequence[Op], aftermath: Aftermath) -> list[Verdict]:
    struck: dict[str, set[NodeId]] = {}
    for op in ops:
        if op.f == "fault" and op.type == "invoke":
            nodes = {NodeId(node) for node in op.value.get("nodes") or ()}
            struck.setdefault(str(op.value.get("kind")), set()).update(nodes)
    damaged = _union(struck, (kind for kind in struck if kind.startswith("damage")))
    verdicts = [
        judge("faults", {"findings": aftermath.findings}),
        judge(
            "recovery",
            {
                "not whole again": aftermath.not_whole,
                "not drained": aftermath.not_drained,
                "not stopped": aftermath.not_stopped,
            },
        ),
        convergence(aftermath.statuses),
        liveness()(ops),
        low_disk(ops),
    ]
    if aftermath.folders:
        verdicts.append(
            log_safety(
                aftermath.folders,
                voters={} if aftermath.moved else _voters(aftermath.statuses),
                damaged=damaged,
                # What is damaged is wiped in the end.
                forgetful=damaged | _union(struck, FORGETFUL),
            )
        )
    return verdicts


def _union(struck: Mapping[str, set[NodeId]], kinds: Iterable[str]) -> set[NodeId]:
    return {node for kind in kinds for node in struck.get(kind, ())}


def _voters(statuses: Mapping[NodeId, Mapping[str, Any] | None]) -> dict[int, list[NodeId]]:
    """Of groups that never moved."""
    return {
        group["id"]: group["members"]
        for status in statuses.values()
        for group in (status or {}).get("groups", ())
    }
