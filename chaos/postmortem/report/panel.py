"""One picture: a frame with a time axis, the bands of the incidents, and a name at its left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaos.postmortem.report.axes import LEFT, RIGHT, WIDTH, TimeAxis, ValueAxis
from chaos.postmortem.report.facts import Incident
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.units import clock, duration_ns, short

#: Above a picture, for the numbers of the bands; below it, for the times.
HEAD: Final = 14
FOOT: Final = 18
#: What lasts for most of the time is no band: it would colour everything.
BAND_SHARE_MAX: Final = 0.6
BAND_WIDTH_MIN: Final = 2.5
#: Of a letter, on average, at the size of labels.
LETTER: Final = 6.0
NODE_COLOURS: Final = 8


@dataclass(frozen=True, slots=True)
class Scene:
    """What all pictures of one time have in common."""

    time: TimeAxis
    incidents: Sequence[Incident]
    nodes: Sequence[str]  # in the order of their colours

    def colour(self, node: str | None) -> str:
        """The class that gives a node its colour, everywhere the same."""
        if node is None or node not in self.nodes:
            return "n-other"
        return f"n{self.nodes.index(node) % NODE_COLOURS}"


def panel(
    scene: Scene, name: str, *content: Content, height: float, notes: Sequence[Content] = ()
) -> Markup:
    """`content` is drawn between HEAD and HEAD + height. `notes`: lines below the name."""
    bottom = HEAD + height
    return tag(
        "svg",
        tag("title", name),
        _bands(scene, bottom),
        _grid(scene.time, bottom),
        tag("text", cut(name, 138), x=0, y=HEAD + 11, class_="name"),
        [
            tag("g", note, transform=f"translate(0 {HEAD + 28 + 15 * line})")
            for line, note in enumerate(notes)
        ],
        content,
        viewBox=f"0 0 {WIDTH} {bottom + FOOT:.0f}",
        class_="panel",
        role="img",
    )


def _bands(scene: Scene, bottom: float) -> list[Markup]:
    """Where findings of one severity overlap, there is one band. Numbers that have no room are
    left out: the strip of findings has them all.
    """
    shown = [
        each
        for each in scene.incidents
        if scene.time.shows(each.from_ns, each.to_ns) and _share(scene.time, each) <= BAND_SHARE_MAX
    ]
    found: list[Markup] = []
    for severity in ("warning", "unreadable", "violation"):
        mine = [each for each in shown if each.finding.severity == severity]
        for left, right in _joined([_borders(scene.time, each) for each in mine]):
            found.append(rect(left, HEAD, right - left, bottom - HEAD, f"band {severity}"))
    free = 0.0  # from here on a number has room
    for each in sorted(shown, key=lambda each: sum(_borders(scene.time, each))):
        middle = sum(_borders(scene.time, each)) / 2
        room = LETTER * len(str(each.number)) / 2 + 2
        if middle - room >= free:
            mark = tag("text", each.number, x=middle, y=HEAD - 3, class_="mark")
            found.append(linked(each, mark))
            free = middle + room
    return found


def _share(time: TimeAxis, each: Incident) -> float:
    left, right = _borders(time, each)
    return (right - left) / (RIGHT - LEFT)


def _borders(time: TimeAxis, each: Incident) -> tuple[float, float]:
    left, width = extent(time, each.from_ns, each.to_ns, BAND_WIDTH_MIN)
    return left, left + width


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that overlap as one."""
    found: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if found and left <= found[-1][1]:
            found[-1] = (found[-1][0], max(right, found[-1][1]))
        else:
            found.append((left, right))
    return found


def linked(incident: Incident, content: Content) -> Markup:
    """To its finding; what it is shows when the mouse rests on it."""
    finding = incident.finding
    length_ns = incident.to_ns - incident.from_ns
    lasted = f", {duration_ns(length_ns)}" if length_ns else ""
    told = f"{incident.number}: {finding.title}, {clock(incident.from_ns)}{lasted}"
    return tag("a", tag("title", told), content, href=f"#finding-{incident.number}")


def _grid(time: TimeAxis, bottom: float) -> list[Markup]:
    lines: list[Markup] = []
    for at_ns, label in time.ticks():
        x = time.x(at_ns)
        lines.append(tag("line", x1=x, x2=x, y1=HEAD, y2=bottom, class_="grid"))
        cut = x + LETTER * len(label) / 2 > WIDTH
        place = "end" if cut else "middle"
        at = WIDTH if cut else x
        lines.append(tag("text", label, x=at, y=bottom + 13, class_=f"tick {place}"))
    lines.append(tag("line", x1=LEFT, x2=RIGHT, y1=bottom, y2=bottom, class_="axis"))
    return lines


def values(axis: ValueAxis) -> list[Markup]:
    """Lines across, with their value at the left."""
    lines: list[Markup] = []
    for value in axis.ticks():
        y = axis.y(value)
        lines.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(tag("text", short(value), x=LEFT - 6, y=y + 4, class_="tick end"))
    return lines


def swatch(colour: str, label: str, *, area: bool = False) -> list[Markup]:
    """A note that says what a colour means."""
    if area:
        mark = rect(0, -8, 14, 9, f"fill {colour}")
    else:
        mark = tag("line", x1=0, x2=14, y1=-4, y2=-4, class_=f"stroke {colour}")
    return [mark, tag("text", cut(label, 84), x=19, y=0, class_="note")]


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    style: str,
    told: str | None = None,
    **more: float,
) -> Markup:
    """`told` shows when the mouse rests on it."""
    title = None if told is None else tag("title", told)
    return tag("rect", title, x=x, y=y, width=width, height=height, **more, class_=style)


def note(label: str) -> Markup:
    return tag("text", label, x=0, y=0, class_="note")


def extent(time: TimeAxis, from_ns: int, to_ns: int, least: float) -> tuple[float, float]:
    """Left border and width; never too narrow to be seen, never over the right border."""
    left, right = time.x(from_ns), time.x(to_ns)
    width = max(right - left, least)
    return min(left, RIGHT - width), width


def cut(text: str, width: float) -> str:
    """As much as has room."""
    letters = max(int(width / LETTER), 1)
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def fits(text: str, width: float) -> bool:
    return len(text) * LETTER + 6 <= width
