"""What is planted is found, named and located, and nothing else; of clean lives nothing is said."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.builds import broken
from chaos.checker.log_safety import log_safety
from chaos.postmortem.findings.catalogue import RULES, exit_status
from cluster.log import cleaner
from cluster.log.reader import CORRUPT, TORN, read, records
from cluster.types import NodeId
from tests.postmortem.by_sail import by_sail, differing
from tests.postmortem.clean import SIMULATED_S, an_hour, simulated, simulated_hour
from tests.postmortem.plants import IN_WORDS, Expected, Planted
from tests.postmortem.plants_of_clients import PLANTS, SCENES
from tests.testkit.draws import drawn, one_of_long

#: Each takes Spark ten seconds and more. All of them are `make test-postmortem`.
BY_SPARK = drawn(SCENES, 3)
#: What the checker of the chaos suite, which knows nothing of any of this, says of some of them.
UNSAFE = {
    "divergence": "different entries committed",
    "two_leaders": "two leaders in a term",
    "missing_entry": "committed entries truncated",
    "state_mismatch": "different states",
    "unelected_leader": "leader without a majority's votes",
    "needless_truncation": "truncated without a conflict",
    "commit_back": "commit went back",
    "term_back": "term went back",
    "vote_twice": "voted twice",
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_what_it_says(name: str, tmp_path: Path):
    planted = SCENES[name](tmp_path)
    codes = {each.code for each in planted.expected}
    bad = [
        record
        for folder in planted.logs.values()
        for record in read(str(folder))
        if record.kind == CORRUPT
    ]

    assert bad == []
    if planted.logs:
        verdict = log_safety(planted.logs)
        assert verdict.valid is not bool(codes & UNSAFE.keys()), verdict
        for code, anomaly in UNSAFE.items():
            assert verdict.counts[anomaly] == (code in codes)


def test_what_cannot_be_read_is_where_the_scene_says(tmp_path: Path):
    planted = SCENES["unreadable"](tmp_path)
    expected = next(each for each in planted.expected if each.code == "corrupt_segment").where

    found = [
        record
        for folder in planted.paths
        for record in _of_archive(Path(folder))
        if record.kind in (CORRUPT, TORN)
    ]

    assert [(each.file, each.offset) for each in found] == [(expected["file"], expected["offset"])]


def _of_archive(folder: Path) -> list[Any]:

    return [
        each for path in sorted(folder.glob("*.log")) for each in records(str(path), last=False)
    ]


def test_every_rule_has_a_plant():
    assert {code for codes in PLANTS.values() for code in codes} == {*RULES}


def wrong_columns(expected: Expected, finding: dict[str, Any]) -> dict[str, Any]:
    """Columns that say something else than what was planted."""
    wrong: dict[str, Any] = {}
    for name, value in expected.where.items():
        told = finding[name]
        if isinstance(value, tuple):
            low, high = cast("tuple[int, int]", value)
            right = told is not None and low <= told <= high
        elif name == "file":
            right = told is not None and Path(told).resolve() == Path(value).resolve()
        else:
            right = told == value
        if not right:
            wrong[name] = {"expected": value, "told": told}
    return wrong


class Runs:
    """Of the whole post-mortem: one for each scene, when it is first asked for."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self._folder, self._spark = folder, spark
        self._done: dict[str, tuple[Planted, Any]] = {}

    def of(self, name: str) -> tuple[Planted, Any]:
        from chaos.postmortem.pipeline import Asked, run

        if name not in self._done:
            folder = self._folder / name
            planted = SCENES[name](folder / "nodes")
            build = nullcontext if planted.build is None else partial(broken, planted.build)
            asked = Asked(build=build, history=planted.history, confirmed=planted.confirmed)
            result = run(planted.paths, folder / "out", spark=self._spark, asked=asked)
            self._done[name] = planted, result
        return self._done[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Runs:
    return Runs(tmp_path_factory.mktemp("scenes"), spark)


@pytest.mark.spark
@pytest.mark.timeout(1200)  # the first one of a scene runs all of it
@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param(name, code, marks=scene.marks)
        for scene in BY_SPARK
        for name in scene.values
        for code in PLANTS[str(name)]
    ],
)
def test_a_plant_is_found_and_located(name: str, code: str, runs: Runs):
    planted, result = runs.of(name)
    expected = [each for each in planted.expected if each.code == code]
    expected.sort(key=lambda each: each.where.get("node", ""))
    found = [each for each in result.findings if each["code"] == code]
    found.sort(key=lambda each: each["node"] or "")

    assert len(found) == len(expected)
    assert expected
    wrong = [wrong_columns(e, f) for e, f in zip(expected, found, strict=True)]
    assert wrong == [{}] * len(expected)
    assert exit_status({each["severity"] for each in found}) == planted.exit


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BY_SPARK)
def test_nothing_else_is_found(name: str, runs: Runs):
    planted, result = runs.of(name)

    told = sorted(each["code"] for each in result.findings)
    assert told == sorted(each.code for each in planted.expected)
    assert result.status == planted.exit


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BY_SPARK)
def test_both_engines_say_the_same(name: str, runs: Runs, tmp_path: Path):
    planted, result = runs.of(name)

    status = by_sail(
        planted.paths,
        tmp_path,
        build=planted.build,
        history=planted.history,
        confirmed=planted.confirmed,
    )

    assert status == result.status
    assert differing(result.folder / "tables", tmp_path / "tables") == {}


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_what_was_given_and_what_nodes_noted_is_in_the_report(runs: Runs):
    _, result = runs.of("given_badly")

    page = (result.folder / "report.html").read_text(encoding="utf-8")
    for words in IN_WORDS:
        assert page.count(words) >= (1 if "as n1 heard" in words else 2), words  # axis and table
    assert "of n3 nothing was given" in page
    told = json.loads((result.folder / "summary.json").read_text(encoding="utf-8"))
    given = {row["node"]: row for row in told["nodes"]}
    assert [given[node]["segments"] for node in ("n1", "n2", "n3")] == ["1", "1", ""]
    assert [given[node]["unread"] for node in ("n1", "n2", "n3")] == [1, 1, 0]
    assert given["n3"]["source"] == "not given"


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_an_hour_in_which_nothing_went_wrong(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    from chaos.postmortem.pipeline import run

    monkeypatch.setattr(cleaner, "SPARSE_SEGMENTS_MAX", 0)  # few segments, and yet copies
    cluster = an_hour(tmp_path / "nodes", retain_bytes=1_050 << 10)
    verdict = log_safety(cluster.logs)
    assert verdict.valid is True, verdict
    kinds = {each.kind for folder in cluster.logs.values() for each in read(str(folder))}
    assert {"snapshot", "stopped", "truncate", "live-entry", "digest", "link-down"} <= kinds
    assert not kinds & {CORRUPT, TORN}

    result = run(cluster.paths, tmp_path / "out", spark=spark)

    assert result.findings == []
    assert result.status == 0


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_simulated_run_whose_clients_are_cut_off_now_and_then(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    simulation = simulated(tmp_path / "nodes", 7, seconds=10, messages_per_s=60)
    assert simulation.status == 0, simulation.violations
    assert simulation.counts["redeliveries"] > 20

    result = run([str(tmp_path / "nodes")], tmp_path / "out", spark=spark)

    assert result.findings == []
    assert result.status == 0


@one_of_long("a simulated hour")
@pytest.mark.spark
@pytest.mark.timeout(1800)  # to simulate it takes a minute, if nobody else wants the machine
def test_an_hour_that_was_simulated(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import Asked, run

    folder = tmp_path / "nodes"
    simulation, history = simulated_hour(folder, 7)
    assert simulation.status == 0, simulation.violations
    assert simulation.simulated_s > SIMULATED_S
    assert simulation.counts["messages confirmed"] > 2 * SIMULATED_S
    assert simulation.counts["terminations"] == 3
    logs = {NodeId(name): folder / name / "log" for name in ("n1", "n2", "n3")}
    verdict = log_safety(logs)
    assert verdict.valid is True, verdict
    kinds = {each.kind for log in logs.values() for each in read(str(log))}
    assert {"snapshot", "stopped", "digest", "link-down", "clock"} <= kinds

    paths = [str(log.parent) for log in logs.values()]
    result = run(paths, tmp_path / "out", spark=spark, asked=Asked(history=history))

    assert result.findings == []
    assert result.status == 0
