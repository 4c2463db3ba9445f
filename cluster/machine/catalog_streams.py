"""That no subject of a virtual host belongs to two streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.machine.catalog_tables import QueueInfo
from cluster.machine.replies import BAD_ARGUMENT, Refused
from cluster.machine.stream.errors import SUBJECTS_OVERLAP
from cluster.machine.stream.settings import overlap, subjects_of


def overlapping(config: Mapping[str, Any] | None, others: Iterable[QueueInfo]) -> Refused | None:
    """Why a stream cannot have these subjects beside the other streams."""
    own = subjects_of(config)
    for number, subject in enumerate(own):
        if any(overlap(subject, each) for each in own[:number]):
            return _overlaps(subject, "another one of the same stream")
    for info in others:
        for each in subjects_of(info.stream):
            for subject in own:
                if overlap(subject, each):
                    return _overlaps(subject, f"{each.decode()!r} of stream {info.name!r}")
    return None


def _overlaps(subject: bytes, what: str) -> Refused:
    reason = f"subject {subject.decode()!r} overlaps with {what}"
    return Refused(BAD_ARGUMENT, reason, SUBJECTS_OVERLAP)
