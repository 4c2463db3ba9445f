"""Curves and averages of the last minutes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.types import QueueId
from node.management import observer
from node.management.errors import ApiError
from node.management.facts import Sample
from node.management.host import MEASURED
from node.management.samples import NodeSamples, Samples, asked
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until


def sample(value: int) -> Sample:
    return Sample(value, (value,) * 7, (value,) * 3, 0, None)


def test_a_queue_is_at_any_time_as_it_was_last_seen():
    kept = Samples()
    kept.changed(QueueId(1), 20, sample(5), (10, sample(0)))
    kept.changed(QueueId(1), 40, sample(9), (30, sample(5)))

    rows = kept.at(QueueId(1), [50, 40, 39, 20, 19, 10, 1])

    assert rows is not None
    assert [row[0] for row in rows] == [9, 9, 5, 5, 0, 0, 0]
    assert kept.at(QueueId(2), [1]) is None


def test_however_many_queues_are_busy_so_many_samples_are_kept():
    kept, random = Samples(samples_max=100), Random(1)
    twin: list[tuple[int, int, int]] = []
    for at in range(1, 2_000):
        queue = random.randrange(30)
        if not any(q == queue for _, q, _ in twin):
            twin.append((at - 1, queue, 0))
        twin.append((at, queue, at))
        kept.changed(QueueId(queue), at, sample(at), (at - 1, sample(0)))
        twin = twin[-100:]
        assert len(kept) == len(twin) <= 100
        for each in {q for _, q, _ in twin}:
            own = [(t, v) for t, q, v in twin if q == each]
            rows = kept.at(QueueId(each), [at, at - 40])
            assert rows is not None
            expected = [next((v for t, v in reversed(own) if t <= when), own[0][1])
                        for when in (at, at - 40)]  # fmt: skip
            assert [row[0] for row in rows] == expected
    kept.forget_before(5_000)
    assert len(kept) == 0 == len(kept.queues())


@pytest.mark.parametrize(
    "given", [{"age": "x", "incr": "5"}, {"age": "60", "incr": "0"}, {"age": "99999", "incr": "1"}]
)
def test_a_curve_has_only_so_many_points(given: dict[str, str]):
    with pytest.raises(ApiError, match="lengths_age and lengths_incr"):
        asked({f"lengths_{name}": value for name, value in given.items()}, 1_000)


def test_times_are_multiples_of_the_step_and_the_latest_is_first():
    wanted = asked({"msg_rates_age": "20", "msg_rates_incr": "5"}, 1_234_567)
    assert wanted is not None
    assert wanted.rates_ms == [1_230_000, 1_225_000, 1_220_000, 1_215_000, 1_210_000]
    assert wanted.lengths_ms == []
    assert asked({"msg_rates_age": "20"}, 1) is None


CURVES = "msg_rates_age=60&msg_rates_incr=1&lengths_age=30&lengths_incr=1"


@pytest.mark.parametrize("count", [1, 4])
async def test_what_a_queue_held_and_did_is_told_by_any_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    """With four nodes one has no copy of the queue, and asks its leader."""
    monkeypatch.setattr(observer, "SAMPLE_S", 0.2)
    async with Nodes(tmp_path, count=count) as nodes:
        apis = [api_of(node) for node in nodes.nodes.values()]
        await apis[0].queue("q")
        await apis[0].queue("idle")
        await until(lambda: _seen(apis[0], "q"))
        for _ in range(3):
            await apis[0].publish("q", "x")
        for api in apis:
            await until(lambda api=api: _curve(api, f"queues/%2F/q?{CURVES}", 3))
            shown = await api.get(f"queues/%2F/q?{CURVES}")
            published = shown["message_stats"]["publish_details"]
            assert published["samples"][0]["sample"] == 3
            assert len(published["samples"]) == 61
            assert published["samples"][-1]["sample"] == 0
            assert published["avg_rate"] == round(3 / 60, 4)
            assert "rate" in published
            lengths = shown["messages_ready_details"]
            assert len(lengths["samples"]) == 31
            at = [each["timestamp"] for each in lengths["samples"]]
            steps = {later - earlier for later, earlier in pairwise(at)}
            assert steps == {1_000}
            (row,) = (await api.get(f"queues?{CURVES}&page=1&name=q"))["items"]
            assert row["messages_details"]["samples"][0]["sample"] == 3
            idle = await api.get(f"queues/%2F/idle?{CURVES}")
            assert {each["sample"] for each in idle["messages_details"]["samples"]} == {0}
            overview = await api.get(f"overview?{CURVES}")
            totals = overview["queue_totals"]["messages_details"]
            assert (totals["samples"][0]["sample"], len(totals["samples"])) == (3, 31)
            published = overview["message_stats"]["publish_details"]
            assert (published["samples"][0]["sample"], published["samples"][-1]["sample"]) == (3, 0)
        wrong = await apis[0].ask("GET", "queues?lengths_age=a&lengths_incr=1")
        assert wrong.status == 400
        assert "samples" not in (await apis[0].get("queues/%2F/q"))["messages_details"]


@pytest.mark.parametrize("count", [1, 3])
async def test_what_a_node_had_is_told_by_any_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    monkeypatch.setattr(observer, "SAMPLE_S", 0.2)
    curves = "node_stats_age=30&node_stats_incr=1"
    async with Nodes(tmp_path, count=count) as nodes:
        apis = [api_of(node) for node in nodes.nodes.values()]
        for api in apis:
            for name in nodes.nodes:

                async def measured(api: Api = api, name: str = name) -> Any:
                    shown = await api.get(f"nodes/{name}?{curves}")
                    first = shown["mem_used_details"]["samples"][0]["sample"]
                    return shown if first else None

                shown = await until(measured)
                for curve in MEASURED:
                    details = shown[f"{curve}_details"]
                    assert set(details) == {"rate", "samples", "avg_rate", "avg"}, curve
                    at = [each["timestamp"] for each in details["samples"]]
                    assert len(at) == 31
                    assert {later - earlier for later, earlier in pairwise(at)} == {1_000}
                memory = shown["mem_used_details"]["samples"]
                assert 0.5 < memory[0]["sample"] / shown["mem_used"] < 2
                assert memory[-1]["sample"] == 0  # it was not there then
                assert shown["disk_free_details"]["samples"][0]["sample"] > 0
                assert shown["fd_used_details"]["samples"][0]["sample"] > 0
                plain = await api.get(f"nodes/{name}")
                assert set(plain["mem_used_details"]) == {"rate"}
            rows = await api.get(f"nodes?{curves}&columns=mem_used_details.samples")
            assert [len(row["mem_used_details"]["samples"]) for row in rows] == [31] * count
        wrong = await apis[0].ask("GET", "nodes?node_stats_age=60&node_stats_incr=0")
        assert (wrong.status, "node_stats_age" in wrong.value["reason"]) == (400, True)


def test_a_node_was_at_any_time_as_it_was_last_measured_and_nothing_before():
    kept = NodeSamples()
    for at in (10, 20, 30):
        kept.add(at, {"mem_used": at})

    def column(*times_ms: int) -> list[int]:
        curve = kept.curves(["mem_used"], times_ms)["mem_used"]
        return [each["sample"] for each in curve["samples"]]

    assert column(31, 30, 29, 10, 9) == [30, 30, 20, 10, 0]
    kept.forget_before(25)
    assert column(31, 29) == [30, 0]


async def _seen(api: Api, name: str) -> bool:
    return any(each["name"] == name for each in await api.get("queues"))


async def _curve(api: Api, path: str, wanted: int) -> bool:
    shown: dict[str, Any] = await api.get(path)
    samples = shown["message_stats"]["publish_details"].get("samples") if (
        "message_stats" in shown
    ) else None  # fmt: skip
    return bool(samples) and samples[0]["sample"] == wanted and samples[-1]["sample"] == 0
