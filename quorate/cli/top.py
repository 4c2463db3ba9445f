"""`quorate top`: how a cluster is, now and from now on."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.cli.api import Cluster
from quorate.cli.output import emit, stdout
from quorate.cli.top_board import Asked, Board, order_named
from quorate.cli.top_screen import show_live, show_once

if TYPE_CHECKING:
    from quorate.management import Management


def run_top(cluster: Cluster, *, once: bool, sort: str | None, text: str | None) -> int:
    """Until somebody quits, if there is a terminal on both ends."""
    asked = Asked(filter=text or "")
    if sort is not None:
        asked.order, asked.turned = order_named(sort)
    live = sys.stdin.isatty() and sys.stdout.isatty() and not (once or cluster.as_json)

    async def work(api: Management) -> int:
        board = Board()
        if live:
            return await show_live(api, board, asked)
        await board.look(api, asked)
        if cluster.as_json:
            emit(board.as_json())
        else:
            show_once(stdout(), board, asked)
        return 0

    return replace(cluster, timeout=cluster.timeout / 2).api(work)
