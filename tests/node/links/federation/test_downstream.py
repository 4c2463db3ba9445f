"""What a link does with a queue that is gone when it is published to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.machine.arguments import SHARD_OF
from node.links.federation.downstream import Downstream


def downstream() -> Downstream:
    def publish(*arguments: Any) -> None:
        done = cast("Callable[[Any], None]", arguments[-1])
        done([(0, 0)])  # refused: as the publisher does with what goes to a shard that is gone

    catalog = SimpleNamespace(queue_by_id=lambda _: None)
    cluster = SimpleNamespace(catalog_machine=catalog)
    return Downstream(*cast("list[Any]", [cluster, None, SimpleNamespace(publish=publish)]))


async def test_what_a_joined_shard_refused_comes_again():
    info: Any = SimpleNamespace(queue=7, name="q.1", arguments={SHARD_OF: "q"})

    with pytest.raises(ConnectionError, match="routed again"):
        await downstream()._store(info, b"x", b"", None)  # pyright: ignore[reportPrivateUsage]


async def test_what_goes_to_a_queue_that_was_deleted_is_gone_with_it():
    info: Any = SimpleNamespace(queue=7, name="q", arguments={})

    await downstream()._store(info, b"x", b"", None)  # pyright: ignore[reportPrivateUsage]
