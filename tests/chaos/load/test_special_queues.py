"""The workloads about what queues can do besides, each for some seconds on three calm nodes."""

from __future__ import annotations

import pytest

from chaos.load.churn import Churn
from chaos.load.driver import Protocols
from chaos.load.expiry import Expiry
from chaos.load.lengths import Lengths
from chaos.load.links import Federation, Shovels
from chaos.load.single_active import SingleActive
from chaos.load.transactions import Transactions
from chaos.load.workload import Scene
from tests.chaos.load.calm import runs_and_drains

pytestmark = [
    pytest.mark.live,
    pytest.mark.chaos,
    pytest.mark.xdist_group("chaos-special"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

both = pytest.mark.parametrize("protocol", ["native", "amqp"])


@both
async def test_a_consumer_that_stalled_is_kept_out_of_the_store(scene: Scene, protocol: Protocols):
    workload = SingleActive(scene, protocol, stall_share=0.1)
    counts = await runs_and_drains(workload, scene, load_s=12.0)

    stored = [op.value["accepted"] for op in scene.recorder if op.f == "store"]
    assert counts["sac-exclusion decisions"] > 0
    assert counts["total-queue confirmed"] > 0
    assert True in stored
    assert False in stored


@both
async def test_names_are_used_again(scene: Scene, protocol: Protocols):
    counts = await runs_and_drains(Churn(scene, protocol), scene)

    ended = {(op.f, op.type) for op in scene.recorder}
    assert {(f, "ok") for f in ("declare", "bind", "unbind", "delete", "publish")} <= ended
    assert counts["churn publishes judged"] > 0
    assert counts["churn drained"] > 0
    assert counts["churn deleted"] > 0


@both
async def test_messages_expire_and_wait(scene: Scene, protocol: Protocols):
    counts = await runs_and_drains(Expiry(scene, protocol), scene)

    assert counts["expiry expired"] > 0
    if protocol == "native":
        assert counts["expiry delayed"] > 0
        assert counts["total-queue confirmed"] > 0


async def test_messages_are_moved_wholly_or_not_at_all(scene: Scene):
    counts = await runs_and_drains(Transactions(scene, "amqp"), scene)

    assert counts["all-or-nothing done"] > 0
    assert counts["moves moved"] > 0
    assert counts["total-queue confirmed"] > 0


@both
async def test_lengths_are_read_while_they_change(scene: Scene, protocol: Protocols):
    await runs_and_drains(Lengths(scene, protocol), scene)

    ended = [(op.f, op.type) for op in scene.recorder]
    assert {("publish", "ok"), ("settle", "ok"), ("length", "ok")} <= set(ended)
    lengths = {op.value["length"] for op in scene.recorder if op.f == "length" and op.type == "ok"}
    assert len(lengths) > 1


async def test_shovels_bring_each_message_once_and_in_order(scene: Scene):
    counts = await runs_and_drains(Shovels(scene), scene)

    for queue in ("orders", "log"):
        arrivals = f"arrivals at shovel-native.{queue}.moved"
        assert counts[f"{arrivals} arrived"] >= counts[f"{arrivals} confirmed"] > 0
    assert counts["publisher-order publishers"] == 1


async def test_federated_queues_and_exchanges_have_what_their_upstreams_get(scene: Scene):
    counts = await runs_and_drains(Federation(scene), scene)

    for queue in ("near", "events.mine"):
        arrivals = f"arrivals at federation-amqp.{queue}"
        assert counts[f"{arrivals} arrived"] >= counts[f"{arrivals} confirmed"] > 0
