"""The list of mutants fits the source as it is; that each is caught, `make mutants` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.builds import BUILDS
from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.run import Survived, broken, catch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_applies_exactly_once_and_compiles(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")

    changed = broken(source, mutant)

    assert changed != source
    compile(changed, mutant.file, "exec")


def test_there_are_many_and_each_has_a_name_and_a_catcher_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert all(mutant.catchers for mutant in MUTANTS)


def test_builds_of_live_nodes_are_those_that_there_are() -> None:
    """Each that breaks what a mutant breaks, too: no mutant is of one replica alone, and those of
    links are caught by real nodes only.
    """
    links = {"settled-too-soon", "another-identity", "left-alone", "out-of-turn"}
    alone = {"sac-without-fencing", "sequences-of-its-own", *links}
    assert {mutant.build for mutant in MUTANTS} - {""} == {*BUILDS} - alone


def test_a_text_that_is_not_there_is_an_error() -> None:
    mutant = Mutant("nothing", "cluster/types.py", "no such text anywhere", "", ())

    with pytest.raises(ValueError, match="stands 0 times"):
        broken("some source", mutant)


def test_a_mutant_that_changes_nothing_survives(tmp_path: Path) -> None:
    harmless = next(m for m in MUTANTS if m.name == "half of the voters are a majority")
    same = Mutant(
        "harmless", harmless.file, harmless.old, f"{harmless.old}  # as it was", harmless.catchers
    )

    with pytest.raises(Survived):
        catch(same, tmp_path, only="raft fuzz", seeds=20)
