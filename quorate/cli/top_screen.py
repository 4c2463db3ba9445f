"""What `quorate top` shows: once, or on a whole terminal until somebody quits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from quorate.cli.asking import counted
from quorate.cli.tables import Row, printable
from quorate.cli.top_board import ORDERS, REFRESH_S, Asked, Board, Moved
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from quorate.management import Management

#: Lines of the screen that are neither nodes nor queues: totals, heads, keys, and space.
FIXED_LINES: Final = 8
#: Of findings and of nodes, of which a large cluster has more than there is room for.
FINDINGS_MAX: Final = 2
NODES_SHARE: Final = 0.3
QUEUES_MIN: Final = 3
#: Characters of a name on a narrow terminal, where other columns give way.
NAME_MIN: Final = 12
#: Of a terminal without a size.
LINES_MIN: Final = 12
BUSY: Final = 0.8
#: A cluster that takes long to answer, such as one of very many queues, is asked less often: it
#: rests so many times as long as it took.
REST: Final = 9
#: Of what is typed or pasted at once.
KEYS_BYTES_MAX: Final = 1_024
#: What terminals send: for an arrow, say, three characters at once.
_NEXT, _PREVIOUS = ("n", "\x1b[B", "\x1b[6~"), ("p", "\x1b[A", "\x1b[5~")
_ESCAPE, _ENTER, _BACKSPACE = "\x1b", ("\r", "\n"), ("\x7f", "\b")
_END = ("\x03", "\x04")
_NODE_HEADS: Final = (
    *("node", "state", "leads", "cpu", "memory", "disk-free", "fsync", "lag", "clients"),
)
_KEYS: Final = "q quit  s sort  r turn  / filter  n p page  space pause"


# --- numbers --------------------------------------------------------------------------------------


def short(count: float) -> str:
    """In at most five characters: 999, 12.3k, 4.56M."""
    if count < 1_000:
        return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
    for unit in "kMGT":
        count /= 1_000
        if count < 999.5:
            return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f}{unit}"
    return f"{count / 1_000:.0f}P"


def span(ms: float) -> str:
    """The two largest units of a time."""
    if ms < 1_000:
        return f"{ms / 1000:.1f}s" if ms >= 100 else ""
    seconds = int(ms / 1000)
    for unit, of, smaller, size in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60)):
        if seconds >= of:
            return f"{seconds // of}{unit}{seconds % of // size:02}{smaller}"
    return f"{seconds // 60}m{seconds % 60:02}s" if seconds >= 60 else f"{seconds}s"


def rate(row: Mapping[str, Any], what: str) -> float:
    stats: Mapping[str, Any] = row.get("message_stats") or {}
    return _rate_in(stats, what)


def _rate_in(row: Mapping[str, Any], what: str) -> float:
    details: Mapping[str, float] = row.get(f"{what}_details") or {}
    return details.get("rate") or 0.0


# --- the parts ------------------------------------------------------------------------------------


def _head(board: Board, *, paused: bool) -> list[Text]:
    overview = board.overview
    objects: Row = overview.get("object_totals") or {}
    totals: Row = overview.get("queue_totals") or {}
    nodes = board.nodes or ()
    up = sum(1 for row in nodes if row["running"])
    first = Text(no_wrap=True, overflow="ellipsis")
    first.append(printable(str(overview.get("cluster_name", "?"))), style="bold")
    if nodes:
        first.append(f"  {up} of {len(nodes)} nodes", style="" if up == len(nodes) else "bold red")
    if board.leaders:
        first.append(f"  {len(board.leaders)} groups")
        if board.leaderless:
            first.append(f", {board.leaderless} without a leader", style="bold red")
        if board.moving:
            first.append(f", {board.moving} on the move", style="yellow")
    for name in ("queues", "connections", "consumers"):
        first.append(f"  {objects.get(name, 0):,} {name}")
    if paused:
        first.append("  paused", style="reverse")
    second = Text(no_wrap=True, overflow="ellipsis")
    for word, what in (("in", "publish"), ("out", "deliver_get"), ("acked", "ack")):
        second.append(f"{word} ", style="dim").append(f"{rate(overview, what):,.0f}/s   ")
    for word, what in (("ready", "messages_ready"), ("unacked", "messages_unacknowledged")):
        second.append(f"{word} ", style="dim").append(f"{totals.get(what, 0):,}   ")
    if board.findings:
        bad = any(each["level"] == "problem" for each in board.findings)
        words = counted(len(board.findings), "finding")
        second.append(words, style="bold red" if bad else "yellow")
    return [first, second]


def _events(board: Board) -> list[Text]:
    """What needs attention, problems first, and who leads since a short time."""
    lines: list[Text] = []
    if board.error:
        lines.append(Text(f"✗ {printable(board.error)}", style="bold red"))
    for each in board.findings[: FINDINGS_MAX - len(lines)]:
        sign, style = ("✗", "red") if each["level"] == "problem" else ("!", "yellow")
        lines.append(Text(f"{sign} {printable(each['what'])}", style=style))
    if board.moved:
        lines.append(_moves(list(board.moved)))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _moves(moved: Sequence[Moved]) -> Text:
    now_s = time.monotonic()
    said = [
        f"{each.group} {each.before or 'none'}→{each.after or 'none'} {now_s - each.at_s:.0f}s ago"
        for each in reversed(moved)
    ]
    return Text(f"→ leaders: {printable(', '.join(said))}", style="cyan")


def _nodes(board: Board, room: int) -> RenderableType | None:
    """In so many lines below the head. Those that are down first, when not all fit."""
    if not board.nodes:
        return None
    rows = sorted(board.nodes, key=lambda row: (row["running"], row["name"]))
    more = 0
    if len(rows) <= room:
        rows.sort(key=lambda row: row["name"])
    elif room > 1:
        more = len(rows) - (room - 1)
    table = _table(*_NODE_HEADS)
    leads: dict[str | None, int] = {}
    for leader in (board.leaders or {}).values():
        leads[leader] = leads.get(leader, 0) + 1
    for row in rows[: len(rows) - more][:room]:
        table.add_row(*_node(row, leads.get(row["name"], 0)))
    if more:
        table.caption = f"and {more} more nodes"
    return table


def _node(row: Row, leads: int) -> list[Text]:
    name = Text(printable(row["name"]), style="bold")
    if not row["running"]:
        return [name, Text("down", style="bold red"), *[Text("-", style="dim")] * 7]
    state = str(row.get("state", "member"))
    drained = row.get("being_drained")
    said = Text("drained", style="yellow") if drained else Text("up", style="green")
    if state != "member":
        said = Text(state, style="yellow")
    cpu = _rate_in(row, "cpu_ms") / 1000
    used, limit = row.get("mem_used", 0), row.get("mem_limit") or 0
    share = used / limit if limit else 0.0
    memory = Text(f"{short(used)}B {share:.0%}", style=_of_share(share, row.get("mem_alarm")))
    free = Text(f"{short(row.get('disk_free', 0))}B")
    free.style = "bold red" if row.get("disk_free_alarm") else ""
    return [
        name,
        said,
        Text(str(leads)),
        Text(f"{cpu:.0%}", style=_of_share(cpu, False)),
        memory,
        free,
        Text(f"{row.get('fsync_ms', 0):.1f} ms"),
        Text(f"{row.get('loop_lag_ms', 0):.1f} ms"),
        Text(str(row.get("sockets_used", 0))),
    ]


def _of_share(share: float, alarm: Any) -> str:
    return "bold red" if alarm else "yellow" if share >= BUSY else ""


def _queues(board: Board, asked: Asked) -> RenderableType:
    page = board.queues
    items: Sequence[Row] = page.get("items", ())
    vhosts = {row["vhost"] for row in items} != {"/"} and bool(items)
    heads = ["queue", *(["vhost"] if vhosts else [])]
    heads += ["in/s", "out/s", "ready", "unacked", "oldest", "consumers", "leader"]
    table = _table(*heads, sorted_by=asked.order.name, up=asked.order.up != asked.turned)
    for row in items:
        table.add_row(*_queue(row, vhosts=vhosts))
    if not items:
        words = f"no queue has {asked.filter!r} in its name" if asked.filter else "no queues yet"
        return Text(words, style="dim")
    return table


def _queue(row: Row, *, vhosts: bool) -> list[Text]:
    name = Text(printable(row["name"]))
    where = [Text(printable(row["vhost"]), style="dim")] if vhosts else []
    if row.get("state") != "running":
        return [name, *where, *[Text("-", style="dim")] * 6, Text("none", style="bold red")]
    ready, unacked = row.get("messages_ready", 0), row.get("messages_unacknowledged", 0)
    consumers = row.get("consumers", 0)
    age_ms, slo_ms = row.get("oldest_ready_age") or 0, row.get("slo_oldest_age")
    late = slo_ms is not None and age_ms > slo_ms
    return [
        name,
        *where,
        *(_quiet(short(rate(row, what))) for what in ("publish", "deliver_get")),
        _quiet(short(ready)),
        _quiet(short(unacked)),
        Text(span(age_ms) or "-", style="bold red" if late else "" if ready else "dim"),
        Text(str(consumers), style="yellow" if ready and not consumers else ""),
        Text(printable(str(row.get("leader") or row.get("node") or "-")), style="dim"),
    ]


def _quiet(text: str) -> Text:
    return Text(text, style="dim" if text == "0" else "")


def _table(*heads: str, sorted_by: str = "", up: bool = False) -> Table:
    """No lines: what is shown is many rows of few words."""
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0))
    texts = {"queue", "vhost", "node", "state", "leader"}
    for head in heads:
        is_sorted = head.removesuffix("/s") == sorted_by
        table.add_column(
            f"{head}{'▲' if up else '▼'}" if is_sorted else head,
            justify="left" if head in texts else "right",
            ratio=1 if head in ("queue", "node") else None,
            min_width=NAME_MIN if head in ("queue", "node") else None,
            no_wrap=True,
            overflow="ellipsis",
            header_style="bold reverse" if is_sorted else "bold",
        )
    return table


def _pages(board: Board, asked: Asked) -> str:
    page = board.queues
    found = page.get("filtered_count", 0)
    first = (page.get("page", 1) - 1) * asked.rows + 1 if found else 0
    shown = f"{first}-{first + len(page.get('items', ())) - 1} of {found}" if found else "0"
    return f"{shown} /{printable(asked.filter)}" if asked.filter else f"queues {shown}"


# --- once -----------------------------------------------------------------------------------------


def show_once(console: Console, board: Board, asked: Asked) -> None:
    """As wide as it needs on a pipe, where lines are whole."""
    parts: list[RenderableType] = [*_head(board, paused=False), *_events(board), Text()]
    if (nodes := _nodes(board, sys.maxsize)) is not None:
        parts += [nodes, Text()]
    parts += [_queues(board, asked), Text(_pages(board, asked), style="dim")]
    for part in parts:
        if isinstance(part, Table) and not console.is_terminal:
            part.expand = False
            for column in part.columns:
                column.min_width = None
        console.print(part)


# --- until somebody quits -------------------------------------------------------------------------


class Screen:
    """What is on the terminal, and what keys do to it."""

    def __init__(self, board: Board, asked: Asked) -> None:
        self.paused = False
        self.ended = False
        self.typing: str | None = None  # the filter that is being typed
        self._board = board
        self._asked = asked

    def picture(self, columns: int, lines: int) -> RenderableType:
        """Of this size, or less. Says how many queues are to be asked for from now on."""
        board, asked = self._board, self._asked
        events = _events(board)
        left = max(lines, LINES_MIN) - FIXED_LINES - len(events)
        nodes_max = max(1, min(left - QUEUES_MIN, max(3, int(left * NODES_SHARE))))
        nodes = _nodes(board, nodes_max)
        asked.rows = max(QUEUES_MIN, left - min(len(board.nodes or ()), nodes_max))
        parts: list[RenderableType] = [*_head(board, paused=self.paused), *events, Text()]
        if nodes is not None:
            parts += [nodes, Text()]
        parts += [_queues(board, asked), Text(), self._foot(columns)]
        return Group(*parts)

    def _foot(self, columns: int) -> Text:
        if self.typing is not None:
            return Text(f"filter: {printable(self.typing)}█  Enter  Esc", style="bold")
        foot = Text(_KEYS, style="dim", no_wrap=True, overflow="ellipsis")
        pages = _pages(self._board, self._asked)
        if (space := columns - len(_KEYS) - len(pages)) > 1:
            foot.append(" " * space + pages)
        return foot

    def pressed(self, keys: str) -> bool:
        """Whether other queues are asked for now. What a terminal sends for one key comes whole."""
        if self.typing is not None:
            return self._typed(keys)
        asked, pages = self._asked, self._board.queues.get("page_count", 1)
        if keys in ("q", "Q", *_END):
            self.ended = True
        elif keys == " ":
            self.paused = not self.paused
        elif keys == "/":
            self.typing = asked.filter
        elif keys in ("s", "S"):
            place = (ORDERS.index(asked.order) + (1 if keys == "s" else -1)) % len(ORDERS)
            asked.order, asked.turned, asked.page = ORDERS[place], False, 1
            return True
        elif keys == "r":
            asked.turned, asked.page = not asked.turned, 1
            return True
        elif keys in _NEXT and asked.page < pages:
            asked.page += 1
            return True
        elif keys in _PREVIOUS and asked.page > 1:
            asked.page -= 1
            return True
        elif keys == _ESCAPE and asked.filter:
            asked.filter, asked.page = "", 1
            return True
        return False

    def _typed(self, keys: str) -> bool:
        asked, typed = self._asked, self.typing or ""
        if keys == _ESCAPE:
            self.typing = None
        elif keys in _END:
            self.ended = True
        elif keys in _ENTER:
            asked.filter, asked.page, self.typing = typed, 1, None
            return True
        elif keys in _BACKSPACE:
            self.typing = typed[:-1]
        else:
            self.typing = typed + "".join(each for each in keys if each.isprintable())
        return False


async def show_live(api: Management, board: Board, asked: Asked) -> int:
    """A key is answered at once, whatever the cluster does. Raises what the first look raises."""
    from rich.live import Live

    screen, console, loop = Screen(board, asked), Console(), asyncio.get_running_loop()
    asked.rows = max(QUEUES_MIN, console.size.height - FIXED_LINES - 4)
    await board.look(api, asked)
    news = asyncio.Event()
    wanted = False

    def read() -> None:
        nonlocal wanted
        keys = os.read(sys.stdin.fileno(), KEYS_BYTES_MAX).decode("utf-8", "replace")
        if not keys:
            screen.ended = True  # the terminal is gone
        for each in [keys] if keys.startswith(_ESCAPE) else keys:
            wanted |= screen.pressed(each)
        news.set()

    looking: asyncio.Task[None] | None = None
    due_s = asked_s = loop.time() + REFRESH_S
    with _one_by_one(read, news), Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.ended:
            live.update(screen.picture(*console.size), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if looking else due_s):
                    await news.wait()
            news.clear()
            if looking is not None and looking.done():
                if isinstance(error := looking.exception(), QuorateError):
                    board.error = str(error)
                elif error is not None:
                    raise error
                took_s = loop.time() - asked_s
                looking, due_s = None, loop.time() + max(REFRESH_S, took_s * REST)
            if looking is None and (wanted or (loop.time() >= due_s and not screen.paused)):
                wanted, asked_s = False, loop.time()
                looking = asyncio.create_task(board.look(api, asked), name="look")
                looking.add_done_callback(lambda _: news.set())
            elif screen.paused:
                due_s = loop.time() + REFRESH_S
    if looking is not None:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return 0


@contextmanager
def _one_by_one(read: Any, news: asyncio.Event) -> Generator[None]:
    """Keys come as they are pressed, and are not shown; the terminal is as before afterwards."""
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    loop.add_signal_handler(signal.SIGWINCH, news.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
