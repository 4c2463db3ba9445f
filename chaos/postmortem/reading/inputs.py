"""What there is to read: segments and snapshots in folders of nodes and in archives."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal, NamedTuple, Protocol, Self

from cluster.log import format as fmt
from cluster.log.reader import Record, header_of

#: More than any file header takes.
HEAD_BYTES: Final = 4096
#: Heads of segments that are fetched at once; on a remote file system each takes a while.
FETCHES_MAX: Final = 16
LOOKED_FOR: Final = "looked for NODE-FOLDER/log/NUMBER.log and ARCHIVE/NODE/NUMBER-TIME.log"
_SNAPSHOT_NAME: Final = re.compile(r"(\d+)-(\d+)\.snap(\.corrupt)?")
#: What else a node keeps where its segments are (docs/backup.md).
_BESIDE: Final = frozenset(
    {
        "registered", "incarnation", "incarnation.new", "node.lock", "last-words", "local-token",
        "restored.jsonl", "given-up.jsonl", "backup.json", "node.log", "audit.log",
    }
)  # fmt: skip
#: Not whole yet, and nobody's: what it becomes has another name. Or what a segment has already.
_PASSED_OVER: Final = (".tmp", fmt.HEADS_SUFFIX)
_LIKE_A_LOG: Final = re.compile(r"(\d{12}(-\d{20})?\.log|\d+-\d+\.snap)\W.*")
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
    """A segment, as far as its name and its header tell. When the header is damaged the others
    beside it tell of which boot it is, and as far as its name does not, when it began; 0 and "":
    there are none.
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
    damaged: bool = False  # its header
    copy: bool = False  # the same was given twice: this one is only checked
    copies: tuple[str, ...] = ()  # where the same can be read when this one is gone
    changed_ns: int = 0  # when its content was last written, as its file system says


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
    changed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """A file beside segments of this node of which nothing was read. foreign: it is a segment, of
    another node.
    """

    file: str
    cluster: str
    node: str
    bytes: int
    foreign: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Inputs:
    segments: list[Segment]  # in log order, by node
    snapshots: list[SnapshotFile]
    unread: list[Unread] = field(default_factory=list[Unread])

    def of_one_cluster(self) -> Self:
        """Itself, or MixedClusters."""
        files = {each.cluster: each.file for each in reversed(self.segments) if not each.damaged}
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
    changed_ns: int = 0


class Files(Protocol):
    """A file system, as far as finding logs takes one. A file that is there and cannot be asked
    for its size has -1 bytes; OSError: it cannot be read.
    """

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
            return self._of(path)
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

    def _of(self, path: str) -> Found:
        about = os.stat(path)
        return Found(path, about.st_size, about.st_mtime_ns)

    def _sized(self, paths: Iterable[str]) -> Iterator[Found]:
        for path in paths:
            try:
                yield self._of(path)
            except FileNotFoundError:  # the cleaner of a running node was quicker
                if os.path.islink(path):
                    yield Found(path, -1)
            except OSError:
                yield Found(path, -1)


def is_remote(path: str) -> bool:
    """Whether it is on a file system that only Spark can reach."""
    return _SCHEME.match(path) is not None and not path.startswith("file:")


