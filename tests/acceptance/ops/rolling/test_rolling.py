from __future__ import annotations

from pathlib import Path

import pytest

from chaos.history import Op
from chaos.load.driver import PROTOCOLS
from tests.acceptance.ops.rolling.rolling import NODES, PUBLISHERS, Rolling, gap_of, served


def confirmed(client: str, *at_s: float) -> list[Op]:
    return [
        Op(number, client, "ok", "publish", monotonic_ns=round(each * 1e9))
        for number, each in enumerate(at_s)
    ]


def test_the_longest_gap_is_between_two_confirms_of_the_same_client():
    ops = confirmed("a", 1.0, 1.5, 4.0, 4.25) + confirmed("b", 2.0, 3.0)
    refused = Op(9, "a", "refused", "publish", monotonic_ns=round(2.5e9))

    gap = gap_of("a", [*ops, refused], begun_s=0.5)

    assert (gap.gap_ms, gap.at_s, gap.events, gap.median_ms) == (2500.0, 1.0, 4, 500.0)


def test_a_client_that_is_only_refused_is_not_served():
    assert served("a", confirmed("a", 1.0))
    assert not served("b", confirmed("a", 1.0))
    assert not served("a", [Op(0, "a", "refused", "publish")])


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_nothing_confirmed_is_lost_when_all_nodes_restart_one_by_one(tmp_path: Path):
    result = await Rolling(tmp_path, print).run(2)

    assert [restart.node for restart in result.restarts] == [*NODES, *NODES]
    for verdict in result.verdicts:
        assert verdict.valid is True, verdict.describe()
    assert result.silent == []
    assert len(result.gaps) == len(PROTOCOLS) * (PUBLISHERS + 1)
    assert all(gap.events for gap in result.gaps)
