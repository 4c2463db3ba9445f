"""A page like `performance.md` and its pictures, made of the results of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, NullFormatter

from chaos.report.canvas import GRID, draw, numbers
from tests.acceptance.bench.compare.rows import (
    FIGURES,
    QUORATE,
    TABLES,
    TITLES,
    UNITS,
    Row,
    Summary,
    Table,
    Target,
    figure,
    measured,
)
from tests.acceptance.bench.measure import NOISY_PERCENT, percentile
from tests.acceptance.bench.page import filled, host_of, markdown

MET, MISSED = "✅", "❌"
COLOURS = {True: "#009E73", False: "#D55E00"}
BROKER_COLOURS = {
    "quorate": "#0072B2",
    "rabbitmq": "#E69F00",
    "nats": "#56B4E9",
    "nats-sync": "#999999",
}
Document = dict[str, Any]


def write(document: Document, folder: Path) -> None:
    """The table's page in the folder; the results and pictures in a folder of its name there."""
    name = _table_of(document).name
    pictures = folder / name
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / f"{name}.md").write_text(text_of(document))
    _draw_ratios(document, pictures / "ratios.png")
    _draw_figures(document, pictures / "figures.png")


def text_of(document: Document) -> str:
    parts = {
        "origin": _origin(document),
        "targets": _table(document),
        "others": _others(document),
        "fsyncs": _fsyncs(document),
    }
    return filled(Path(__file__).with_name(f"{_table_of(document).name}.md"), parts)


def _table_of(document: Document) -> Table:
    return TABLES[document.get("table", "performance")]


def verdicts(document: Document) -> Iterator[tuple[Row, Target, Summary]]:
    """Every target that was measured."""
    for row in _table_of(document).rows:
        for target in row.targets:
            if (value := measured(document["runs"], row, target)) is not None:
                yield row, target, value


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def spread(summary: Summary | None, unit: str = "") -> str:
    if summary is None:
        return "–"
    text = f"{number(summary.median)}{unit}"
    if summary.least == summary.most:
        return text
    return f"{text} ({number(summary.least)} – {number(summary.most)})"


def _origin(document: Document) -> str:
    brokers = document["brokers"]
    rounds = f"{document['rounds']} round" + "s" * (document["rounds"] != 1)
    short = " of short runs (`QUICK=1`)" if document["quick"] else ""
    minutes = f"{document['minutes']:.0f} minutes"
    lines = [
        f"{document['date']}, commit `{document['commit']}`: {rounds}{short}, {minutes}.",
        host_of(document["machine"]),
        ", ".join(f"{TITLES[name]} {version}" for name, version in brokers.items()) + ".",
        *_load(document),
        *document["notes"],
    ]
    return "\n".join(f"- {line}" for line in lines)


def _load(document: Document) -> list[str]:
    """What others took of the machine."""
    figures = [run["figures"] for run in document["runs"]]
    others = [each["others_percent"] for each in figures if "others_percent" in each]
    if not others:
        return []
    noisy = sum(each > NOISY_PERCENT for each in others)
    text = f"Others took {percentile(others, 50):.0f} % of the machine in the median run"
    text += f", and over {NOISY_PERCENT:.0f} % in {noisy} of {len(others)} runs."
    if noisy > len(others) / 2:
        text += " **So the machine was shared: take rates and latencies as rough, and ratios too.**"
    return [text]


def _table(document: Document) -> str:
    headings = ("workload", "figure", "Quorate", "peer", "ratio", "target", "")
    lines: list[Sequence[str]] = []
    before, met = None, 0
    for row, target, value in verdicts(document):
        ours = figure(document["runs"], row, QUORATE, target.figure)
        theirs = ""
        if target.peer is not None:
            peer = figure(document["runs"], row, target.peer, target.figure)
            theirs = f"{TITLES[target.peer]} {spread(peer, UNITS[target.figure])}"
        met += target.met(value.median)
        cells = (
            row.title if row is not before else "",
            FIGURES[target.figure],
            spread(ours, UNITS[target.figure]),
            theirs,
            f"**{spread(value, 'x')}**" if target.peer else "",
            target.text,
            MET if target.met(value.median) else MISSED,
        )
        lines.append(cells)
        before = row
    table = markdown(headings, lines)
    return f"{table}\n\n{met} of {len(lines)} targets that were measured are met."


