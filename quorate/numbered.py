"""Bodies that carry a run and a number, and the account of what came out of a queue of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: `#<run, 8 hex digits>-<number, 12 digits> `: readable, and found again at fixed places.
HEAD_BYTES = 23


def new_run() -> str:
    """Names one series of numbers."""
    return secrets.token_hex(4)


def bodies(run: str, first: int, count: int, size: int) -> Iterator[bytes]:
    """Bodies of `size` bytes (at least HEAD_BYTES) numbered from `first`."""
    head = f"#{run}-".encode()
    pad = b"." * (size - HEAD_BYTES)
    for number in range(first, first + count):
        yield b"%b%012d %b" % (head, number, pad)


def number_of(body: bytes) -> tuple[bytes, int] | None:
    """Run and number of a body made by `bodies`; None for any other."""
    if len(body) < HEAD_BYTES or body[:1] != b"#" or body[9:10] != b"-":
        return None
    digits = body[10:22]
    return (body[1:9], int(digits)) if digits.isdigit() else None


@dataclass(slots=True)
class _Run:
    seen: bytearray = field(default_factory=bytearray)  # by number: 1 when it came
    distinct: int = 0


class SequenceCheck:
    """Which numbers came: how many are absent below the highest, how many came twice or late."""

    def __init__(self) -> None:
        self.received = 0
        self.foreign = 0  # without a number
        self.duplicates = 0
        self.unflagged_duplicates = 0  # came again, and not marked as redelivered
        self.out_of_order = 0
        self._runs: dict[bytes, _Run] = {}

    @property
    def numbered(self) -> bool:
        return bool(self._runs)

    @property
    def distinct(self) -> int:
        return sum(run.distinct for run in self._runs.values())

    @property
    def missing(self) -> int:
        """Numbers below the highest of their run that did not come."""
        return sum(len(run.seen) - run.distinct for run in self._runs.values())

    def seen(self, run: str) -> bytes:
        """By number: 1 when it came."""
        found = self._runs.get(run.encode())
        return bytes(found.seen) if found is not None else b""

    def add(self, bodies: Iterable[bytes], *, redelivered: bool = False) -> None:
        """Count these. `redelivered`: all of them were flagged so."""
        for body in bodies:
            self.received += 1
            found = number_of(body)
            if found is None:
                self.foreign += 1
                continue
            run = self._runs.get(found[0])
            if run is None:
                run = self._runs[found[0]] = _Run()
            number = found[1]
            if number == len(run.seen):
                run.seen.append(1)
                run.distinct += 1
            else:
                self._unusual(run, number, redelivered)

    def _unusual(self, run: _Run, number: int, redelivered: bool) -> None:
        if number > len(run.seen):
            run.seen.extend(bytes(number - len(run.seen)))
            run.seen.append(1)
            run.distinct += 1
        elif run.seen[number]:
            self.duplicates += 1
            self.unflagged_duplicates += not redelivered
        else:
            run.seen[number] = 1
            run.distinct += 1
            self.out_of_order += 1
