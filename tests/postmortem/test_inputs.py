"""What there is to read in folders of nodes and archives."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from chaos.postmortem.reading.inputs import (
    _BESIDE,
    LocalFiles,
    MixedClusters,
    NothingToRead,
    discover,
)
from cluster.log import format as fmt
from tests.postmortem.segments import BOOT, START_NS, MadeSegment

BACKUP = Path(__file__).parents[2] / "docs" / "backup.md"


def _segment(folder: Path, number: int, *, node: str = "n1", records: int = 1) -> MadeSegment:
    made = MadeSegment(
        folder / fmt.segment_name(number), number, node=node, created_ns=START_NS + number
    )
    for index in range(records):
        made.entry(1, 2 + index, 1)
    return made


def _archived(made: MadeSegment, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = fmt.archive_name(made.number, START_NS + made.number)
    return Path(shutil.copy(made.path, folder / name))


def test_folders_of_nodes_and_an_archive_are_found_in_log_order(tmp_path: Path) -> None:
    for node in ("n2", "n1"):
        log = tmp_path / "data" / node / "log"
        first = _segment(log, 1, node=node)
        _segment(log, 2, node=node)
        _segment(log, 3, node=node, records=0)  # a start that came to nothing
        _archived(first, tmp_path / "archive" / node)
        (log / "snapshots").mkdir()
        for name in ("1-20.snap", "1-30.snap", "2-7.snap.corrupt", "1-40.snap.tmp"):
            (log / "snapshots" / name).write_bytes(b"x")
        (log / "notes.txt").write_text("no segment")
    gone = _segment(tmp_path / "was" / "n1" / "log", 7)
    _archived(gone, tmp_path / "archive" / "n1")
    (tmp_path / "archive" / "n1" / "snapshots").mkdir()
    (tmp_path / "archive" / "n1" / "snapshots" / "1-20.snap").write_bytes(b"x")

    inputs = discover([f"{tmp_path}/data", f"file:{tmp_path}/archive", f"{tmp_path}/data/n1"])

    of_n1 = [segment for segment in inputs.segments if segment.node == "n1"]
    assert [segment.number for segment in of_n1] == [1, 1, 2, 3, 7]
    assert [segment.source for segment in of_n1] == ["archive", "log", "log", "log", "archive"]
    assert [segment.copy for segment in of_n1] == [True, False, False, False, False]
    # A crash may have torn the end of the second one: the one behind it is empty.
    assert [segment.last for segment in of_n1] == [False, False, True, True, False]
    assert [segment.node for segment in inputs.segments] == ["n1"] * 5 + ["n2"] * 4
    assert of_n1[1].bytes == (tmp_path / "data/n1/log/000000000001.log").stat().st_size
    found = [
        (s.node, s.group, s.index, s.source, s.set_aside, s.copy)
        for s in inputs.snapshots
        if s.node == "n1"
    ]
    assert sorted(found) == [
        ("n1", 1, 20, "archive", False, True),
        ("n1", 1, 20, "log", False, False),
        ("n1", 1, 30, "log", False, False),
        ("n1", 2, 7, "log", True, False),
    ]
    assert inputs.local


def test_one_segment_alone_knows_by_its_folder_whether_its_end_may_be_torn(tmp_path: Path) -> None:
    paths = [str(_segment(tmp_path / "log", number).path) for number in (1, 2, 3)]

    assert [segment.last for segment in discover(paths[1:2]).segments] == [False]
    assert [segment.last for segment in discover(paths[1:]).segments] == [False, True]


def _damage(path: Path) -> str:
    path.write_bytes(b"\0" * 4 + path.read_bytes()[4:])
    return str(path)


def test_whose_a_segment_with_a_damaged_header_is_is_told_by_the_others(tmp_path: Path) -> None:
    first = _damage(_segment(tmp_path / "log", 1).path)
    made = [_segment(tmp_path / "made", number) for number in (1, 2, 3)]
    archived = [_archived(each, tmp_path / "archive" / "n1") for each in made[1:]]
    second = _damage(archived[0])
    _segment(tmp_path / "log", 3)

    paths = [f"{tmp_path}/log", f"{tmp_path}/archive"]
    found = {segment.file: segment for segment in discover(paths).segments}

    for file, number in ((first, 1), (second, 2)):
        told = found[file]
        assert (told.node, told.cluster, told.number) == ("n1", "made", number)
        assert (told.boot, told.damaged, told.copy) == (BOOT.hex(), True, False)
    assert found[second].created_ns == START_NS + 2


@pytest.mark.parametrize("archived", [True, False])
def test_one_with_a_damaged_header_is_a_copy_of_the_one_that_can_be_read(
    tmp_path: Path, archived: bool
) -> None:
    made = [_segment(tmp_path / "log", number) for number in (1, 2, 3)]
    archive = [_archived(each, tmp_path / "archive" / "n1") for each in made]
    damaged, sound = archive[1], made[1].path
    if not archived:
        damaged, sound = sound, damaged
    _damage(damaged)

    found = {each.file: each for each in discover([str(tmp_path)]).segments}

    assert (found[str(damaged)].copy, found[str(sound)].copy) == (True, False)
    assert found[str(sound)].copies == (str(damaged),)
    assert sum(not each.copy for each in found.values()) == 3


def test_of_equal_segments_the_longest_counts(tmp_path: Path) -> None:
    """A folder that was copied while the node was running has less in its last one."""
    log = tmp_path / "n1" / "log"
    made = [_segment(log, number) for number in (1, 2)]
    shutil.copytree(log, tmp_path / "a-copy" / "log")
    made[1].entry(1, 9, 1)

    segments = discover([str(tmp_path)]).segments

    counted = [each.file for each in segments if not each.copy]
    assert counted == [str(tmp_path / "a-copy/log/000000000001.log"), str(made[1].path)]


def test_a_snapshot_that_was_set_aside_does_not_count_for_others(tmp_path: Path) -> None:
    made = _segment(tmp_path / "n1" / "log", 1)
    _archived(made, tmp_path / "archive" / "n1")
    for folder, name in (("n1/log", "1-20.snap.corrupt"), ("archive/n1", "1-20.snap")):
        (tmp_path / folder / "snapshots").mkdir()
        (tmp_path / folder / "snapshots" / name).write_bytes(b"x")

    found = discover([str(tmp_path)]).snapshots

    assert [(each.source, each.set_aside, each.copy) for each in found] == [
        ("log", True, False),
        ("archive", False, False),
    ]


class Counting(LocalFiles):
    """Remembers whose heads were read."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    def head(self, path: str, count: int) -> bytes:
        self.heads.append(path)
        return super().head(path, count)


