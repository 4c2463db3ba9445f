"""`scaling.md` and its picture, made of what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.ticker import LogLocator, NullFormatter

from chaos.report.canvas import GRID, draw, numbers
from tests.acceptance.bench.measure import NOISY_PERCENT, percentile
from tests.acceptance.bench.page import filled, host_of, markdown
from tests.acceptance.bench.scaling import sums

TEMPLATE = Path(__file__).with_name("scaling.md")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999")
Document = dict[str, Any]
Figures = Mapping[str, float]
#: Those of the table on the terminal.
FIGURES = {
    "rate": "msgs/s",
    "cpu_us": "CPU us",
    "idle_percent": "idle %",
    "rss_mb": "RSS MB",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "others_percent": "others %",
}


class Column(NamedTuple):
    heading: str
    figure: str
    series: str | None = None  # None: that of the row


class Sheet(NamedTuple):
    """A table: with `first`, a row for each place that the dimension was measured at; else one for
    each point, with its series.
    """

    first: str
    columns: Sequence[Column]
    series: Sequence[str] = ()  # rows of these alone
    long: bool = False


LOADED = (
    Column("messages/s", "rate"),
    Column("CPU, us a message", "cpu_us"),
    Column("confirm p50, ms", "p50_ms"),
    Column("p99, ms", "p99_ms"),
)
SHEETS: dict[str, Sheet] = {
    "messages": Sheet(
        "load",
        (
            *LOADED,
            Column("log, bytes a message, three copies", "log_bytes"),
            Column("fsyncs a message, three nodes", "syncs"),
        ),
        long=True,
    ),
    "size": Sheet(
        "size, bytes",
        (
            Column("messages/s", "rate"),
            Column("MB/s", "mb_s"),
            Column("CPU, us a message", "cpu_us"),
            Column("confirm p50, ms", "p50_ms"),
            Column("log, bytes a message, three copies", "log_bytes"),
        ),
    ),
    "queues": Sheet(
        "queues",
        (
            Column("declares/s", "declares", "idle"),
            Column("idle, % of a core a node", "idle_percent", "idle"),
            Column("RSS a node, MB", "rss_mb", "idle"),
            Column("more RSS a queue, kB", "more_rss_kb", "idle"),
            Column("load on all: messages/s", "rate", "load on all"),
            Column("CPU, us a message", "cpu_us", "load on all"),
            Column("load on 10: messages/s", "rate", "load on few"),
            Column("CPU, us a message", "cpu_us", "load on few"),
        ),
        ("idle",),
    ),
    "groups": Sheet(
        "groups",
        (
            Column("idle, % of a core a node", "idle_percent", "idle"),
            Column("RSS a node, MB", "rss_mb", "idle"),
            Column("load: messages/s", "rate", "81 queues"),
            Column("CPU, us a message", "cpu_us", "81 queues"),
            Column("p50, ms", "p50_ms", "81 queues"),
            Column("p99, ms", "p99_ms", "81 queues"),
        ),
        ("idle",),
    ),
    "consumers": Sheet(
        "consumers",
        (
            Column("of one queue: CPU, us a message", "cpu_us", "one queue"),
            Column("end to end p50, ms", "end_to_end_ms", "one queue"),
            Column("p99, ms", "end_to_end_p99_ms", "one queue"),
            Column("RSS, MB", "rss_mb", "one queue"),
            Column("a queue each: CPU, us a message", "cpu_us", "a queue each"),
            Column("end to end p50, ms", "end_to_end_ms", "a queue each"),
            Column("p99, ms", "end_to_end_p99_ms", "a queue each"),
        ),
        ("one queue",),
    ),
    "nodes": Sheet(
        "nodes",
        (
            Column("hosts", "hosts"),
            Column("idle, % of a core a node", "idle_percent"),
            Column("RSS a node, MB", "rss_mb"),
            Column("4,000/s: CPU of all, us a message", "cpu_us"),
            Column("of the busiest node", "busiest_us"),
            Column("p50, ms", "p50_ms"),
            Column("as fast as it goes: CPU of all", "cpu_us", "as fast as it goes"),
            Column("of the busiest node", "busiest_us", "as fast as it goes"),
            Column("messages/s", "rate", "as fast as it goes"),
        ),
        ("at a rate",),
    ),
    "roles": Sheet(
        "queues",
        (
            Column("messages/s", "rate"),
            Column("node of the client, us", "gateway_us"),
            Column("leader, us", "leader_us"),
            Column("each follower, us", "follower_us"),
            Column("confirm p50, ms", "p50_ms"),
        ),
        ("published", "published, consumed"),
        long=True,
    ),
    "backlog": Sheet(
        "messages kept",
        (
            Column("RSS a node, MB", "rss_mb"),
            Column("publish beside it: CPU, us a message", "cpu_us"),
            Column("p50, ms", "p50_ms"),
            Column("snapshot, MB", "snapshot_mb"),
            Column("its CPU, ms", "snapshot_cpu_ms"),
            Column("its longest step, ms", "snapshot_step_ms"),
            Column("loop stood still, ms", "still_ms"),
            Column("start, s", "restart_s"),
            Column("CPU of a start, s", "restart_cpu_s"),
        ),
    ),
}


class Panel(NamedTuple):
    dimension: str
    figure: str
    title: str
    series: Sequence[str] | None = None  # None: all
    log: bool = True


PANELS = (
    Panel("messages", "cpu_us", "CPU, us a message, by messages/s", ("varied",)),
    Panel("size", "cpu_us", "CPU, us a message, by bytes"),
    Panel("queues", "cpu_us", "CPU, us a message, by queues"),
    Panel("queues", "idle_percent", "idle, % of a core a node, by queues", log=False),
    Panel("groups", "idle_percent", "idle, % of a core a node, by groups", log=False),
    Panel("consumers", "cpu_us", "CPU, us a message, by consumers"),
    Panel(
        "nodes",
        "busiest_us",
        "busiest node, us a message, by nodes",
        ("as fast as it goes",),
        False,
    ),
    Panel("backlog", "rss_mb", "RSS a node, MB, by messages kept", log=False),
)


def write(document: Document, folder: Path) -> None:
    """`scaling.md` in the folder; results and picture in `scaling` there."""
    pictures = folder / "scaling"
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "scaling.md").write_text(text_of(document))
    _draw(document, pictures / "growth.png")


def text_of(document: Document) -> str:
    points = document["points"]
    parts = {
        "origin": _origin(document),
        **_facts(points),
        "loads": _loads(points),
        "plan": _plan(points),
        **{name: _sheet(points, name) for name in SHEETS},
    }
    return filled(TEMPLATE, parts)


def number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.{1 if abs(value) >= 10 else 2}f}"


def cells_of(figures: Figures, names: Mapping[str, str]) -> list[str]:
    return [number(figures[name]) if name in figures else "" for name in names]


def line_of(dimension: str, series: str, at: float, figures: Figures) -> str:
    said = ", ".join(
        f"{title} {number(figures[name])}" for name, title in FIGURES.items() if name in figures
    )
    return f"{dimension:10} {series:28} {at:>10,.0f}  {said}"


def _origin(document: Document) -> str:
    short = " of short points (`QUICK=1`)" if document["quick"] else ""
    others = [
        point["figures"]["others_percent"]
        for point in document["points"]
        if "others_percent" in point["figures"]
    ]
    run = (
        f"{document['date']}, commit `{document['commit']}`,"
        f" release {document['product']}: {document['minutes']:.0f} minutes{short}."
    )
    lines = [run, host_of(document["machine"]), *document["notes"]]
    if others:
        noisy = sum(each > NOISY_PERCENT for each in others)
        lines.append(
            f"Others took {percentile(others, 50):.0f} % of the machine in the median point, and"
            f" over {NOISY_PERCENT:.0f} % in {noisy} of {len(others)}."
        )
    return "\n".join(f"- {line}" for line in lines)


def _sheet(points: sums.Points, name: str) -> str:
    sheet = SHEETS[name]
    of_it = [point for point in points if point["dimension"] == name]
    rows: list[list[str]] = []
    for point in of_it:
        if sheet.series and point["series"] not in sheet.series:
            continue
        values = [
            sums.value([point], name, point["series"], column.figure)
            if column.series in (None, point["series"])
            else sums.value(of_it, name, column.series, column.figure, point["at"])
            for column in sheet.columns
        ]
        at = f"{point['at']:,.0f}"
        if sheet.long:
            at = point["series"] if name == "messages" else f"{at}, {point['series']}"
        others = [
            each["figures"]["others_percent"]
            for each in of_it
            if each is point or (not sheet.long and each["at"] == point["at"])
            if "others_percent" in each["figures"]
        ]
        rows.append([at, *map(number, values), f"{max(others, default=math.nan):.0f}"])
    if not rows:
        return "Not measured in this run."
    headings = [column.heading for column in sheet.columns]
    return markdown([sheet.first, *headings, "others, %"], rows).replace("nan", "–")


def _loads(points: sums.Points) -> str:
    found = sums.loads(points)
    if not found:
        return "Roles were not measured in this run."
    headings = ["at the cost of", "CPU of a message, us", "cores", "processes", "machines"]
    headings.append(f"{sums.MACHINES} machines bear, messages/s")
    rows: list[list[str]] = []
    for load in found:
        roles = load.roles
        cost = f"{roles.gateway_us:.0f} + {roles.leader_us:.0f}"
        cost += f" + {sums.COPIES - 1} x {roles.follower_us:.0f} = {roles.sum_us:.0f}"
        needs = map(number, (load.cores, load.processes, load.machines))
        rows.append([load.title, cost, *needs, f"{load.rate:,.0f}"])
    return markdown(headings, rows)


def _facts(points: sums.Points) -> dict[str, str]:
    """What the text says of the last of the loads, and of one queue."""
    found = [load for load in sums.loads(points) if load.title.endswith("consumed")]
    one, many = (found[0], found[-1]) if found else (None, None)
    return {
        "machines_many": f"{math.ceil(many.machines):,}" if many else "–",
        "rate_many": f"{round(many.rate, -4):,.0f}" if many else "–",
        "rate_one": f"{round(one.rate, -4):,.0f}" if one else "–",
    }


def _plan(points: sums.Points) -> str:
    rows = [[line.what, line.sum, line.result] for line in sums.plan(points)]
    return markdown(["what", "sum", "result"], rows).replace("nan", "–")


def _draw(document: Document, path: Path) -> None:
    def content(picture: Any) -> None:
        every = picture.subplots(2, len(PANELS) // 2).flat
        for axes, panel in zip(every, PANELS, strict=True):
            lines: dict[str, list[tuple[float, float]]] = {}
            for point in document["points"]:
                if point["dimension"] != panel.dimension or panel.figure not in point["figures"]:
                    continue
                if panel.series is None or point["series"] in panel.series:
                    place = (point["at"], point["figures"][panel.figure])
                    lines.setdefault(point["series"], []).append(place)
            for colour, (series, places) in zip(COLOURS, lines.items(), strict=False):
                at, values = zip(*sorted(places), strict=True)
                axes.plot(at, values, "o-", color=colour, markersize=4, label=series)
            if panel.dimension not in ("nodes", "backlog"):
                axes.set_xscale("log")
                axes.xaxis.set_minor_formatter(NullFormatter())
            if panel.log and lines:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_minor_formatter(NullFormatter())
            else:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(numbers("{:,.0f}"))
            axes.yaxis.set_major_formatter(numbers("{:,g}"))
            if panel.dimension in ("groups", "nodes", "backlog"):
                axes.set_xticks(sorted({place[0] for each in lines.values() for place in each}))
            axes.set_title(panel.title, fontsize=8)
            axes.grid(**GRID)
            if len(lines) > 1:
                axes.legend(fontsize=7)

    draw(path, (15, 6.5), content)
