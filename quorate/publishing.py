"""What a publish call is made of, and what becomes of it: properties in, one outcome out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate import wire
from quorate.batches import Confirmed, Meta, Row
from quorate.errors import OutcomeUnknown, QuorateError, Refused, Unreachable


def attrs_of(
    *,
    priority: int | None = None,
    ttl_ms: int | None = None,
    deliver_at_ms: int | None = None,
    dedup_id: str | None = None,
) -> dict[int, Any] | None:
    """The attributes that the broker itself must know, as they travel; None when there are none."""
    attrs: dict[int, Any] = {}
    if priority is not None:
        attrs[wire.ATTR_PRIORITY] = priority
    if ttl_ms is not None:
        attrs[wire.ATTR_TTL_MS] = ttl_ms
    if deliver_at_ms is not None:
        attrs[wire.ATTR_DELIVER_AT_MS] = deliver_at_ms
    if dedup_id is not None:
        attrs[wire.ATTR_DEDUP_ID] = dedup_id
    return attrs or None


def meta_of(
    meta: Meta | None, key: str | None, headers: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """What consumers see beside the body; None when there is nothing."""
    merged: dict[str, Any] = dict(meta) if meta else {}
    if key is not None:
        merged["key"] = key
    if headers is not None:
        merged["headers"] = dict(headers)
    return merged or None


class Run:
    """The outcome of one `publish_many`, put together from its frames."""

    def __init__(self, queue: str) -> None:
        self.error: QuorateError | None = None
        self._queue = queue
        self._count = self._stored = self._duplicates = 0
        self._refused: list[tuple[int, int]] = []
        self._unknown: list[tuple[int, int]] = []

    def confirmed(self, row: Row, first: int, count: int) -> None:
        over = 0
        for low, high in row.refused:
            self._refused.append((first + low, first + high))
            over += high - low + 1
        self._count += count - over
        self._stored += row.stored
        self._duplicates += row.duplicates

    def failed(self, error: QuorateError, first: int, count: int) -> None:
        if self.error is None:
            self.error = error
        ranges = self._refused if isinstance(error, Refused) else self._unknown
        ranges.append((first, first + count - 1))

    def result(self) -> Confirmed:
        if self._unknown:
            raise OutcomeUnknown(str(self.error), ranges=self._unknown, confirmed=self._count)
        if isinstance(self.error, Unreachable):
            raise Unreachable(self.error.reason, ranges=self._refused, confirmed=self._count)
        if isinstance(self.error, Refused):
            raise Refused(
                self.error.code,
                self.error.reason,
                self.error.detail,
                ranges=self._refused,
                confirmed=self._count,
            )
        if self._refused:
            raise Refused(
                "queue_full",
                f"queue {self._queue!r} is at its limit: consume, then publish the rest",
                ranges=self._refused,
                confirmed=self._count,
            )
        return Confirmed(self._count, self._stored, self._duplicates)


def metas_of(meta: Meta | Sequence[Meta | None] | None, first: int, count: int) -> Any:
    if meta is None or isinstance(meta, Mapping):
        return meta
    part = list(meta[first : first + count])
    if len(part) != count:
        raise ValueError(f"meta is a list of {len(meta)}, and there are more bodies")
    return part


def attrs_for(
    shared: dict[int, Any] | None, dedup_ids: Sequence[str] | None, first: int, count: int
) -> Any:
    if dedup_ids is None:
        return shared
    part = dedup_ids[first : first + count]
    if len(part) != count:
        raise ValueError(f"dedup_ids has {len(dedup_ids)} entries, and there are more bodies")
    return [{**(shared or {}), wire.ATTR_DEDUP_ID: dedup_id} for dedup_id in part]