def _begun(folder: Path, numbers: Mapping[int, int], *, boot: int = 0) -> list[Path]:
    """Archived segments by number: when each began."""
    made: list[Path] = []
    for number, at in numbers.items():
        name = fmt.archive_name(number, START_NS + at)
        segment = MadeSegment(
            folder / name, number, created_ns=START_NS + at, boot=bytes([boot]) * 16
        )
        segment.entry(1, 2, 1)
        made.append(segment.path)
    return made


def test_what_an_archive_holds_of_other_times_is_not_even_looked_at(tmp_path: Path) -> None:
    paths = _begun(tmp_path / "n1", {number: number * 100 for number in range(1, 9)})
    files = Counting()

    found = discover([str(tmp_path)], files, since_ns=START_NS + 350, until_ns=START_NS + 610)

    assert [each.number for each in found.segments] == [3, 4, 5, 6]
    assert set(files.heads) == {str(path) for path in paths[2:6]}


def test_a_log_folder_is_looked_at_whole(tmp_path: Path) -> None:
    for number in range(1, 6):
        _segment(tmp_path / "log", number)

    found = discover([str(tmp_path)], since_ns=START_NS + 4, until_ns=START_NS + 4)

    assert [each.number for each in found.segments] == [1, 2, 3, 4, 5]


def test_a_clock_that_was_set_back_makes_no_hole_in_what_is_read(tmp_path: Path) -> None:
    _begun(tmp_path / "n1", {1: 0, 2: 600, 3: 10, 4: 20, 5: 700, 6: 800, 7: 500, 8: 810})

    def numbers(since: int, until: int) -> list[int]:
        found = discover([str(tmp_path)], since_ns=START_NS + since, until_ns=START_NS + until)
        return [each.number for each in found.segments]

    assert sorted(numbers(300, 750)) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(numbers(5, 15)) == [1, 2, 3]
    assert sorted(numbers(900, 950)) == [8]


def test_of_two_disks_in_one_archive_the_older_one_is_left_out_first(tmp_path: Path) -> None:
    _begun(tmp_path / "n1", {number: number * 100 for number in range(1, 5)})
    _begun(tmp_path / "n1", {number: 1_000 + number * 100 for number in range(1, 5)}, boot=1)

    def begun(since: int, until: int) -> list[int]:
        found = discover([str(tmp_path)], since_ns=START_NS + since, until_ns=START_NS + until)
        return [each.created_ns - START_NS for each in found.segments]

    assert begun(1_250, 1_350) == [1_200, 1_300]
    assert begun(350, 1_250) == [300, 400, 1_100, 1_200]


def test_where_there_is_nothing_to_read_it_is_said_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "group-1.log").write_bytes(b"not a name of a segment")
    with pytest.raises(NothingToRead, match=r"no log segments in .*: looked for .*ARCHIVE/NODE"):
        discover([str(tmp_path)])
    with pytest.raises(NothingToRead, match="there is no /nowhere"):
        discover([str(tmp_path), "/nowhere"])


