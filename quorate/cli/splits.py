"""`quorate queue split` and `join`: one name, whose messages several queues share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.api import Commands, InVhost, Queue
from quorate.cli.backlogs import AGAIN_S, Moving, again, carry, missing
from quorate.cli.output import CommandError
from quorate.cli.tables import Row
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.management import Management

split_app = Commands()


@split_app.command("split")
def queue_split(
    cluster: InVhost,
    queue: Queue,
    shards: Annotated[
        int, typer.Option("--shards", min=2, max=64, help="Queues that share its messages.")
    ] = 3,
) -> int:
    """Let several queues, led by different nodes, share the messages of one; its name stays what
    publishers and consumers use. To be run again when it was cut off.
    """

    async def split(api: Management) -> Row:
        made = await again(
            lambda: api.post("queues", cluster.vhost, queue, "split", body={"shards": shards}),
            cluster.timeout,
        )
        moving = Moving(cluster, queue, None, {}, how="split")
        return {**made, **await carry(api, moving, shown=not cluster.as_json)}

    found = cluster.api(split, missing=missing(queue))
    words = f"queue {queue}: split over {', '.join(found['shards'])}; {found['done']:,} messages"
    words += " that waited were moved"
    if found["full"]:
        words += (
            f"; {found['full']} is full: the rest waits in {queue}, and is delivered from there"
        )
    return cluster.done(words, **found)


@split_app.command("join")
def queue_join(cluster: InVhost, queue: Queue) -> int:
    """Make one queue again of one that was split. To be run again when it was cut off."""
    found = cluster.api(
        lambda api: _join(api, cluster, queue),
        missing=missing(queue),
    )
    words = f"queue {queue}: one queue again; {found['done']:,} messages came back"
    return cluster.done(words, **found)


async def _join(api: Management, cluster: InVhost, queue: str) -> Row:
    """What is done is not done again, however often this begins."""
    total: Row = {"done": 0, "removed": []}
    while True:
        left = await again(
            lambda: api.post("queues", cluster.vhost, queue, "join", body={}), cluster.timeout
        )
        if not left["shards"]:
            return total
        for shard in left["shards"]:
            await _empty(api, cluster, shard, queue, total)
            total["removed"].append(shard)


async def _empty(api: Management, cluster: InVhost, shard: str, queue: str, total: Row) -> None:
    """Until nothing is left in it, also with its consumers; then it goes."""
    moving = Moving(cluster, shard, queue, {}, until_empty=True)
    deadline_s = time.monotonic() + cluster.timeout
    while True:
        moved = await carry(api, moving, shown=not cluster.as_json)
        total["done"] += moved["done"]
        if moved["done"]:
            deadline_s = time.monotonic() + cluster.timeout
        try:
            await again(
                lambda: api.delete("queues", cluster.vhost, shard, **{"if-empty": "true"}),
                cluster.timeout,
            )
        except Refused as refused:
            if refused.code == "not_found":
                return
            if time.monotonic() > deadline_s:
                raise CommandError(
                    f"queue {queue}: {shard} is not empty: {refused.reason}\n"
                    "  next: consumers hold messages of it; when they have settled, run it again"
                ) from refused
        else:
            return
        await asyncio.sleep(AGAIN_S)
