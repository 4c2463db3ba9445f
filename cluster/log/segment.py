"""One file of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.seams import File


@dataclass(eq=False, slots=True)
class Segment:
    """One file of the log, and what is known of its records."""

    number: int
    path: str
    file: File
    salt: int
    start: int  # of the first record
    size: int  # bytes written
    synced: int
    created_ns: int
    sealed: bool = False  # no longer written to
    unverified: int = 0  # where begins what was not read at the start; 0: all of it was
    archived: bool = False
    last_wall_ns: int = 0  # of its newest record, once sealed
    live_bytes: int = 0  # of records that some journal still points at
    groups: set[int] = field(default_factory=set[int])  # with any record in it
    resets: set[int] = field(default_factory=set[int])  # with a record that voids earlier ones
    #: Of its records, until it is sealed: see `cluster.log.heads`.
    heads: bytearray = field(default_factory=bytearray)
    tags: bytearray = field(default_factory=bytearray)