def _others(document: Document) -> str:
    """All figures of all brokers."""
    headings = ("workload", "broker", "rate /s", "p50 ms", "p99 ms", "CPU us a message")
    lines: list[Sequence[str]] = []
    for row in _table_of(document).rows:
        title = row.title
        for broker in row.runs:
            found = [
                figure(document["runs"], row, broker, n)
                for n in ("rate", "p50_ms", "p99_ms", "cpu_us")
            ]
            if not any(found):
                continue
            lines.append([title, TITLES[broker], *map(spread, found)])
            title = ""
    return markdown(headings, lines)


def _fsyncs(document: Document) -> str:
    if not document.get("fsyncs"):
        return "Not counted in this run: `strace` was not there."
    headings = ("workload", "broker", "messages", "fsyncs of the three nodes", "messages for one")
    lines: list[Sequence[str]] = []
    titles, before = {row.name: row.title for row in _table_of(document).rows}, ""
    for each in document["fsyncs"]:
        total = sum(each["by_node"])
        by_node = " + ".join(f"{count:,}" for count in each["by_node"])
        share = number(each["messages"] / total) if total else "never"
        title = titles[each["row"]] if each["row"] != before else ""
        before = each["row"]
        cells = (title, TITLES[each["broker"]], f"{each['messages']:,}")
        lines.append((*cells, by_node, share))
    return markdown(headings, lines)


def _draw_ratios(document: Document, path: Path) -> None:
    shown = [each for each in verdicts(document) if each[1].peer is not None]
    if not shown:
        return

    def content(picture: Any) -> None:
        axes = picture.subplots()
        for place, (_, target, value) in enumerate(reversed(shown)):
            colour = COLOURS[target.met(value.median)]
            axes.plot([value.least, value.most], [place, place], color=colour, linewidth=2)
            axes.plot(value.median, place, "o", color=colour)
            axes.plot(target.bound, place, "|", color="black", markersize=14)
            axes.annotate(
                " →" if target.at_least else "← ",
                (target.bound, place),
                ha="left" if target.at_least else "right",
                va="center",
            )
        labels = [
            f"{row.name}: {FIGURES[target.figure]} to {TITLES[target.peer or QUORATE]}"
            for row, target, _ in reversed(shown)
        ]
        axes.set_yticks(range(len(shown)), labels)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(numbers("{:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.axvline(1, color="#555555", linewidth=0.8)
        axes.grid(axis="x", which="both", **GRID)
        axes.set_axisbelow(True)
        axes.set_title("Quorate by its peer: median and range; |: the target and its good side")

    draw(path, (9, 1 + 0.32 * len(shown)), content)


def _draw_figures(document: Document, path: Path) -> None:
    panels = [
        ("rate", "messages a second"),
        ("p50_ms", "p50, ms"),
        ("cpu_us", "CPU of the nodes, us a message"),
    ]
    rows = [
        row for row in _table_of(document).rows if figure(document["runs"], row, QUORATE, "cpu_us")
    ]
    if not rows:
        return

    def content(picture: Any) -> None:
        every = picture.subplots(1, len(panels), sharey=True)
        for axes, (name, title) in zip(every, panels, strict=True):
            for place, row in enumerate(reversed(rows)):
                for index, broker in enumerate(row.runs):
                    if (value := figure(document["runs"], row, broker, name)) is not None:
                        at, colour = place + 0.15 - 0.15 * index, BROKER_COLOURS[broker]
                        axes.plot([value.least, value.most], [at, at], color=colour, linewidth=2)
                        axes.plot(value.median, at, "o", color=colour, markersize=5)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator())
            axes.xaxis.set_major_formatter(numbers("{:,g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_title(title)
            axes.grid(**GRID)
            axes.set_axisbelow(True)
        every[0].set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
        present = [name for name in BROKER_COLOURS if any(name in row.runs for row in rows)]
        handles = [every[0].plot([], [], "o", color=BROKER_COLOURS[name])[0] for name in present]
        titles = [TITLES[name] for name in present]
        picture.legend(handles, titles, loc="outside lower center", ncols=len(present))

    draw(path, (11, 1.4 + 0.42 * len(rows)), content)
