"""All pictures of one time, under each other on one time axis."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.postmortem.limits import Limits
from chaos.postmortem.report import lanes, plots
from chaos.postmortem.report.axes import TimeAxis
from chaos.postmortem.report.facts import Facts, Picture
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.panel import Scene
from chaos.postmortem.report.sheets import folded
from chaos.postmortem.report.units import duration_ns, numbers, span_of


def names_of_nodes(facts: Facts) -> list[str]:
    """Each node that is spoken of; its place here is its colour."""
    told = {
        *(life.node for life in facts.lives),
        *(lead.leader for lead in facts.leaders),
        *(row.node for row in facts.nodes),
        *(each.name for picture in facts.pictures for each in (*picture.sync, *picture.lag)),
    }
    return sorted(name for name in told if name)


def figures(facts: Facts, limits: Limits) -> list[Markup]:
    """The whole time, then closer looks at incidents that are too short to be seen in it."""
    nodes = names_of_nodes(facts)
    found: list[Markup] = []
    for place, picture in enumerate(facts.pictures):
        window = picture.window
        scene = Scene(TimeAxis(window), facts.incidents, nodes)
        span = f"{span_of(window.from_ns, window.to_ns)} UTC"
        length = duration_ns(window.to_ns - window.from_ns)
        drawn = _figures(facts, picture, scene, limits)
        if place == 0:
            told = tag("span", f"{span}, {length}", class_="quiet small")
            found += [tag("h2", "What happened ", told), *drawn]
        else:
            shown = [
                each.number
                for each in facts.incidents
                if scene.time.shows(each.from_ns, each.to_ns)
            ]
            told = f"A closer look at {numbers(shown)}"
            found.append(folded(told, f"{span}, {length}", drawn, class_="look"))
    return found


def _figures(facts: Facts, picture: Picture, scene: Scene, limits: Limits) -> list[Markup]:
    found = [
        _figure(
            _explained(facts),
            [
                lanes.strip(scene),
                lanes.nodes(scene, facts.lives, facts.standstills, facts.moments),
                lanes.leaders(scene, facts.leaders),
            ],
        )
    ]
    if picture.traffic:
        panels = [plots.traffic(scene, flow) for flow in picture.traffic]
        found.append(
            _figure("Messages: line published, grey delivered, red delivered again.", panels)
        )
    speed: list[Content] = []
    if picture.commit_p99:
        speed.append(plots.commits(scene, picture.commit_p50, picture.commit_p99))
    if picture.sync:
        speed.append(plots.syncs(scene, picture.sync, limits.slow_sync_ms))
    if picture.lag:
        speed.append(plots.lags(scene, picture.lag, limits.lag_entries))
    if speed:
        found.append(
            _figure(
                "Replication, by node. Commits: of what it appended as leader, by minute, p99 of"
                " the slowest group. Lag: of the group that is furthest behind.",
                speed,
            )
        )
    if facts.active:
        panel = lanes.active(scene, facts.active)
        found.append(_figure("Single active consumers: red is time without one.", [panel]))
    return found


def _explained(facts: Facts) -> str:
    told = (
        "Bands in all pictures are the findings, by their numbers: click on one, or rest the mouse"
        " on anything. Nodes: ✕ killed, | stopped in order, hatched: stood still, ▴ clocks, links,"
        " snapshots. Leaders: red is time without one."
    )
    if facts.more.get("groups"):
        told += f" Not shown: {facts.more['groups']:,} groups that changed their leader less often."
    if facts.more.get("incidents"):
        told += f" Not shown: {facts.more['incidents']:,} less severe findings."
    return told


def _figure(caption: str, content: Sequence[Content]) -> Markup:
    return tag("figure", tag("figcaption", caption), content)