def test_logs_of_two_clusters_are_not_looked_at_together(tmp_path: Path) -> None:
    _segment(tmp_path / "a" / "log", 1)
    assert discover([str(tmp_path)]).of_one_cluster()
    MadeSegment(tmp_path / "b" / "log" / fmt.segment_name(1), cluster="other").entry(1, 2, 1)
    with pytest.raises(MixedClusters, match=r"made \(.*other \("):
        discover([str(tmp_path)]).of_one_cluster()


def test_files_of_which_nothing_is_read_are_named_with_the_reason(tmp_path: Path) -> None:
    log, archive = tmp_path / "n1", tmp_path / "archive" / "n1"
    for number in (1, 2, 3):
        made = _segment(log, number)
        _archived(made, archive)
    snapshots = log / "snapshots"
    snapshots.mkdir()
    usual = ["registered", "incarnation", "node.lock", "last-words", "local-token", "node.log"]
    for name in [*usual, "000000000009.log.tmp"]:
        (log / name).write_bytes(b"x")
    for name in ("1-20.snap", "1-30.snap.corrupt", "1-40.snap.tmp"):
        (snapshots / name).write_bytes(b"x")
    (tmp_path / "archive" / "reports").mkdir()
    (tmp_path / "archive" / "reports" / "report.html").write_text("where no segment is")
    packed = shutil.copy(archive / fmt.archive_name(2, START_NS + 2), f"{archive}/x")
    wanted = {
        Path(packed).rename(f"{archive}/{fmt.archive_name(9, 9)}.gz"): "unpack it",
        tmp_path / "archive" / "only" / f"{fmt.segment_name(1)}.zst": "unpack it",
        snapshots / "1-50.snap.gz": "unpack it",
        log / "notes.txt": "nothing of a log is called so",
        snapshots / "core.17": "nothing of a log is called so",
        log / fmt.segment_name(4): "cannot be read: No such file",
        snapshots / "1-60.snap": "cannot be read",
    }
    for path in wanted:
        path.parent.mkdir(exist_ok=True)
        if path.name in (fmt.segment_name(4), "1-60.snap"):
            path.symlink_to(tmp_path / "gone")
        elif not path.exists():
            path.write_bytes(b"x")

    inputs = discover([str(tmp_path)])

    told = {Path(each.file): each.reason for each in inputs.unread}
    assert told.keys() == wanted.keys()
    assert all(part in told[path] for path, part in wanted.items())
    assert not any(each.foreign for each in inputs.unread)
    assert [each.number for each in inputs.segments if not each.copy] == [1, 2, 3]
    assert sorted(each.index for each in inputs.snapshots) == [20, 30]


def test_what_a_node_keeps_beside_its_segments_is_known() -> None:
    listed = re.search(r"## The data folder\n\n(.*?)\n\n", BACKUP.read_text(), re.DOTALL)
    assert listed is not None
    names = {name for row in listed[1].splitlines() for name in re.findall(r"`([^`]+)`", row)}

    assert {"node.lock", "registered"} <= names
    assert {name for name in names if "*" not in name and "/" not in name and " " not in name} <= (
        _BESIDE
    )


@pytest.mark.parametrize("archived", [False, True])
def test_a_segment_of_another_node_is_named_and_not_read(tmp_path: Path, archived: bool) -> None:
    for node in ("n1", "n2"):
        for number in (1, 2, 3):
            made = _segment(tmp_path / node, number, node=node)
            if archived:
                _archived(made, tmp_path / "archive" / node)
    stray = _segment(tmp_path / "elsewhere", 4, node="n2")
    folder = tmp_path / "archive" / "n1" if archived else tmp_path / "n1"
    file = _archived(stray, folder) if archived else Path(shutil.copy(stray.path, folder))
    shutil.rmtree(tmp_path / "elsewhere")

    inputs = discover([str(tmp_path)])

    (told,) = inputs.unread
    assert (told.file, told.node, told.foreign) == (str(file), "n1", True)
    assert told.reason == "it is segment 4 of node n2 of cluster made"
    assert str(file) not in {each.file for each in inputs.segments}
    assert len(inputs.segments) == (12 if archived else 6)


def test_of_two_segments_of_two_nodes_the_folder_says_whose_it_is(tmp_path: Path) -> None:
    _segment(tmp_path / "n2" / "log", 1, node="n1")
    _segment(tmp_path / "n2" / "log", 2, node="n2")

    inputs = discover([str(tmp_path)])

    assert [each.node for each in inputs.segments] == ["n2"]
    assert [each.foreign for each in inputs.unread] == [True]
