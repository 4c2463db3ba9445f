"""Gaps after kills of a leader as a picture: how they are spread, and when each was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.report.canvas import GRID, OTHER_COLOUR, PROTOCOL_COLOURS, draw, numbers

SIZE_INCHES = (11.0, 7.5)


def draw_gaps(
    path: Path,
    gaps_ms: Mapping[str, Sequence[tuple[int, float]]],
    *,
    labels: Mapping[str, str],
    median_ms_target: float,
    p95_ms_target: float,
) -> None:
    """`gaps_ms`: by protocol, (number of the kill, gap). `labels`: what the legend says of each."""

    def content(figure: Any) -> None:
        kills = max((kill for mine in gaps_ms.values() for kill, _ in mine), default=0)
        longest = max((gap for mine in gaps_ms.values() for _, gap in mine), default=0.0)
        shortest = min((gap for mine in gaps_ms.values() for _, gap in mine), default=1.0)
        figure.suptitle(
            f"gap between confirms when the leader is killed, {kills} kills",
            fontsize=13,
            fontweight="bold",
        )
        spread, order = figure.subplots(2, 1, height_ratios=(3, 2))
        for protocol, mine in gaps_ms.items():
            colour = PROTOCOL_COLOURS.get(protocol, OTHER_COLOUR)
            ranked = sorted(gap for _, gap in mine)
            shares = [(place + 1) / len(ranked) * 100 for place in range(len(ranked))]
            spread.step(ranked, shares, where="post", color=colour, linewidth=1)
            spread.plot(ranked, shares, "o", color=colour, markersize=3.5, label=labels[protocol])
            # Protocols beside each other, not on top.
            shift = 0.12 if protocol == "amqp" else -0.12
            places = [kill + shift for kill, _ in mine]
            order.plot(places, [gap for _, gap in mine], "o", color=colour, markersize=4, alpha=0.7)
        # The words stand where no gap is that meets the targets.
        for target_ms, share, name, mark, side in (
            (median_ms_target, 50, "median", ">", 10),
            (p95_ms_target, 95, "p95", "<", -10),
        ):
            word = f"target of the {name}: {target_ms:g} ms"
            spread.axvline(target_ms, color="#B22222", linestyle="--", linewidth=1)
            spread.plot([target_ms], [share], mark, color="#B22222", markersize=8)
            spread.annotate(
                word,
                (target_ms, share),
                (side, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                fontsize=8,
                color="#B22222",
            )
            order.axhline(target_ms, color="#B22222", linestyle="--", linewidth=1)
        spread.set_title("share of publishers that confirm again within", loc="left")
        spread.set_xscale("log")
        spread.set_xlim(shortest * 0.8, max(longest, p95_ms_target) * 1.25)
        ticks = [t for t in (10, 20, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10000, 20000)
                 if shortest * 0.8 <= t <= max(longest, p95_ms_target) * 1.25]  # fmt: skip
        spread.set_xticks(ticks, minor=False)
        spread.xaxis.set_major_formatter(numbers("{:g}"))
        spread.set_xticks([], minor=True)
        spread.set_ylim(0, 103)
        spread.set_ylabel("% of gaps")
        spread.set_xlabel("ms (log)")
        spread.legend(loc="upper left")
        order.set_title("each kill", loc="left")
        order.set_ylabel("gap, ms")
        order.set_xlabel("number of the kill")
        order.set_ylim(0, max(longest, p95_ms_target) * 1.1)
        order.set_xlim(0, kills + 1)
        for axis in (spread, order):
            axis.grid(visible=True, **GRID)
            axis.set_axisbelow(True)

    draw(path, SIZE_INCHES, content)
