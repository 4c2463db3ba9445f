"""What `quorate log dump` prints: every segment and record of a log folder, and whether all of it
is sound.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from cluster.log import reader
from cluster.log.reader import CORRUPT, TORN, Record
from cluster.seams import Disk

EXIT_OK: Final = 0
EXIT_NO_LOG: Final = 2
EXIT_CORRUPT: Final = 3
#: Longest text of one record's decoded commands.
DETAIL_CHARS_MAX: Final = 400


def dump(
    directory: str,
    *,
    out: TextIO,
    group: int | None = None,
    first: int | None = None,
    last: int | None = None,
    as_json: bool = False,
    kinds: Collection[str] | None = None,
    disk: Disk | None = None,
) -> int:
    """Print; returns the exit code. Damage is printed whatever the filters say."""
    disk = disk or reader.READ_ONLY
    printer = _Printer(out, as_json=as_json)
    if not disk.exists(directory) or not reader.segments(directory, disk=disk):
        printer.line({"type": "error", "reason": f"no log segments in {directory}"})
        return EXIT_NO_LOG
    for file in reader.segments(directory, disk=disk):
        header = reader.read_header(file.path, disk=disk)
        if not isinstance(header, Record):
            printer.line(
                {
                    "type": "segment",
                    "file": reader.name_of(file.path),
                    "format": header.version,
                    "node": header.identity.node,
                    "cluster": header.identity.cluster,
                    "boot": header.boot.hex(),
                    "created": _time(header.wall_ns),
                }
            )
    counts = Counter[str]()
    payload_bytes = 0
    for record in reader.read(directory, disk=disk):
        counts[record.kind] += 1
        damage = record.kind in (CORRUPT, TORN)
        if not damage:
            payload_bytes += len(record.payload)
        if damage or _wanted(record, group, first, last, kinds):
            printer.line(_row(record))
    corrupt = counts[CORRUPT]
    printer.line(
        {
            "type": "summary",
            "records": counts.total() - corrupt - counts[TORN],
            "payload_bytes": payload_bytes,
            "kinds": dict(sorted(counts.items())),
            "verdict": "corrupt"
            if corrupt
            else "sound, with a torn end"
            if counts[TORN]
            else "sound",
        }
    )
    return EXIT_CORRUPT if corrupt else EXIT_OK


def _wanted(
    record: Record,
    group: int | None,
    first: int | None,
    last: int | None,
    kinds: Collection[str] | None,
) -> bool:
    return (
        (group is None or record.group == group)
        and (first is None or record.index >= first)
        and (last is None or 0 < record.index <= last)
        and (not kinds or record.kind in kinds)
    )


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": record.kind,
        "file": reader.name_of(record.file),
        "offset": record.offset,
    }
    if record.kind in (CORRUPT, TORN):
        return row | {"reason": record.payload.decode()}
    row |= {
        "group": record.group,
        "index": record.index,
        "term": record.term,
        "time": _time(record.wall_ns),
    }
    command = record.command
    if command is None:
        detail = reader.detail(record)
        return row if detail is None else row | {"detail": _plain(detail)}
    digest = record.hash
    row |= {"hash": digest.hex() if digest else None, "bytes": len(command)}
    return row | {"command": _command(command)}


def _command(command: bytes) -> str:
    """Readable form of a PySyncObj command; regular ones hold an encoded entry of ours."""
    kind = {0: "regular", 1: "no-op", 2: "membership"}.get(command[0] if command else -1, "unknown")
    if kind != "regular":
        return kind
    try:
        from cluster.codec.entries import decode_entry

        entry = decode_entry(command[1:])
    except Exception as error:  # noqa: BLE001  # whatever the bytes are, the dump goes on
        return f"undecodable ({type(error).__name__})"
    return _cut(f"now_ms={entry.now_ms} " + " ".join(map(repr, entry.commands)))


def _cut(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else text[:DETAIL_CHARS_MAX] + "..."


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [_plain(item) for item in items]
    return value if isinstance(value, int | float | str | bool | None) else _cut(repr(value))


def _time(wall_ns: int) -> str:
    at = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{wall_ns % 1_000_000_000:09d}Z"


class _Printer:
    """One line an item, as text or as JSON."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json

    def line(self, row: dict[str, Any]) -> None:
        if self._as_json:
            self._out.write(json.dumps(row) + "\n")
            return
        words = [f"{row['type']:<15}"]
        if "offset" in row:
            words.append(f"{row['file']}:{row['offset']}")
        words += [f"{k}={v}" for k, v in row.items() if k not in ("type", "offset", "file")]
        if "offset" not in row and "file" in row:
            words.insert(1, row["file"])
        self._out.write(" ".join(words) + "\n")
