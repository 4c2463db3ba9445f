"""What there is to read: segments and snapshots in folders of nodes and in archives."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Protocol, Self

from cluster.log import format as fmt
from cluster.log.reader import Record, header_of

#: More than any file header takes.
HEAD_BYTES: Final = 4096
#: Heads of segments that are fetched at once; on a remote file system each takes a while.
FETCHES_MAX: Final = 16
LOOKED_FOR: Final = "looked for NODE-FOLDER/log/NUMBER.log and ARCHIVE/NODE/NUMBER-TIME.log"
_SNAPSHOT_NAME: Final = re.compile(r"(\d+)-(\d+)\.snap(\.corrupt)?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

Source = Literal["log", "archive"]


class BadInput(Exception):
    """What was given cannot be looked at; the text says why."""


class NothingToRead(BadInput):
    """The text says what was looked for, and where."""


class MixedClusters(BadInput):
    """Groups and indexes of different clusters have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, as far as its name and its header tell; times and boot are 0 and "" when the
    header is damaged.
    """

    file: str
    cluster: str
    node: str
    number: int
    created_ns: int
    boot: str
    bytes: int
    source: Source
    last: bool  # a crash may have torn its end
    copy: bool = False  # the same was given twice: this one is only checked


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot, as far as its name and place tell."""

    file: str
    cluster: str
    node: str
    group: int
    index: int
    bytes: int
    source: Source
    set_aside: bool  # by the node, as damaged
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    segments: list[Segment]  # in log order, by node
    snapshots: list[SnapshotFile]

    def of_one_cluster(self) -> Self:
        """Itself, or MixedClusters."""
        files = {each.cluster: each.file for each in reversed(self.segments) if each.boot}
        if len(files) > 1:
            told = ", ".join(f"{cluster} ({file})" for cluster, file in sorted(files.items()))
            raise MixedClusters(
                f"these are logs of several clusters, look at one at a time: {told}"
            )
        return self

    @property
    def local(self) -> bool:
        """Whether plain file access reaches all of it."""
        return not any(is_remote(each.file) for each in [*self.segments, *self.snapshots])


class Found(NamedTuple):
    """A file, wherever it lies."""

    path: str
    bytes: int


class Files(Protocol):
    """A file system, as far as finding logs takes one."""

    def find(self, path: str) -> Found | Iterable[Found] | None:
        """The file, or all files below the folder; None: there is no such thing."""
        ...

    def beside(self, path: str) -> Iterable[Found]:
        """The files in the folder of this one."""
        ...

    def head(self, path: str, count: int) -> bytes: ...


class LocalFiles:
    """Plain file access."""

    def find(self, path: str) -> Found | Iterable[Found] | None:
        path = os.path.abspath(path.removeprefix("file://").removeprefix("file:"))
        if os.path.isfile(path):
            return Found(path, os.path.getsize(path))
        return self._below(path) if os.path.isdir(path) else None

    def _below(self, folder: str) -> Iterator[Found]:
        for where, _, names in os.walk(folder):
            yield from self._sized(f"{where.rstrip('/')}/{name}" for name in names)

    def beside(self, path: str) -> Iterable[Found]:
        folder = os.path.dirname(path)
        return self._sized(f"{folder}/{name}" for name in os.listdir(folder))

    def head(self, path: str, count: int) -> bytes:
        with open(path, "rb") as file:
            return file.read(count)

    def _sized(self, paths: Iterable[str]) -> Iterator[Found]:
        for path in paths:
            try:
                yield Found(path, os.stat(path).st_size)
            except FileNotFoundError:  # the cleaner of a running node was quicker
                continue


def is_remote(path: str) -> bool:
    """Whether it is on a file system that only Spark can reach."""
    return _SCHEME.match(path) is not None and not path.startswith("file:")


def discover(paths: Sequence[str], files: Files | None = None) -> Inputs:
    """All segments and snapshots in these folders of nodes, archives, or folders of such; single
    segments too. NothingToRead: there is none.
    """
    files = files or LocalFiles()
    found, named = dict[str, Found](), set[str]()
    for path in paths:
        below = files.find(path)
        if below is None:
            raise NothingToRead(f"there is no {path}")
        named |= {below.path} if isinstance(below, Found) else set()
        below = [below] if isinstance(below, Found) else list(below)
        found |= {each.path: each for each in below}
    one_each = {_folder(path): path for path in named}
    siblings = {
        each.path: each
        for path in one_each.values()
        for each in files.beside(path)
        if each.path not in found
    }
    segments = [each for each in found.values() if each.path in named or _number(each) is not None]
    segments = [each for each in segments if _snapshot(each) is None]
    if not segments:
        raise NothingToRead(f"no log segments in {', '.join(paths)}: {LOOKED_FOR}")
    beside = [each for each in siblings.values() if _number(each) is not None]
    read = _segments([*segments, *beside], files)
    read = [segment for segment in read if segment.file not in siblings]
    return Inputs(
        _marked(sorted(read, key=_log_order)),
        _snapshots([each for each in found.values() if _snapshot(each)], read),
    )


