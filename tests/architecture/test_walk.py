"""How far a message walks through the code, against what it was: `make walk` shows it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from node.routing.topic import TopicTrie
from tests.acceptance.bench.walk import Profile, Walk, kept, measure

#: A change that makes a walk so much longer has to say so: `make walk ARGS=--keep`.
GROWTH_MAX = 1.25


def grown(walks: dict[str, Walk], before: dict[str, Walk]) -> list[str]:
    return [
        f"{name}: {key} {was} -> {now}"
        for name, walk in walks.items()
        for (key, now), was in zip(asdict(walk).items(), asdict(before[name]).values(), strict=True)
        if now > was * GROWTH_MAX
    ]


@pytest.mark.timeout(120)
async def test_a_publish_a_delivery_and_a_settle_walk_no_further_than_they_did(tmp_path: Path):
    walks, _ = await measure(tmp_path)

    assert not grown(walks, kept()), "shorten it, or keep the new numbers: make walk ARGS=--keep"
    # Else much could be added before anybody noticed.
    assert not grown(kept(), walks), (
        "it became shorter: keep the new numbers: make walk ARGS=--keep"
    )


def test_a_walk_that_grew_by_a_quarter_is_told():
    before = {"publish": Walk(calls=100, functions=40, files=20, changes=50)}

    assert grown({"publish": Walk(125, 50, 25, 62)}, before) == []
    assert grown({"publish": Walk(126, 40, 20, 63)}, before) == [
        "publish: calls 100 -> 126",
        "publish: changes 50 -> 63",
    ]


def test_calls_of_the_product_alone_are_counted():
    profile = Profile()
    profile.start()
    sorted(map(str, range(10)))
    Path("/").is_absolute()
    TopicTrie[int]()  # and the place at its root
    profile.stop()

    assert profile.walk == Walk(calls=2, functions=2, files=1, changes=0)