def discover(
    paths: Sequence[str],
    files: Files | None = None,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Inputs:
    """All segments and snapshots in these folders of nodes, archives, or folders of such; single
    segments too. NothingToRead: there is none.

    What an archive holds of other times than these is left out, as far as that leaves no hole: it
    may begin anywhere. What a log folder holds is needed to judge it.
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
    outside = _outside(segments, since_ns, until_ns)
    segments = [each for each in segments if each.path not in outside]
    read, unread = _segments([*segments, *beside], files)
    read = [segment for segment in read if segment.file not in siblings]
    unread = [each for each in unread if each.file not in siblings]
    return Inputs(
        _marked(sorted(read, key=_log_order)),
        _snapshots([each for each in found.values() if _snapshot(each) and each.bytes >= 0], read),
        sorted([*unread, *_unknown(found.values(), read)], key=lambda each: each.file),
    )


def _unknown(found: Iterable[Found], segments: Iterable[Segment]) -> Iterator[Unread]:
    """Files of which nobody knows what they are, where only logs should be, and whatever is called
    nearly like a log. Whoever packed a segment should not believe that it was looked at.
    """
    whose = {_folder(segment.file): segment for segment in segments}
    for each in found:
        name, folder = _name(each), _folder(each.path)
        owner = whose.get(folder)
        if owner is None and folder.endswith("/snapshots"):
            owner = whose.get(_folder(folder))
        packed = _LIKE_A_LOG.fullmatch(name) is not None
        if owner is None and not packed:
            continue
        known = _number(each) is not None or _snapshot(each) is not None or name in _BESIDE
        if name.endswith(_PASSED_OVER) or (
            known and (each.bytes >= 0 or _number(each) is not None)
        ):
            continue
        cluster, node = ("", "") if owner is None else (owner.cluster, owner.node)
        if known:
            reason = "it cannot be read"
        elif packed:
            reason = "only plain files are read: unpack it"
        else:
            reason = "nothing of a log is called so"
        yield Unread(each.path, cluster, node, max(each.bytes, 0), foreign=False, reason=reason)


def _outside(found: Iterable[Found], since_ns: int | None, until_ns: int | None) -> set[str]:
    """Segments of archives that another one followed before that time, or that were begun later
    with all behind them. Their names alone tell: they may be thousands, and far away.
    """
    nodes = dict[str, list[_Begun]]()
    for each in found:
        if _source(each) == "archive":
            begun = _Begun(_number(each) or 0, _archived_ns(each), each.path)
            nodes.setdefault(_folder(each.path).rsplit("/", 1)[-1], []).append(begun)
    outside = set[str]()
    for begun in nodes.values():
        ordered = _by_disk(begun)
        first, after = 0, len(ordered)
        while since_ns is not None and first + 1 < after:
            if ordered[first + 1].created_ns >= since_ns:
                break
            first += 1
        # The first one is kept: it tells whose folder it is.
        while until_ns is not None and after > first + 1:
            if ordered[after - 1].created_ns <= until_ns:
                break
            after -= 1
        outside |= {each.file for each in [*ordered[:first], *ordered[after:]]}
    return outside


class _Begun(NamedTuple):
    """A segment, as far as a name in an archive tells."""

    number: int
    created_ns: int
    file: str


def _by_disk(segments: Iterable[_Begun]) -> list[_Begun]:
    """In log order, as far as it matters here: on one disk numbers tell it, whatever the clock did,
    and one that comes again is of another disk.
    """
    disks = list[dict[int, list[_Begun]]]([{}])
    for each in sorted(segments, key=lambda each: (each.created_ns, each.number, each.file)):
        same = disks[-1].get(each.number)
        if same is not None and same[0].created_ns != each.created_ns:
            disks.append({})
        disks[-1].setdefault(each.number, []).append(each)
    return [each for disk in disks for number in sorted(disk) for each in disk[number]]


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


def _archived_ns(found: Found) -> int:
    """When it was begun, as its name in an archive says."""
    return int(_name(found)[13:33])


def _log_order(segment: Segment) -> tuple[str, str, int, int, str]:
    return segment.cluster, segment.node, segment.created_ns, segment.number, segment.file


def _segments(found: Sequence[Found], files: Files) -> tuple[list[Segment], list[Unread]]:
    def head(each: Found) -> bytes | OSError | None:
        try:
            return files.head(each.path, HEAD_BYTES)
        except FileNotFoundError as error:  # the cleaner of a running node was quicker
            return error if each.bytes < 0 else None
        except OSError as error:
            return error

    with ThreadPoolExecutor(FETCHES_MAX) as pool:
        heads = list(pool.map(head, found))
    by_folder = dict[str, list[tuple[Found, fmt.FileHeader | Record]]]()
    unread = list[Unread]()
    for each, data in zip(found, heads, strict=True):
        if isinstance(data, OSError):
            reason = f"it cannot be read: {data.strerror or data}"
            unread.append(Unread(each.path, "", "", max(each.bytes, 0), False, reason))
        elif data is not None:
            header = header_of(data, each.path, last=False)
            by_folder.setdefault(_folder(each.path), []).append((each, header))
    folders = list[list[Segment]]()
    for folder, each in by_folder.items():
        own, foreign = _told_apart(folder, each)
        folders.append(list(_of_one_folder(folder, own)))
        unread += foreign
    return _recognised(folders), unread


def _told_apart(
    folder: str, found: Collection[tuple[Found, fmt.FileHeader | Record]]
) -> tuple[list[tuple[Found, fmt.FileHeader | Record]], list[Unread]]:
    """What is of the node that most of the folder is of, and what is of another one: it got there
    by mistake, and where its own folder is given too it would be taken for a part of that.
    """
    headers = [header for _, header in found if isinstance(header, fmt.FileHeader)]
    if not headers:
        return list(found), []
    counts = Counter(header.identity for header in headers)
    called = {folder.rsplit("/", 1)[-1], _folder(folder).rsplit("/", 1)[-1]}
    owner = max(counts, key=lambda each: (counts[each], each.node in called))
    own, foreign = list[tuple[Found, fmt.FileHeader | Record]](), list[Unread]()
    for each, header in found:
        if isinstance(header, Record) or header.identity == owner:
            own.append((each, header))
        else:
            its = header.identity
            told = f"it is segment {header.number} of node {its.node} of cluster {its.cluster}"
            foreign.append(Unread(each.path, owner.cluster, owner.node, each.bytes, True, told))
    return own, foreign


def _of_one_folder(
    folder: str, found: Collection[tuple[Found, fmt.FileHeader | Record]]
) -> Iterator[Segment]:
    """All are of one node, so the others tell whose one with a damaged header is."""
    headers = [header for _, header in found if isinstance(header, fmt.FileHeader)]
    whose = Counter(header.identity for header in headers).most_common(1)
    unknown = fmt.LogIdentity(folder.rsplit("/", 1)[-1], "")
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
            created = _archived_ns(each) if source == "archive" else 0
            yield Segment(
                each.path, identity.cluster, identity.node, number, created, "", each.bytes,
                source, torn, damaged=True, changed_ns=each.changed_ns,
            )  # fmt: skip
        else:
            yield Segment(
                each.path, header.identity.cluster, header.identity.node, header.number,
                header.wall_ns, header.boot.hex(), each.bytes, source, torn,
                changed_ns=each.changed_ns,
            )  # fmt: skip


def _recognised(folders: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Those with a damaged header are of the boot of an equal one elsewhere, else of one that was
    next to them.
    """
    found, of_number = list[Segment](), dict[tuple[str, int], list[Segment]]()
    sound = [[each for each in folder if not each.damaged] for folder in folders]
    for each in chain.from_iterable(sound):
        of_number.setdefault((each.node, each.number), []).append(each)
    for folder, beside in zip(folders, sound, strict=True):
        for each in folder:
            others = of_number.get((each.node, each.number), ())
            found.append(_as_others_say(each, others, beside) if each.damaged else each)
    return found


def _as_others_say(
    damaged: Segment, others: Iterable[Segment], beside: Iterable[Segment]
) -> Segment:
    created_ns = damaged.created_ns
    for each in others:
        if created_ns == each.created_ns or (not created_ns and damaged.bytes == each.bytes):
            cluster, created_ns = each.cluster, each.created_ns
            return replace(damaged, cluster=cluster, created_ns=created_ns, boot=each.boot)

    def distance(each: Segment) -> tuple[int, int]:
        if created_ns:
            return abs(each.created_ns - created_ns), each.number
        return abs(each.number - damaged.number), each.number

    near = min(beside, key=distance, default=None)
    if near is None:
        return damaged
    return replace(damaged, created_ns=created_ns or near.created_ns, boot=near.boot)


def _marked(segments: Iterable[Segment]) -> list[Segment]:
    """Of equal ones one that can be read counts, of these the longest: the others may have been
    copied before it was whole.
    """
    equal = dict[tuple[str | int, ...], list[Segment]]()
    segments = list(segments)
    for segment in sorted(
        segments, key=lambda each: (each.damaged, -each.bytes, each.source != "log", each.file)
    ):
        key = _log_order(segment)
        equal.setdefault(key[:-1] if segment.boot else key, []).append(segment)
    copies = {one.file: tuple(each.file for each in others) for one, *others in equal.values()}
    return [
        replace(segment, copies=copies[segment.file])
        if segment.file in copies
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
        listed.append(
            SnapshotFile(each.path, *key, each.bytes, owner.source, aside, copy, each.changed_ns)
        )
        if not aside:
            seen.add(key)
    return listed


def _owner(found: Found, whose: dict[str, Segment]) -> Segment:
    folder = _folder(_folder(found.path))
    alone = Segment("", "", folder.rsplit("/", 1)[-1], 0, 0, "", 0, "log", False)
    return whose.get(folder, alone)