def _name(found: Found) -> str:
    return found.path.rsplit("/", 1)[-1]


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def _number(found: Found) -> int | None:
    return fmt.segment_number(_name(found))


def _snapshot(found: Found) -> re.Match[str] | None:
    return _SNAPSHOT_NAME.fullmatch(_name(found))


def _source(found: Found) -> Source:
    return "archive" if "-" in _name(found) and _number(found) is not None else "log"


def _log_order(segment: Segment) -> tuple[str, str, int, int, str]:
    return segment.cluster, segment.node, segment.created_ns, segment.number, segment.file


def _segments(found: Sequence[Found], files: Files) -> list[Segment]:
    def head(each: Found) -> bytes | None:
        try:
            return files.head(each.path, HEAD_BYTES)
        except FileNotFoundError:  # the cleaner of a running node was quicker
            return None

    with ThreadPoolExecutor(FETCHES_MAX) as pool:
        heads = list(pool.map(head, found))
    by_folder = dict[str, list[tuple[Found, fmt.FileHeader | Record]]]()
    for each, data in zip(found, heads, strict=True):
        if data is not None:
            header = header_of(data, each.path, last=False)
            by_folder.setdefault(_folder(each.path), []).append((each, header))
    return [
        segment for folder, each in by_folder.items() for segment in _of_one_folder(folder, each)
    ]


def _of_one_folder(
    folder: str, found: Collection[tuple[Found, fmt.FileHeader | Record]]
) -> Iterator[Segment]:
    """All are of one node, so the others tell whose one with a damaged header is."""
    headers = [header for _, header in found if isinstance(header, fmt.FileHeader)]
    whose = Counter(header.identity for header in headers).most_common(1)
    unknown = fmt.Identity(folder.rsplit("/", 1)[-1], "")
    identity = whose[0][0] if whose else unknown
    # Empty segments behind the one that was written to do not protect it from a torn end.
    used = [
        _number(each) or 0
        for each, header in found
        if isinstance(header, Record) or header.size < each.bytes
    ]
    last = max(used, default=0)
    for each, header in found:
        source, number = _source(each), _number(each) or 0
        torn = source == "log" and number >= last
        if isinstance(header, Record):
            created = int(_name(each)[13:33]) if source == "archive" else 0
            yield Segment(
                each.path, identity.cluster, identity.node, number, created, "", each.bytes,
                source, torn,
            )  # fmt: skip
        else:
            yield Segment(
                each.path, header.identity.cluster, header.identity.node, header.number,
                header.wall_ns, header.boot.hex(), each.bytes, source, torn,
            )  # fmt: skip


def _marked(segments: Iterable[Segment]) -> list[Segment]:
    """Of equal ones the one in the log folder counts, else the first."""
    counts = dict[tuple[str, str, int, int], str]()
    segments = list(segments)
    for segment in sorted(segments, key=lambda each: (each.source != "log", each.file)):
        counts.setdefault(_log_order(segment)[:4], segment.file)
    return [
        segment
        if not segment.boot or counts[_log_order(segment)[:4]] == segment.file
        else replace(segment, copy=True)
        for segment in segments
    ]


def _snapshots(found: Iterable[Found], segments: Sequence[Segment]) -> list[SnapshotFile]:
    """They lie in a folder beside the segments of their node."""
    whose = {_folder(segment.file): segment for segment in segments}
    listed = list[SnapshotFile]()
    seen = set[tuple[str, str, int, int]]()
    for each in sorted(found, key=lambda each: (_owner(each, whose).source != "log", each.path)):
        match, owner = _snapshot(each), _owner(each, whose)
        assert match is not None
        key = (owner.cluster, owner.node, int(match[1]), int(match[2]))
        aside, copy = match[3] is not None, key in seen
        listed.append(SnapshotFile(each.path, *key, each.bytes, owner.source, aside, copy))
        seen.add(key)
    return listed


def _owner(found: Found, whose: dict[str, Segment]) -> Segment:
    folder = _folder(_folder(found.path))
    alone = Segment("", "", folder.rsplit("/", 1)[-1], 0, 0, "", 0, "log", False)
    return whose.get(folder, alone)
