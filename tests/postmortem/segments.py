"""Segments made by hand, record for record."""

from __future__ import annotations

from pathlib import Path
from random import Random

import cbor2

from cluster.log import format as fmt

START_NS = 1_767_600_000_000_000_000
MS_NS = 1_000_000
BOOT = bytes(range(16))


class MadeSegment:
    """A file that grows record by record; a millisecond passes with each."""

    def __init__(
        self,
        path: Path,
        number: int = 1,
        *,
        node: str = "n1",
        cluster: str = "made",
        created_ns: int = START_NS,
        boot: bytes = BOOT,
    ) -> None:
        self.path = path
        self.number = number
        self.now_ns = created_ns
        identity = fmt.LogIdentity(node, cluster)
        head = fmt.encode_file_header(number, created_ns, 0, boot, identity)
        self._salt = fmt.decode_file_header(head, "").salt
        self.size = len(head)
        self.offsets: list[int] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(head)

    def record(self, kind: int, group: int, index: int, term: int, payload: bytes = b"") -> int:
        """Its offset."""
        self.now_ns += MS_NS
        times = self.now_ns, self.now_ns - START_NS
        data = fmt.encode_record(self._salt, kind, group, index, term, *times, payload)
        with self.path.open("ab") as file:
            file.write(data)
        self.offsets.append(self.size)
        self.size += len(data)
        return self.offsets[-1]

    def entry(self, group: int, index: int, term: int, command: bytes = b"\x01") -> int:
        return self.record(
            fmt.KIND_ENTRY, group, index, term, fmt.chain(b"", term, command) + command
        )

    def synced(self, number: int | None = None, offset: int | None = None) -> int:
        """Everything before it, if it does not say otherwise."""
        told = fmt.encode_synced(number or self.number, self.size if offset is None else offset)
        return self.record(fmt.KIND_SYNCED, 0, 0, 0, told)


def any_records(segment: MadeSegment, random: Random, count: int) -> None:
    """Of every kind there is, known and not."""
    for at in range(count):
        kind = random.choice([*fmt.KIND_NAMES, fmt.KIND_ENTRY, fmt.KIND_ENTRY, 77])
        group, index, term = random.randrange(4), random.randrange(2, 50), 1 + at // 40
        if kind in fmt.BODY_KINDS:
            digest = random.choice([fmt.NO_HASH, random.randbytes(fmt.HASH_BYTES)])
            body = digest + random.randbytes(random.randrange(300))
            payload = body if random.random() < 0.95 else body[:7]
        elif kind == fmt.KIND_SYNCED:
            payload = fmt.encode_synced(random.randrange(1, 3), random.randrange(1 << 14))
        elif kind == fmt.KIND_DIGEST:
            payload = random.randbytes(16)
        else:
            told = [{"role": "leader"}, [1, b"\x00\xff", "n1"], {b"k": 1}, None, "ä"]
            payload = random.choice([b"", cbor2.dumps(random.choice(told)), random.randbytes(5)])
        segment.record(kind, group, index, term, payload)
