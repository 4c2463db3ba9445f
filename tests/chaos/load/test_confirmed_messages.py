"""The workloads about confirmed messages, each for some seconds on three calm nodes."""

from __future__ import annotations

import pytest

from chaos.load.dead_lettering import DeadLettering
from chaos.load.driver import Protocols
from chaos.load.numbered_publishers import NumberedPublishers
from chaos.load.publish_consume import PublishConsume
from chaos.load.publisher_order import PublisherOrder
from chaos.load.workload import Scene
from tests.chaos.load.calm import runs_and_drains

pytestmark = [
    pytest.mark.live,
    pytest.mark.chaos,
    pytest.mark.xdist_group("chaos-confirmed"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

both = pytest.mark.parametrize("protocol", ["native", "amqp"])


@both
async def test_what_is_published_is_consumed(scene: Scene, protocol: Protocols):
    counts = await runs_and_drains(PublishConsume(scene, protocol), scene)

    assert counts["total-queue confirmed"] > 0


@both
async def test_what_fails_too_often_is_dead_lettered(scene: Scene, protocol: Protocols):
    counts = await runs_and_drains(DeadLettering(scene, protocol), scene)

    assert counts["dead-letters confirmed"] > 0
    assert counts["deaths rejected"] > 0
    assert counts["deaths delivery_limit"] > 0


@both
async def test_publishers_keep_their_order(scene: Scene, protocol: Protocols):
    counts = await runs_and_drains(PublisherOrder(scene, protocol), scene)

    assert counts["publisher-order publishers"] >= 2


async def test_named_publishers_that_repeat_themselves_are_stored_once(scene: Scene):
    counts = await runs_and_drains(NumberedPublishers(scene, "native"), scene)

    published = [op for op in scene.recorder if op.f == "publish" and op.type == "invoke"]
    batches = {(op.value["publisher"], op.value["first"]) for op in published}
    assert counts["total-queue confirmed"] > 0
    assert len(published) > len(batches)
