"""Members of one group under random messages, crashes, cuts and changes: fresh seeds in each run,
and those that found something.
"""

from __future__ import annotations

import os

import pytest

from cluster.raft.elections import Elections
from tests import FIRST_SEED
from tests.raft.fuzz import Broken, Known, fuzz

SEEDS = 400
#: Each broke a promise once, or the judge of this one erred. They are played to their end.
FOUND = {
    77312002913: "a survivor was told of a commit, and had another entry on its disk",
    860371848079: "survivors wait for ever for a learner that was not told that it is one",
    962064825149: "the same, and it had just begun to receive a snapshot",
    653966809926: "a learner still goes by members of which its leader is a lost one",
    687742737645: "a copy that no survivor knows of follows nodes that were given up",
    787252395765: "a survivor that is down has a snapshot, so it knows what is committed",
}


def _run(first: int, count: int) -> list[Known]:
    runs: list[Known] = []
    for seed in range(first, first + count):
        try:
            runs.append(fuzz(seed))
        except Exception as error:
            raise AssertionError(f"python -m tests.raft.fuzz --seed {seed}") from error
    return runs


def test_no_promise_is_broken_by_random_steps() -> None:
    runs = _run(int(os.environ[FIRST_SEED]), SEEDS)

    counts = sum((run.counts for run in runs), start=runs[0].counts.__class__())
    what = ("truncations", "snapshots installed", "changes of members", "disks lost", "kills")
    assert all(counts[each] for each in what), counts
    assert sum(run.last_committed for run in runs) > SEEDS


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_found_holds_now(seed: int) -> None:
    fuzz(seed, calm_share=1)


def test_a_seed_is_the_same_run_again() -> None:
    def steps() -> list[str]:
        lines: list[str] = []
        fuzz(5, lines.append)
        return lines

    assert steps() == steps() != []


def test_votes_without_a_look_at_the_log_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elections, "_up_to_date", lambda *_: True)

    with pytest.raises(AssertionError) as found:
        _run(0, SEEDS)

    assert isinstance(found.value.__cause__, Broken)
