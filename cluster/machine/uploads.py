"""Parts of large bodies that have come, of which no message was made yet.

The bytes are in the log; here is where. An upload ends when an `Enqueue` takes it, when nothing was
heard of it for long, by the time of the log, or when there are too many. When they have too many
bytes only the one begun first goes on, so that they never all wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cluster.machine.commands import BodyPart, Enqueue
from cluster.machine.context import ApplyContext
from cluster.machine.replies import (
    BAD_ARGUMENT,
    OUT_OF_SEQUENCE,
    OVERLOADED,
    PARTS_MISSING,
    PartKept,
    Refused,
    Reply,
)

UPLOAD_IDLE_MS = 300_000
UPLOADS_MAX = 1_024  # per queue; over it the one idle longest is forgotten
UPLOAD_NAME_CHARS_MAX = 256
UPLOAD_BYTES_MAX = 512 << 20
UPLOADS_BYTES_MAX = 1 << 30  # of a queue; the upload begun first may pass it
PARTS_MAX = 1 << 16

#: Entry, offset among its bodies, size.
Part = tuple[int, int, int]
#: What is published at which place of a batch: the upload, and its parts.
Large = dict[int, tuple[str, list[Part]]]
NONE_LARGE: Large = {}


@dataclass(eq=False, slots=True)
class Upload:
    seen_ms: int
    parts: list[Part] = field(default_factory=list[Part])
    bytes: int = 0


class Uploads:
    """Of one queue, in the order in which they were last heard of."""

    __slots__ = ("_by_name", "bytes")

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Upload] = OrderedDict()
        self.bytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def due_ms(self) -> int | None:
        """When the one idle longest is forgotten."""
        first = next(iter(self._by_name.values()), None)
        return None if first is None else first.seen_ms + UPLOAD_IDLE_MS

    def keep(self, context: ApplyContext, command: BodyPart) -> Reply:
        """The next part, or one that came already."""
        name, number, size = command.upload, command.number, len(command.data)
        if not 1 <= len(name) <= UPLOAD_NAME_CHARS_MAX or not size or number < 0:
            return Refused(
                BAD_ARGUMENT,
                f"an upload has a name of 1 to {UPLOAD_NAME_CHARS_MAX} characters, its parts are"
                " numbered from 0 on, and none is empty",
            )
        upload = self._by_name.get(name)
        count = 0 if upload is None else len(upload.parts)
        if number > count:
            return Refused(
                OUT_OF_SEQUENCE,
                f"{count} parts of upload {name} are here: go on with part {count}",
                count,
            )
        held = 0 if upload is None else upload.bytes
        if number == count and (count == PARTS_MAX or held + size > UPLOAD_BYTES_MAX):
            return Refused(
                BAD_ARGUMENT,
                f"an upload has at most {PARTS_MAX} parts and {UPLOAD_BYTES_MAX} bytes",
            )
        if number == count and self.bytes + size > UPLOADS_BYTES_MAX and not self._first(upload):
            return Refused(
                OVERLOADED,
                f"unfinished uploads to this queue have {self.bytes} bytes, {UPLOADS_BYTES_MAX} are"
                " allowed: try again when some are done",
            )
        if upload is None:
            upload = self._by_name[name] = Upload(context.now_ms)
            if len(self._by_name) > UPLOADS_MAX:
                self._forget_idlest()
        if number == count:
            upload.parts.append((context.index, context.body_offset, size))
            upload.bytes += size
            self.bytes += size
        index, offset, known_size = upload.parts[number]
        if known_size != size:
            return Refused(BAD_ARGUMENT, f"part {number} of upload {name} had {known_size} bytes")
        upload.seen_ms = context.now_ms
        self._by_name.move_to_end(name)
        return PartKept(index, offset)

    def large_of(self, command: Enqueue, skip: int, sizes: list[int]) -> Large | Refused:
        """The bodies of a batch that are in parts, or why it cannot be stored; the size of the
        parts is added to their `sizes`. Of those before place `skip` the parts may be gone.
        """
        found = _large_of(command)
        if isinstance(found, str):
            return Refused(BAD_ARGUMENT, found)
        for place, (name, parts) in found.items():
            if place >= skip and not self._has(name, parts):
                return Refused(
                    PARTS_MISSING,
                    f"not all parts of upload {name} are here: publish it again from part 0 on",
                )
        for place, (_, parts) in found.items():
            sizes[place] += sum(size for _, _, size in parts)
        return found

    def _has(self, name: str, parts: Sequence[Part]) -> bool:
        upload = self._by_name.get(name)
        return upload is not None and upload.parts == parts

    def end(self, name: str) -> None:
        """Its parts are a message's now, or nobody's."""
        upload = self._by_name.pop(name, None)
        if upload is not None:
            self.bytes -= upload.bytes

    def forget_idle(self, now_ms: int) -> None:
        while (due_ms := self.due_ms) is not None and due_ms <= now_ms:
            self._forget_idlest()

    def _forget_idlest(self) -> None:
        _, upload = self._by_name.popitem(last=False)
        self.bytes -= upload.bytes

    def _first(self, upload: Upload | None) -> bool:
        """Was it begun before all others that are here?"""
        return upload is not None and all(
            upload.parts[0] <= each.parts[0] for each in self._by_name.values()
        )

    def live_indexes(self) -> list[tuple[int, int]]:
        return [(index, index) for upload in self._by_name.values() for index, _, _ in upload.parts]

    def dump(self) -> list[Any]:
        return [
            [name, upload.seen_ms, [list(part) for part in upload.parts]]
            for name, upload in self._by_name.items()
        ]

    def load(self, rows: Sequence[Any]) -> None:
        for name, seen_ms, parts in rows:
            upload = self._by_name[name] = Upload(seen_ms)
            upload.parts = [(index, offset, size) for index, offset, size in parts]
            upload.bytes = sum(size for _, _, size in upload.parts)
            self.bytes += upload.bytes

    def invariants(self) -> None:
        seen_ms = 0
        for upload in self._by_name.values():
            assert upload.parts, "an upload without a part"
            assert upload.bytes == sum(size for _, _, size in upload.parts), "bytes of an upload"
            assert upload.seen_ms >= seen_ms, "uploads are not in the order last heard of"
            seen_ms = upload.seen_ms
        assert self.bytes == sum(upload.bytes for upload in self._by_name.values()), "bytes of all"


def _large_of(command: Enqueue) -> Large | str:
    """Which bodies of the batch are in parts, or what is wrong with what it says."""
    large: Any = command.large
    if not isinstance(large, dict):
        return "`large` is a map"
    found: Large = {}
    for place, packed in cast("dict[Any, Any]", large).items():
        try:
            name, rows = packed
            parts = [(index, offset, size) for index, offset, size in rows]
        except (TypeError, ValueError):
            return "a large body is an upload and its parts"
        whole = all(type(number) is int for part in parts for number in part)
        if type(place) is not int or not 0 <= place < len(command.bodies):
            return f"the batch has no body {place!r}"
        if type(name) is not str or not parts or not whole:
            return "a large body is an upload and its parts"
        found[place] = name, parts
    if len({name for name, _ in found.values()}) < len(found):
        return "an upload is one message"
    return found
