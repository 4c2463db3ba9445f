"""Which times are drawn, and how finely: the whole, then closer looks at what is short in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.postmortem.report.facts import Incident, Window

SECOND_NS: Final = 1_000_000_000
#: A picture has a point for about two pixels.
BUCKETS_MAX: Final = 500
CLOSER_LOOKS_MAX: Final = 6
#: What is shorter than this share of the whole time cannot be seen in its picture.
SHORT_SHARE: Final = 1 / 12
#: Around an incident: what came before and after it.
MARGIN_NS_MIN: Final = 30 * SECOND_NS

_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)


def window(from_ns: int, to_ns: int) -> Window:
    """Whole seconds, in the shortest steps that give no more than BUCKETS_MAX of them."""
    from_ns = from_ns // SECOND_NS * SECOND_NS
    to_ns = max(-(-to_ns // SECOND_NS) * SECOND_NS, from_ns + SECOND_NS)
    needed_s = (to_ns - from_ns) / SECOND_NS / BUCKETS_MAX
    fits = (step for step in _STEPS_S if step >= needed_s)
    return Window(from_ns, to_ns, next(fits, _STEPS_S[-1]) * SECOND_NS)


def closer_looks(incidents: Sequence[Incident], whole: Window) -> list[Window]:
    """Around incidents that are near to each other, the earliest first; none when the whole picture
    shows them well enough.
    """
    length_ns = whole.to_ns - whole.from_ns
    short = [each for each in incidents if each.to_ns - each.from_ns < length_ns * SHORT_SHARE]
    spans: list[tuple[int, int]] = []
    for each in sorted(short, key=lambda incident: incident.from_ns):
        margin_ns = max(MARGIN_NS_MIN, each.to_ns - each.from_ns)
        begin, end = each.from_ns - margin_ns, each.to_ns + margin_ns
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return [
        window(max(begin, whole.from_ns), min(end, whole.to_ns))
        for begin, end in spans
        if end - begin < length_ns * SHORT_SHARE
    ][:CLOSER_LOOKS_MAX]
