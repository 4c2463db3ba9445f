"""From the history of a run and what was left of it to all verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checker.verdict import Verdict, check_all, judge
from chaos.history import Op
from chaos.load.workload import Workload
from chaos.report.outcome import CLUSTER
from chaos.report.series import workload_of
from cluster.types import NodeId


@dataclass
class Aftermath:
    """What a run saw when its faults were over."""

    healed_ns: int | None = None  # when everything was healed and started
    findings: list[str] = field(default_factory=list[str])  # what nodes did that they must not
    not_whole: list[str] = field(default_factory=list[str])
    not_drained: list[str] = field(default_factory=list[str])
    not_stopped: list[str] = field(default_factory=list[str])
    statuses: Mapping[NodeId, Mapping[str, Any]] = field(default_factory=dict[NodeId, Any])
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
    if aftermath.healed_ns is not None:
        verdicts[CLUSTER] = _of_cluster(aftermath)
    return verdicts


def _of_cluster(aftermath: Aftermath) -> list[Verdict]:
    return [
        judge("faults", {"findings": aftermath.findings}),
        judge(
            "recovery",
            {
                "not whole again": aftermath.not_whole,
                "not drained": aftermath.not_drained,
                "not stopped": aftermath.not_stopped,
            },
        ),
    ]
