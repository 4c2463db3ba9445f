"""Pictures of values over time: messages a second, latencies, lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.postmortem.report.axes import LEFT, RIGHT, TimeAxis, ValueAxis, linear, logarithmic
from chaos.postmortem.report.facts import Curve, QueueTraffic, Window
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.panel import HEAD, Scene, note, panel, swatch, values

TALL: Final = 110
LOW: Final = 64
MINUTE_NS: Final = 60_000_000_000
#: Curves in one picture that an eye can follow.
CURVES_MAX: Final = 8
#: A threshold is drawn when something comes as near to it as this share.
NEAR: Final = 0.2


def traffic(scene: Scene, flow: QueueTraffic) -> Markup:
    """Delivered as a grey area, published as a line over it, deliveries again in red."""
    height = TALL if flow.queue is None else LOW
    every = (flow.published, flow.delivered, flow.redelivered)
    axis = linear(_highest(every), HEAD + 6, HEAD + height)
    legend: list[Content] = []
    if flow.queue is None:
        legend = [
            note("messages a second"),
            swatch("published", "published"),
            swatch("delivered", "delivered", area=True),
            swatch("redelivered", "of them again", area=True),
        ]
    else:
        legend = [note(f"group {flow.queue.group}")]
    again = any(value for _, value in flow.redelivered.points)
    return panel(
        scene,
        "All queues" if flow.queue is None else flow.queue.title,
        values(axis),
        area(scene.time, axis, flow.delivered, "delivered"),
        area(scene.time, axis, flow.redelivered, "redelivered") if again else None,
        line(scene.time, axis, flow.published, "published"),
        height=height,
        notes=legend,
    )


def commits(scene: Scene, p50: Sequence[Curve], p99: Sequence[Curve]) -> Markup:
    """By minute, of the entries that each leader appended."""
    axis = logarithmic(_lowest(p50), _highest(p99), HEAD + 6, HEAD + TALL)
    width_ns = max(MINUTE_NS, scene.time.window.bucket_ns)
    return panel(
        scene,
        "Commit latency",
        values(axis),
        [
            steps(scene.time, axis, each, f"thin {scene.colour(each.name)}", width_ns)
            for each in p50[:CURVES_MAX]
        ],
        [
            steps(scene.time, axis, each, scene.colour(each.name), width_ns)
            for each in p99[:CURVES_MAX]
        ],
        height=TALL,
        notes=[note("ms, p99 (thick), p50"), *_nodes(scene, p99)],
    )


def syncs(scene: Scene, longest: Sequence[Curve], limit_ms: float) -> Markup:
    axis = logarithmic(_lowest(longest), _highest(longest), HEAD + 6, HEAD + TALL)
    return panel(
        scene,
        "Longest fsync",
        values(axis),
        _limit(axis, limit_ms, longest),
        [
            line(scene.time, axis, each, f"fine {scene.colour(each.name)}")
            for each in longest[:CURVES_MAX]
        ],
        height=TALL,
        notes=[note("ms"), *_nodes(scene, longest)],
    )


def lags(scene: Scene, lag: Sequence[Curve], limit: float) -> Markup:
    axis = linear(max(_highest(lag), limit / 4), HEAD + 6, HEAD + TALL)
    return panel(
        scene,
        "Lag",
        values(axis),
        _limit(axis, limit, lag),
        [line(scene.time, axis, each, scene.colour(each.name)) for each in lag[:CURVES_MAX]],
        height=TALL,
        notes=[note("entries behind"), *_nodes(scene, lag)],
    )


def _nodes(scene: Scene, curves: Sequence[Curve]) -> list[Content]:
    return [swatch(scene.colour(each.name), each.name) for each in curves[:5]]


def _limit(axis: ValueAxis, limit: float, curves: Sequence[Curve]) -> Markup | None:
    """Dashed: from here on it is a finding."""
    if not axis.low <= limit <= axis.high or _highest(curves) < limit * NEAR:
        return None
    y = axis.y(limit)
    return tag("line", tag("title", "the threshold"), x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="limit")


def line(time: TimeAxis, axis: ValueAxis, curve: Curve, style: str) -> Markup:
    """Through the middles of the buckets; broken where nothing was measured."""
    parts: list[str] = []
    before_ns: int | None = None
    for at_ns, value in curve.points:
        here = f"{_middle(time, at_ns):.1f} {axis.y(value):.1f}"
        near = before_ns is not None and at_ns - before_ns <= 2 * time.window.bucket_ns
        # A point alone is drawn by the round ends of a line without length.
        parts.append(f"L{here}" if near else f"M{here}h0")
        before_ns = at_ns
    return tag("path", d="".join(parts), class_=f"stroke {style}")


def area(time: TimeAxis, axis: ValueAxis, curve: Curve, style: str) -> Markup | None:
    """From zero; for curves without holes."""
    if not curve.points:
        return None
    through = "".join(
        f"L{_middle(time, at_ns):.1f} {axis.y(value):.1f}" for at_ns, value in curve.points
    )
    first, last = (_middle(time, at_ns) for at_ns in (curve.points[0][0], curve.points[-1][0]))
    zero = f"{axis.y(0):.1f}"
    d = f"M{first:.1f} {zero}{through}L{last:.1f} {zero}Z"
    return tag("path", d=d, class_=f"fill {style}")


def steps(time: TimeAxis, axis: ValueAxis, curve: Curve, style: str, width_ns: int) -> Markup:
    """A value for `width_ns` each; joined where the next one follows at once."""
    parts: list[str] = []
    end_ns: int | None = None
    for at_ns, value in curve.points:
        y = f"{axis.y(value):.1f}"
        near = end_ns is not None and at_ns <= end_ns
        parts.append(f"V{y}" if near else f"M{time.x(at_ns):.1f} {y}")
        end_ns = at_ns + width_ns
        parts.append(f"H{time.x(end_ns):.1f}")
    return tag("path", d="".join(parts), class_=f"stroke {style}")


def _middle(time: TimeAxis, at_ns: int) -> float:
    window: Window = time.window
    return time.x(min(at_ns + window.bucket_ns // 2, window.to_ns))


def _highest(curves: Sequence[Curve]) -> float:
    return max((value for curve in curves for _, value in curve.points), default=0.0)


def _lowest(curves: Sequence[Curve]) -> float:
    """Above zero, as a logarithm needs."""
    known = (value for curve in curves for _, value in curve.points if value > 0)
    return min(known, default=1.0)
