"""Pictures in lanes: what was found, which nodes ran, who led each group, who was active."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from chaos.postmortem.report.axes import LEFT, RIGHT, TimeAxis
from chaos.postmortem.report.facts import Active, Incident, Lead, Life, Moment, Queue, Standstill
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.panel import (
    HEAD,
    LETTER,
    Scene,
    cut,
    extent,
    fits,
    linked,
    panel,
    rect,
)
from chaos.postmortem.report.units import clock, duration, duration_ns

LANE: Final = 20
BAR: Final = 14
STRIP_LANES_MAX: Final = 12
SAC_QUEUES_MAX: Final = 12
CONSUMER_COLOURS: Final = 6
#: A mark that is an instant.
INSTANT_WIDTH: Final = 3.0


def strip(scene: Scene) -> Markup:
    """Each incident by its number and name: the legend of the bands below."""
    shown = [each for each in scene.incidents if scene.time.shows(each.from_ns, each.to_ns)]
    free: list[float] = []  # by lane: from here on there is room
    drawn: list[Content] = []
    for each in shown:
        left, width = extent(scene.time, each.from_ns, each.to_ns, INSTANT_WIDTH)
        label = cut(_label(each), RIGHT - LEFT)
        length = len(label) * LETTER + 8
        end = left + width + 4 + length
        # Near the right border the name is inside of a long bar, or else before it.
        if end <= RIGHT:
            begin, x, side = left, left + width + 4, ""
        elif width >= length:
            begin, end, x, side = left, left + width, left + 4, ""
        else:
            begin, end, x, side = left - 4 - length, left + width, left - 4, " end"
        lane = next((n for n, busy in enumerate(free) if begin >= busy + 6), len(free))
        if lane == STRIP_LANES_MAX:
            continue
        free[lane : lane + 1] = [end]
        top = HEAD + LANE * lane + 3
        bar = rect(left, top, width, BAR, f"incident {each.finding.severity}", rx=1.5)
        name = tag("text", label, x=x, y=top + 11, class_=f"label{side}")
        drawn.append(linked(each, [bar, name]))
    height = LANE * max(len(free), 1) + 2
    if not drawn:
        drawn.append(tag("text", "no finding has a time", x=LEFT + 6, y=HEAD + 14, class_="note"))
    return panel(scene, "Findings", drawn, height=height)


def _label(incident: Incident) -> str:
    finding = incident.finding
    about = finding.node or finding.queue
    return f"{incident.number} {finding.title}" + (f": {about}" if about else "")


def nodes(
    scene: Scene,
    lives: Sequence[Life],
    standstills: Sequence[Standstill],
    moments: Sequence[Moment],
) -> Markup:
    """Full: its process ran. Nothing: it did not. Hatched: it was there, and stood still."""
    drawn: list[Content] = []
    for lane, node in enumerate(scene.nodes):
        top = HEAD + LANE * lane + 3
        drawn.append(tag("text", cut(node, 100), x=LEFT - 6, y=top + 11, class_="tick end"))
        mine = sorted((life for life in lives if life.node == node), key=lambda life: life.from_ns)
        for place, life in enumerate(mine):
            then = mine[place + 1].from_ns if place + 1 < len(mine) else None
            drawn.append(_life(scene, life, then, top))
        drawn += [
            _standstill(scene.time, each, top)
            for each in standstills
            if each.node == node and scene.time.shows(each.from_ns, each.to_ns)
        ]
        drawn += [
            _moment(scene.time, each, top)
            for each in moments
            if each.node == node and scene.time.shows(each.at_ns, each.at_ns)
        ]
    height = LANE * max(len(scene.nodes), 1) + 2
    return panel(scene, "Nodes", _HATCH, drawn, height=height)


def _life(scene: Scene, life: Life, then_ns: int | None, top: float) -> list[Markup]:
    if not scene.time.shows(life.from_ns, then_ns or life.to_ns):
        return []
    left, width = extent(scene.time, life.from_ns, life.to_ns, INSTANT_WIDTH)
    told = (
        f"{life.node} ran {clock(life.from_ns)} – {clock(life.to_ns)}"
        f" ({duration_ns(life.to_ns - life.from_ns)}), ended: {life.ended}"
    )
    found = [rect(left, top, width, BAR, f"fill {scene.colour(life.node)}", told)]
    if life.ended == "open" or not scene.time.shows(life.to_ns, life.to_ns):
        return found
    mark = "✕" if life.ended == "killed" else "|"
    right = left + width
    found.append(tag("text", mark, x=right + 1, y=top + 11.5, class_=f"ended {life.ended}"))
    if then_ns is not None:
        down = "down " + duration_ns(then_ns - life.to_ns)
        room = scene.time.x(then_ns) - right - 12
        down = down if fits(down, room) else down.removeprefix("down ")
        if fits(down, room + 6):
            found.append(tag("text", down, x=right + 13, y=top + 11, class_="note"))
    return found


_CAUSES: Final = {
    "process": "its process did not run",
    "loop": "its event loop did not turn",
    "machine": "its machine was paused",
}


def _standstill(time: TimeAxis, each: Standstill, top: float) -> Markup:
    why = _CAUSES.get(each.cause, "while it synced" if each.syncing else "no sync was under way")
    told = f"{each.node} stood still from {clock(each.from_ns)} for {duration(each.ms)}, {why}"
    left, width = extent(time, each.from_ns, each.to_ns, INSTANT_WIDTH)
    return rect(left, top - 2, width, BAR + 4, "standstill", told)


def _moment(time: TimeAxis, each: Moment, top: float) -> Markup:
    told = tag("title", f"{clock(each.at_ns)} {each.text}")
    arrow = f"M{time.x(each.at_ns):.1f} {top + BAR - 4} l3.5 6 h-7 z"
    return tag("path", told, d=arrow, class_="moment")


#: One of them is enough for a page, but a picture that is copied out of it should keep its own.
_HATCH: Final = tag(
    "defs",
    tag(
        "pattern",
        tag("rect", width=5, height=5, class_="hatch-ground"),
        tag("line", x1=0, x2=0, y1=0, y2=5, class_="hatch-line"),
        id="hatch",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    ),
)


def leaders(scene: Scene, leads: Sequence[Lead]) -> Markup:
    """A lane for each group: who led it, and in which term."""
    by_group: defaultdict[int, list[Lead]] = defaultdict(list)
    for each in sorted(leads, key=lambda lead: (lead.from_ns, lead.term)):
        by_group[each.group].append(each)
    drawn: list[Content] = []
    for lane, (group, mine) in enumerate(sorted(by_group.items())):
        top = HEAD + LANE * lane + 3
        name = "catalog (0)" if group == 0 else f"group {group}"
        drawn.append(tag("text", name, x=LEFT - 6, y=top + 11, class_="tick end"))
        drawn.append(_without(scene.time, [(each.from_ns, each.to_ns) for each in mine], top))
        for place, each in enumerate(mine):
            if scene.time.shows(each.from_ns, each.to_ns):
                drawn.append(_lead(scene, each, mine[:place], top))
    height = LANE * max(len(by_group), 1) + 2
    return panel(scene, "Leaders", drawn, height=height)


def _lead(scene: Scene, each: Lead, before: Sequence[Lead], top: float) -> list[Markup]:
    """Who leads while another one does is drawn in the lower half, unless that is too short to see:
    who hands over knows a moment later than who takes over.
    """
    others = [other for other in before if other.to_ns > each.from_ns]
    twice = any(other.term == each.term and other.leader != each.leader for other in others)
    if not twice:
        ends_ns = [min(other.to_ns, each.to_ns) for other in others]
        seen = [extent(scene.time, each.from_ns, end_ns, 0.0)[1] >= 1 for end_ns in ends_ns]
        others = [other for other, is_seen in zip(others, seen, strict=True) if is_seen]
    y, height = (top + BAR / 2, BAR / 2) if others else (top, BAR)
    left, width = extent(scene.time, each.from_ns, each.to_ns, 1.0)
    told = (
        f"group {each.group}: {each.leader} led in term {each.term}, {clock(each.from_ns)} –"
        f" {clock(each.to_ns)} ({duration_ns(each.to_ns - each.from_ns)}), ended: {each.ended}"
    )
    style = f"fill {scene.colour(each.leader)}" + (" twice" if twice else "")
    bar = rect(left, y, width, height, style, told)
    labels = () if others else (f"{each.leader} · term {each.term}", each.leader)
    return [bar, *_inside(labels, left, width, top)]


def _inside(labels: Iterable[str], left: float, width: float, top: float) -> list[Markup]:
    """The first label that the bar has room for, if any."""
    fitting = (label for label in labels if fits(label, width))
    return [tag("text", label, x=left + 5, y=top + 11, class_="inside") for label in fitting][:1]


def _without(time: TimeAxis, spans: Iterable[tuple[int, int]], top: float) -> list[Markup]:
    """Gaps between spans that are in the order of their begin."""
    found: list[Markup] = []
    end_ns: int | None = None
    for from_ns, to_ns in spans:
        if end_ns is not None and from_ns > end_ns and time.shows(end_ns, from_ns):
            left, width = extent(time, end_ns, from_ns, 0.0)
            told = f"nobody from {clock(end_ns)} for {duration_ns(from_ns - end_ns)}"
            found.append(rect(left, top, width, BAR, "nobody", told))
        end_ns = max(to_ns, end_ns or to_ns)
    return found


def active(scene: Scene, times: Sequence[Active]) -> Markup:
    """A lane for each queue with a single active consumer: who it was, and since which token."""
    by_queue: defaultdict[Queue, list[Active]] = defaultdict(list)
    for each in times:
        by_queue[each.queue].append(each)
    shown = list(by_queue.items())[:SAC_QUEUES_MAX]
    drawn: list[Content] = []
    for lane, (queue, mine) in enumerate(shown):
        top = HEAD + LANE * lane + 3
        drawn.append(tag("text", cut(queue.title, 138), x=LEFT - 6, y=top + 11, class_="tick end"))
        spans = [
            (each.from_ns, each.to_ns or scene.time.window.to_ns)
            for each in mine
            if each.consumer is not None
        ]
        drawn.append(_without(scene.time, spans, top))
        consumers = sorted({each.consumer for each in mine if each.consumer is not None})
        drawn += [
            _active(scene.time, each, mine[:place], consumers, top)
            for place, each in enumerate(mine)
        ]
    height = LANE * max(len(shown), 1) + 2
    return panel(scene, "", drawn, height=height)


def _active(
    time: TimeAxis, each: Active, before: Sequence[Active], consumers: list[int], top: float
) -> list[Markup]:
    """Two at a time, which must not be, are drawn as halves with a red border."""
    to_ns = time.window.to_ns if each.to_ns is None else each.to_ns
    if each.consumer is None or not time.shows(each.from_ns, to_ns):
        return []
    twice = any(
        other.consumer not in (None, each.consumer)
        and (other.to_ns is None or other.to_ns > each.from_ns)
        for other in before
    )
    y, height = (top + BAR / 2, BAR / 2) if twice else (top, BAR)
    left, width = extent(time, each.from_ns, to_ns, 1.0)
    who = f"consumer {each.consumer}" + (f" ({each.session})" if each.session else "")
    until = "the end of the log" if each.to_ns is None else clock(each.to_ns)
    told = f"{who} from token {each.token}, {clock(each.from_ns)} – {until}"
    colour = f"c{consumers.index(each.consumer) % CONSUMER_COLOURS}"
    style = f"fill {colour}" + (" twice" if twice else "")
    bar = rect(left, y, width, height, style, told)
    labels = () if twice else (f"{who} · token {each.token}", who, str(each.consumer))
    return [bar, *_inside(labels, left, width, top)]
