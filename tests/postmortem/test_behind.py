"""How far copies of a group are behind: those that lag, and those that only were not there."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
behind: Any = pytest.importorskip("chaos.postmortem.replication.behind")

SCHEMA = pa.schema(
    [
        ("group", pa.int32()),
        ("node", pa.string()),
        *((name, pa.int64()) for name in ("sec", "index", "committed", "term")),
        *((name, pa.bool_()) for name in ("left", "back")),
    ]
)
ALL = range(200)
Row = dict[str, Any]


def leads(seconds: Sequence[int] = ALL) -> list[Row]:
    """n1 leads in term 3, and commits ten entries a second."""
    first = {"node": "n1", "sec": seconds[0], "term": 3}
    rows = [_row("n1", sec, index=sec * 10 + 10, committed=sec * 10 + 10) for sec in seconds]
    return [rows[0] | first, *rows[1:]]


def follows(node: str, seconds: Sequence[int], *, less: int = 0) -> list[Row]:
    return [_row(node, sec, index=sec * 10 + 10 - less) for sec in seconds]


def _row(node: str, sec: int, **more: Any) -> Row:
    return {"group": 7, "node": node, "sec": sec} | more


def judged(
    *told: list[Row], lives: Mapping[str, list[tuple[int, int]]] | None = None
) -> dict[str, dict[int, Row]]:
    """By node and second."""
    rows = [row for part in told for row in part]
    spans = {node: [(0, 200)] for node in ("n1", "n2", "n3")} | dict(lives or {})
    table = pa.Table.from_pylist(rows[::-1], schema=SCHEMA)
    found: dict[str, dict[int, Row]] = {}
    alive = {node: [behind.Life(*life) for life in its] for node, its in spans.items()}
    for row in behind.behind(table, alive).to_pylist():
        found.setdefault(row["node"], {})[row["at_ns"] // behind.SECOND_NS] = row
    return found


def test_who_lacks_what_is_committed_lags_from_the_second_in_which_that_was():
    found = judged(leads(), follows("n2", ALL), follows("n3", [*range(50), *range(80, 200)]))

    assert found.keys() == {"n2", "n3"}  # nobody lags behind itself
    assert all(row["lag_entries"] == row["lag_ms"] == 0 for row in found["n2"].values())
    n3 = found["n3"]
    assert n3.keys() == set(ALL)
    assert [n3[at]["lag_entries"] for at in (49, 50, 79, 80)] == [0, 10, 300, 0]
    assert [n3[at]["lag_ms"] for at in (49, 50, 79, 80)] == [0, 0, 29_000, 0]
    assert {(row["leader"], row["down"], row["here_ms"]) for row in n3.values()} == {
        ("n1", False, None)
    }


def test_who_always_has_a_little_less_does_not_lack_it_for_ever():
    found = judged(leads(), follows("n3", ALL, less=15))

    assert {row["lag_ms"] for at, row in found["n3"].items() if at > 5} == {1_000}
    assert found["n3"][100]["lag_entries"] == 15


def test_a_process_that_was_away_is_down_and_then_new():
    lives = {"n3": [(0, 49), (80, 200)]}
    found = judged(leads(), follows("n3", [*range(50), *range(95, 200)]), lives=lives)["n3"]

    assert [found[at]["down"] for at in (49, 50, 79, 80)] == [False, True, True, False]
    assert [found[at]["here_ms"] for at in (49, 60, 80, 95)] == [None, None, 0, 15_000]
    # Its log lacks that since long.
    assert found[90]["lag_ms"] == 40_000


def test_a_copy_that_is_new_in_the_group_lacks_nothing_from_before():
    found = judged(leads(), follows("n2", ALL), follows("n3", range(100, 200)))["n3"]

    assert min(found) == 100
    assert [found[at]["here_ms"] for at in (100, 130)] == [0, 30_000]


def test_who_left_the_group_is_down_until_it_is_back():
    gone = [_row("n3", 50, left=True), _row("n3", 90, left=True)]  # repeated by the cleaner
    found = judged(leads(), follows("n3", range(50)), gone)["n3"]

    assert [found[at]["down"] for at in (49, 50, 91, 199)] == [False, True, True, True]
    assert all(row["here_ms"] is None for row in found.values())

    back = [_row("n3", 120, back=True)]
    found = judged(leads(), follows("n3", range(50)), gone, back, follows("n3", range(125, 200)))
    n3 = found["n3"]

    assert [n3[at]["down"] for at in (119, 120)] == [True, False]
    assert [n3[at]["here_ms"] for at in (120, 130)] == [0, 10_000]
    # What it had before it left, it has no more.
    assert [n3[at]["lag_entries"] for at in (120, 124, 125)] == [1_210, 1_250, 0]
    assert [n3[at]["lag_ms"] for at in (120, 124, 125)] == [0, 4_000, 0]


def test_a_copy_whose_state_is_only_repeated_was_never_away():
    again = [row | {"back": row["sec"] in (0, 60, 120)} for row in follows("n3", ALL)]
    found = judged(leads(), again)["n3"]

    assert all(row["here_ms"] is None and not row["down"] for row in found.values())
    assert all(row["lag_entries"] == 0 for row in found.values())


def test_whoever_leads_at_the_time_does_not_lag():
    other = [_row("n3", 100, term=4)]
    found = judged(leads(range(100)), follows("n3", range(100)), other, leads_on("n3"))

    assert set(found["n3"]) == set(range(100))
    assert found["n1"].keys() == set(range(100, 200))
    assert {row["leader"] for row in found["n1"].values()} == {"n3"}
    assert found["n1"][150]["lag_entries"] == 510


def leads_on(node: str) -> list[Row]:
    rows = range(100, 200)
    return [_row(node, sec, index=sec * 10 + 10, committed=sec * 10 + 10) for sec in rows]


def test_who_came_back_soon_after_the_beginning_is_new_all_the_same():
    lives = {"n3": [(0, 9), (20, 200)]}
    found = judged(leads(), follows("n3", [*range(10), *range(25, 200)]), lives=lives)["n3"]

    assert [found[at]["here_ms"] for at in (5, 15, 20, 25)] == [None, None, 0, 5_000]


def test_who_came_back_with_an_empty_disk_has_nothing_of_before():
    lives = {"n3": [(0, 49), (80, 200, 1)]}
    again = [_row("n3", sec, index=(sec - 95) * 20) for sec in range(95, 200)]
    found = judged(leads(), follows("n3", range(50)), again, lives=lives)["n3"]

    # Until it is given a copy there is none.
    assert [found[at]["down"] for at in (49, 50, 80, 94, 95)] == [False, True, True, True, False]
    assert [found[at]["here_ms"] for at in (90, 95, 100)] == [None, 0, 5_000]
    assert [found[at]["index"] for at in (49, 94, 95, 96)] == [500, 0, 0, 20]
    assert found[110]["lag_entries"] == 810
    assert found[110]["lag_ms"] == 15_000
