"""A link that is told to end does so, whatever befalls it at that moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.types import CATALOG_GROUP, NodeId
from node.links.link import Link, LinkKey, LinkSpec
from node.links.supervisor import LinkSupervisor
from node.tasks import Tasks


class Kind:
    """One link, whose two halves fail together when one is told to end."""

    name = "test"

    def __init__(self) -> None:
        self.runs = 0
        self.began = asyncio.Event()

    def wanted(self) -> list[LinkSpec]:
        return [LinkSpec(LinkKey(self.name, "/", "l"), None, CATALOG_GROUP, 0.0, self._run)]

    async def _run(self, link: Link) -> None:
        self.runs += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fails_at_its_end())
            self.began.set()

    async def _fails_at_its_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the queue is gone there")


@pytest.mark.virtual_time
async def test_a_link_that_fails_when_it_is_told_to_end_is_not_begun_again():
    cluster = SimpleNamespace(
        node=NodeId("n1"),
        on_role=[],
        catalog=SimpleNamespace(applied_index=1, on_next=[]),
        leader_of=lambda _: NodeId("n1"),
        now_ms=lambda: 0,
    )
    kind = Kind()
    peer_rpc = SimpleNamespace(on=lambda *_: None)
    links = LinkSupervisor(cast(Any, cluster), cast(Any, peer_rpc), tasks := Tasks())
    links.add(kind)
    tasks.start(links.run(), name="links")
    await kind.began.wait()

    await links.stop()

    assert (kind.runs, links.here()[0].failures) == (1, 0)
    await tasks.stop()
