"""One run as a picture: what befell the nodes, and under it what clients saw, on one time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from chaos.report.canvas import GRID, OTHER_COLOUR, PROTOCOL_COLOURS, colour_of, draw, numbers
from chaos.report.series import WINDOW_S, Fault, Series, Span, protocol_of

#: Groups and gap lanes beyond these are left out of the picture, and it says so.
GROUPS_SHOWN_MAX = 24
LANE_INCHES = 0.2
#: A log axis has no zero.
LATENCY_MS_MIN = 0.05
#: From here on a gap has its full colour; shorter ones are paler.
GAP_S_LONG = 2.0
WIDTH_INCHES = 16.0

#: Colour-blind safe (Okabe and Ito), for nodes.
NODE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
#: What a fault touches.
FAULT_COLOURS = {
    "process": "#D55E00",
    "network": "#0072B2",
    "disk": "#009E73",
    "power": "#000000",
    "data": "#CC79A7",
    "clock": "#E69F00",
}
_KINDS = (
    ("power", ("power",)),
    ("data", ("wipe", "restore", "damage", "flip", "truncate", "copy", "rot", "bit", "cut_end")),
    ("clock", ("clock", "skew")),
    ("disk", ("disk", "fsync", "sync")),
    ("network", ("partition", "isolat", "deafen", "silence", "ring", "bridge", "half", "degrade",
                 "weather", "delay", "loss", "slow link", "client", "network", "cut", "reset")),
)  # fmt: skip
GAP_COLOUR = "#B22222"


def family_of(kind: str) -> str:
    """What a fault of this kind touches, for its colour."""
    for family, words in _KINDS:
        if any(word in kind.lower() for word in words):
            return family
    return "process"


def draw_timeline(series: Series, path: Path, *, title: str, good: bool) -> None:
    kinds = list(dict.fromkeys(fault.kind for fault in series.faults))
    groups = _groups(series)
    lanes = [name for name in series.gaps if series.gaps[name]]
    heights = [
        max(len(kinds), 1) * LANE_INCHES + 0.15,
        2.3,
        2.0,
        2.2,
        max(len(lanes), 1) * LANE_INCHES + 0.15,
        max(len(groups), 1) * LANE_INCHES + 0.15,
    ]

    def content(figure: Any) -> None:
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        figure.suptitle(
            title, fontsize=13, fontweight="bold", color="#116611" if good else "#B22222"
        )
        _draw_faults(axes[0], series, kinds)
        _draw_rates(axes[1], series, series.confirmed, "confirmed publishes", legend=True)
        _draw_rates(axes[2], series, series.delivered, "deliveries", legend=False)
        _draw_latencies(axes[3], series)
        _draw_gaps(axes[4], series, lanes)
        _draw_leaders(axes[5], series, groups)
        for axis in axes[1:]:
            _shade(axis, series.faults)
        for axis in axes:
            _mark(axis, series)
        axes[0].annotate("load ends", (series.load_end_s, 1), (3, 2), xycoords=("data",
                         "axes fraction"), textcoords="offset points", fontsize=7)  # fmt: skip
        axes[-1].set_xlabel("seconds since the run began")
        axes[-1].set_xlim(0, max(series.seconds, 1.0))
        axes[-1].xaxis.set_major_locator(MaxNLocator(20))

    draw(path, (WIDTH_INCHES, sum(heights) + 0.42 * len(heights) + 0.9), content)


def _beside(axis: Any, handles: Any, title: str | None = None) -> None:
    if handles:
        columns = math.ceil(len(handles) / 11)
        axis.legend(
            handles=handles,
            title=title,
            loc="upper left",
            bbox_to_anchor=(1.005, 1.03),
            borderaxespad=0,
            frameon=False,
            fontsize=8,
            title_fontsize=8,
            ncols=columns,
            columnspacing=0.8,
            handlelength=1.2,
            labelspacing=0.3,
        )


def _lanes(axis: Any, labels: Sequence[str], title: str) -> None:
    axis.set_title(title, loc="left")
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axis.grid(visible=True, axis="x", **GRID)
    axis.set_axisbelow(True)


def _shade(axis: Any, faults: Sequence[Fault]) -> None:
    """The time of any fault is grey."""
    for start_s, end_s in _union([fault.span for fault in faults]):
        axis.axvspan(start_s, end_s, color="#000000", alpha=0.06, linewidth=0, zorder=0)


def _mark(axis: Any, series: Series) -> None:
    axis.axvline(series.load_end_s, color="#333333", linestyle=(0, (4, 3)), linewidth=0.8)


def _union(spans: Sequence[Span]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if found and span.start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], span.end_s))
        else:
            found.append((span.start_s, span.end_s))
    return found


def _draw_faults(axis: Any, series: Series, kinds: list[str]) -> None:
    _lanes(axis, kinds, "faults (and the nodes that they befell)" if kinds else "no faults")
    width_s = max(series.seconds, 1.0)
    for lane, kind in enumerate(kinds):
        colour = FAULT_COLOURS[family_of(kind)]
        mine = [fault for fault in series.faults if fault.kind == kind]
        for place, fault in enumerate(mine):
            span = fault.span
            # An instant is seen too.
            shown_s = max(span.seconds, width_s * 0.0025)
            axis.barh(lane, shown_s, left=span.start_s, height=0.7, color=colour, alpha=0.75)
            until_s = mine[place + 1].span.start_s if place + 1 < len(mine) else width_s
            names = " ".join(node.rpartition("-")[2] for node in fault.nodes)
            _label(axis, lane, (span.start_s, span.start_s + shown_s), until_s, names, width_s)
    used = {family_of(kind) for kind in kinds}
    _beside(axis, [Patch(color=c, alpha=0.75, label=f) for f, c in FAULT_COLOURS.items()
                   if f in used])  # fmt: skip


def _label(
    axis: Any, lane: int, bar: tuple[float, float], until_s: float, text: str, width_s: float
) -> None:
    """Inside its bar, else behind it where there is room, else nowhere."""
    start_s, end_s = bar
    room_s = (len(text) + 1) * width_s * 0.0052
    if text and end_s - start_s >= room_s:
        axis.text((start_s + end_s) / 2, lane, text, ha="center", va="center", fontsize=7,
                  color="white")  # fmt: skip
    elif text and until_s - end_s >= room_s:
        axis.text(end_s + width_s * 0.002, lane, text, va="center", fontsize=7)


def _draw_rates(
    axis: Any, series: Series, counts: dict[str, list[int]], title: str, *, legend: bool
) -> None:
    """One on top of the other: the upper edge is all of them."""
    shown = [name for name in series.workloads if any(counts[name])]
    axis.set_title(title, loc="left")
    axis.set_ylabel("messages/s")
    axis.grid(visible=True, **GRID)
    axis.set_axisbelow(True)
    if not shown:
        return
    times = [(window + 0.5) * WINDOW_S for window in range(len(counts[shown[0]]))]
    colours = _workload_colours(series.workloads)
    rates = [[count / WINDOW_S for count in counts[name]] for name in shown]
    axis.stackplot(times, rates, colors=[colours[name] for name in shown], step="mid", linewidth=0)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(numbers("{:,.0f}"))
    if legend:
        _beside(axis, [Patch(color=colours[name], label=name) for name in reversed(shown)])


def _workload_colours(workloads: Sequence[str]) -> dict[str, Any]:
    """Cool colours for the native protocol, warm ones for AMQP, violet for NATS: the protocol is
    seen first.
    """
    maps = {
        "native": ("winter", 0.0, 0.9),
        "amqp": ("autumn", 0.05, 0.85),
        "nats": ("Purples", 0.7, 0.9),
    }
    colours: dict[str, Any] = {}
    for protocol in dict.fromkeys(protocol_of(name) for name in workloads):
        mine = [name for name in workloads if protocol_of(name) == protocol]
        name_of_map, low, high = maps.get(protocol, ("viridis", 0.1, 0.9))
        for place, name in enumerate(mine):
            share = low + (high - low) * (place / max(len(mine) - 1, 1))
            colour = colour_of(name_of_map, share)
            # Neighbours differ in brightness too.
            fade = 0.0 if place % 2 == 0 else 0.35
            colours[name] = tuple(part + (1 - part) * fade for part in colour)
    return colours


def _draw_latencies(axis: Any, series: Series) -> None:
    axis.set_title(f"publish to confirm, each {WINDOW_S * 1000:.0f} ms", loc="left")
    axis.set_ylabel("ms (log)")
    if series.latencies:
        axis.set_yscale("log")
    axis.grid(visible=True, which="major", **GRID)
    axis.set_axisbelow(True)
    handles: list[Any] = []
    for protocol, found in series.latencies.items():
        colour = PROTOCOL_COLOURS.get(protocol, OTHER_COLOUR)
        times = [each.at_s for each in found]
        medians = _broken(times, [max(each.median_ms, LATENCY_MS_MIN) for each in found])
        p99s = _broken(times, [max(each.p99_ms, LATENCY_MS_MIN) for each in found])
        handles += axis.plot(*medians, color=colour, linewidth=1.4, label=f"{protocol} median")
        handles += axis.plot(*p99s, color=colour, linewidth=0.8, linestyle=":",
                             label=f"{protocol} p99")  # fmt: skip
    values = [each.p99_ms for found in series.latencies.values() for each in found]
    lowest = min((e.median_ms for found in series.latencies.values() for e in found), default=1.0)
    axis.set_ylim(max(lowest, LATENCY_MS_MIN) * 0.7, max([*values, 10.0]) * 2.5)
    axis.yaxis.set_major_locator(LogLocator(base=10))
    axis.yaxis.set_major_formatter(numbers("{:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    if series.unknown_s:
        top = [0.97] * len(series.unknown_s)
        handles += axis.plot(series.unknown_s, top, "|", color=GAP_COLOUR, markersize=7,
                             markeredgewidth=0.8, transform=axis.get_xaxis_transform(),
                             label="outcome unknown")  # fmt: skip
    _beside(axis, handles)


def _broken(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """No line over windows in which nothing was confirmed."""
    xs: list[float] = []
    ys: list[float] = []
    for at_s, value in zip(times, values, strict=True):
        if xs and at_s - xs[-1] > 1.5 * WINDOW_S:
            xs.append(xs[-1] + WINDOW_S)
            ys.append(math.nan)
        xs.append(at_s)
        ys.append(value)
    return xs, ys


def _draw_gaps(axis: Any, series: Series, lanes: list[str]) -> None:
    longest_s = max((gap.seconds for name in lanes for gap in series.gaps[name]), default=0.0)
    title = f"gaps: publishes waited, none was confirmed (longest {longest_s:.1f} s)"
    _lanes(axis, lanes, title if lanes else "gaps: none")
    width_s = max(series.seconds, 1.0)
    for lane, name in enumerate(lanes):
        mine = series.gaps[name]
        for place, gap in enumerate(mine):
            axis.barh(lane, gap.seconds, left=gap.start_s, height=0.7, color=GAP_COLOUR,
                      alpha=_weight(gap))  # fmt: skip
            until_s = mine[place + 1].start_s if place + 1 < len(mine) else width_s
            text = f"{gap.seconds:.1f}" + (" open" if gap.open else "")
            _label(axis, lane, (gap.start_s, gap.end_s), until_s, text, width_s)
    if lanes:
        _beside(axis, [Patch(color=GAP_COLOUR, alpha=0.8, label="gap, seconds")])


def _weight(gap: Span) -> float:
    return 1.0 if gap.open else 0.3 + 0.6 * min(gap.seconds / GAP_S_LONG, 1.0)


def _groups(series: Series) -> list[str]:
    """The catalog first; of many, those whose leaders changed most."""
    spans: dict[str, int] = {}
    for each in series.leaderships:
        spans[each.group] = spans.get(each.group, 0) + 1
    most = sorted(spans, key=lambda group: -spans[group])[:GROUPS_SHOWN_MAX]
    return sorted(most, key=lambda group: (not group.startswith("catalog"), group))


def _draw_leaders(axis: Any, series: Series, groups: list[str]) -> None:
    every = {each.group for each in series.leaderships}
    more = f", {len(every) - len(groups)} more not shown" if len(every) > len(groups) else ""
    _lanes(axis, groups, f"leader of each group, with its term{more}")
    width_s = max(series.seconds, 1.0)
    nodes = sorted({each.node for each in series.leaderships})
    colours = {node: NODE_COLOURS[place % len(NODE_COLOURS)] for place, node in enumerate(nodes)}
    for each in series.leaderships:
        if each.group in groups:
            lane, span = groups.index(each.group), each.span
            axis.barh(lane, span.seconds, left=span.start_s, height=0.8,
                      color=colours[each.node], edgecolor="white", linewidth=0.5)  # fmt: skip
            ends = (span.start_s, span.end_s)
            _label(axis, lane, ends, span.end_s, str(each.term), width_s)
    _beside(axis, [Patch(color=colours[node], label=node) for node in nodes])
