"""Changes of members that take a while: asked for at any node, and watched until they are done.

They go on in the cluster, whether anybody watches or not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quorate.cli.api import Cluster
from quorate.cli.output import (
    EXIT_INTERRUPTED,
    CommandError,
    addresses,
    login,
    plain_terminal,
    run_async,
    say,
    stderr,
)
from quorate.credentials import normal_url
from quorate.errors import OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from quorate.management import Management

Row = dict[str, Any]
Result = TypeVar("Result")

#: A node that does not answer within this is left for the next one. It waits 5 s for others itself.
ANSWER_S_MAX = 8.0
LOOK_S = 0.3
#: Without a terminal a line is written when a group is done, and else this often.
LINE_S = 10.0
GROUPS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class View:
    """The members of a cluster, as one of its nodes tells."""

    nodes: list[Row] = field(default_factory=list[Row])
    groups: list[Row] = field(default_factory=list[Row])  # the catalog first

    def node(self, name: str) -> Row | None:
        return next((row for row in self.nodes if row["name"] == name), None)

    def group(self, name: str) -> Row | None:
        return next((row for row in self.groups if row["name"] == name), None)

    @property
    def down(self) -> set[str]:
        return {row["name"] for row in self.nodes if not row["running"]}

    @property
    def moving(self) -> list[Row]:
        return [row for row in self.groups if row["moving"]]

    @property
    def copies(self) -> str:
        return ", ".join(f"{row['name']} {row['copies']}" for row in self.nodes)


class Anybody:
    """Asks whichever node answers, also when the one that was asked goes away. Only for what may be
    asked twice.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._urls = addresses(cluster.url)
        self._patience_s = cluster.timeout
        self._heard = False  # somebody answered: who is silent now may come back

    async def ask(self, work: Callable[[Management], Awaitable[Result]]) -> Result:
        from quorate.management import Management

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        for tried in itertools.count(1):
            try:
                api = Management(
                    self._urls,
                    user=login.user,
                    password=login.password,
                    timeout_s=ANSWER_S_MAX,
                    tls=login.tls(),
                )
            except ValueError as error:
                raise CommandError(str(error), 2) from error
            try:
                async with api:
                    result = await work(api)
                self._heard = True
                return result
            except (Unreachable, OutcomeUnknown):
                hopeless = not self._heard and tried >= len(self._urls)
                if hopeless or loop.time() > deadline_s:
                    raise
            self._urls.append(self._urls.pop(0))
            await asyncio.sleep(LOOK_S)
        raise AssertionError("it counts for ever")

    async def view(self) -> View:
        async def look(api: Management) -> View:
            # Groups first: when none of them moves any more, nodes hold what they will hold.
            groups = await api.all("groups")
            return View(await api.all("nodes"), groups)

        view = await self.ask(look)
        self._learn(view)
        return view

    def _learn(self, view: View) -> None:
        """The nodes that were named to us may be the ones that leave. A password that was meant for
        TLS goes nowhere else.
        """
        given = [normal_url(url) for url in self._urls]
        scheme = "https" if any(url.startswith("https://") for url in given) else "http"
        known = {url.partition("://")[2].rpartition("@")[2] for url in given}
        for row in view.nodes:
            address = row["addresses"].get(scheme)
            if address is not None and address not in known:
                self._urls.append(f"{scheme}://{address}")


# --- what is said while it lasts ------------------------------------------------------------------


def word_of(row: Row, down: Collection[str]) -> str:
    """What a group that moves waits for."""
    lag, last = row["lag"], row["last"]
    if not row["leader"]:
        return f"{row['name']}: has no leader now"
    for node in row["learners"]:
        if node in down:
            return f"{row['name']}: waits for {node}, which is down"
        if node in lag and last is not None:
            return f"{row['name']}: {node} has {last - lag[node]:,} of {last:,} entries"
        return f"{row['name']}: {node} learns"
    coming = sorted(set(row["members"]) - set(row["voters"]))
    if coming:
        return f"{row['name']}: {coming[0]} is next"
    going = sorted({*row["voters"], *row["held"]} - set(row["members"]))
    return (
        f"{row['name']}: without {', '.join(going)} next" if going else f"{row['name']}: at its end"
    )


class Progress:
    """On standard error: a bar and a line for each group on its way, or now and then a line."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._said: tuple[int, int] | None = None
        self._said_s = 0.0
        self._live: Any = None
        if not plain_terminal():
            from rich.live import Live

            self._live = Live(console=stderr(), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: View, waits: str) -> None:
        """`waits`: what is waited for when no group moves."""
        moving = view.moving
        self._seen.update(row["name"] for row in moving)
        total = len(self._seen)
        done = total - len(moving)
        words = [word_of(row, view.down) for row in moving] or [waits]
        if self._live is not None:
            self._live.update(_picture(done, total, words), refresh=True)
            return
        now_s = asyncio.get_running_loop().time()
        if (done, total) != self._said or now_s - self._said_s >= LINE_S:
            self._said, self._said_s = (done, total), now_s
            counted = f"{done} of {total} groups done; " if total else ""
            more = f"; and {len(words) - 1} more" if len(words) > 1 else ""
            say(f"{counted}{words[0]}{more}")


def _picture(done: int, total: int, words: list[str]) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines = [Text(f"  {word}") for word in words[:GROUPS_SHOWN]]
    if len(words) > GROUPS_SHOWN:
        lines.append(Text(f"  and {len(words) - GROUPS_SHOWN} more"))
    if not total:
        return Group(*lines)
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=total, completed=done, width=40)
    head.add_row(bar, Text(f"{done} of {total} groups done"))
    return Group(head, *lines)


async def until(anybody: Anybody, done: Callable[[View], bool], waits: str) -> View:
    with Progress() as progress:
        while True:
            view = await anybody.view()
            if done(view):
                return view
            progress.show(view, waits)
            await asyncio.sleep(LOOK_S)


@dataclass(slots=True)
class Stage:
    """What is true when somebody interrupts."""

    words: str = "nothing was changed"


def watched(work: Coroutine[Any, Any, int], stage: Stage) -> int:
    try:
        return run_async(work)
    except KeyboardInterrupt:
        say(f"interrupted: {stage.words}")
        return EXIT_INTERRUPTED
