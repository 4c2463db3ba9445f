"""HTML and SVG out of nested calls: whatever is not markup already is escaped on its way in."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from chaos.postmortem.report.units import visible


class Markup(str):
    """Text that is markup already. Only `tag`, `joined` and constants of ours make it."""

    __slots__ = ()


Content = Markup | str | int | float | None | Iterable["Content"]


def text(content: Content) -> Markup:
    if content is None:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(escape(visible(content)))
    if isinstance(content, (int, float)):
        return Markup(_value(content))
    return Markup("".join(map(text, content)))


joined = text


def tag(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """`class_` and `stroke_width` are written as HTML spells them; None and False are left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        f'="{escape(key if value is True else visible(_value(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = joined(content)
    if not inside and name in _EMPTY:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inside}</{name}>")


#: Elements that are written without an end of their own.
_EMPTY = frozenset({"line", "path", "rect", "circle", "polyline", "meta", "br", "use"})


def _value(value: str | float) -> str:
    """A tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
