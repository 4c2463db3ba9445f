"""The scenes of `make links`, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.links.shovels import SCENES
from tests.testkit.rabbitmq import installed


@pytest.mark.ops
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENES)
async def test_nothing_is_lost_nor_doubled_where_the_destination_is_ours(name: str, tmp_path: Path):
    scene = SCENES[name]
    if scene.needs_rabbitmq and not installed():
        pytest.skip("RabbitMQ is not installed")
    result = await scene.run(tmp_path, 3_000, print)
    assert result.good, result.line()
