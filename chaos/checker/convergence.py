"""When all is drained, every replica of a group is at the same place and holds nothing any more but
what its streams keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.checker.verdict import Verdict, judge
from cluster.types import NodeId

Status = Mapping[str, Any]
#: What a queue group holds, by the names of its overview.
_HELD = ("ready", "unsettled", "delayed", "dead_letters", "transactions")


def convergence(statuses: Mapping[NodeId, Status | None]) -> Verdict:
    """Of what each node says of itself (`quorate status --json`); None: it did not answer.

    They are asked one after the other while time passes, so whoever asks goes on until this is
    true, or has waited long enough. States are compared by their digests, where these are told.
    """
    silent = [str(node) for node, status in statuses.items() if status is None]
    groups: dict[int, dict[NodeId, Status]] = {}
    for node, status in statuses.items():
        for group in (status or {}).get("groups", ()):
            groups.setdefault(group["id"], {})[node] = group
    apart: list[str] = []
    differing: list[str] = []
    absent: list[str] = []
    held: list[str] = []
    poisoned: list[str] = []
    skipped: list[str] = []
    for number, copies in sorted(groups.items()):
        members = {member for copy in copies.values() for member in copy["members"]}
        for member in sorted(members - set(copies)):
            if statuses.get(member) is not None:
                absent.append(f"group {number}: {member} is a member and has no copy")
            elif member not in statuses:
                silent.append(member)
        places = {
            node: (copy["last"], copy["commit"], copy["applied"])
            for node, copy in sorted(copies.items())
        }
        flat = {index for place in places.values() for index in place}
        if len(flat) > 1:
            told = ", ".join(f"{node} {last}/{c}/{a}" for node, (last, c, a) in places.items())
            apart.append(f"group {number}: last/commit/applied {told}")
        digests = {copy["digest"] for copy in copies.values() if "digest" in copy}
        if len(flat) == 1 and len(digests) > 1:
            differing.append(f"group {number} at {flat}: {sorted(digests)}")
        poisoned += [
            f"group {number} on {node}: {copy['poisoned']}"
            for node, copy in copies.items()
            if copy.get("poisoned") is not None
        ]
        skipped += [
            f"group {number} on {node}: {copy['skipped']} commands at which the machine raised"
            for node, copy in copies.items()
            if copy.get("skipped")
        ]
        held += [f"group {number} on {text}" for text in _holdings(copies)]
    return judge(
        "convergence",
        {
            "replicas apart": apart,
            "states differ": differing,
            "copy missing": absent,
            "not empty": held,
            "poisoned": poisoned,
            "skipped": skipped,
        },
        undecided={
            "not answering": sorted(set(silent)),
            "nothing to judge": [] if groups else ["no node told of any group"],
        },
        reported={"groups": len(groups), "replicas": sum(map(len, groups.values()))},
    )


def _holdings(copies: Mapping[NodeId, Status]) -> Iterator[str]:
    for node, copy in sorted(copies.items()):
        machine: Status = copy.get("machine") or {}
        left = {what: machine.get(what, 0) for what in _HELD}
        left["ready"] -= machine.get("retained", 0)
        found = [f"{count} {what}" for what, count in left.items() if count]
        if found:
            yield f"{node}: {', '.join(found)}"
