"""Rows for people, as tables, or for programs, as a line of JSON each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from quorate.cli.output import emit, say, stdout

Row = dict[str, Any]


class Alarm(str):
    """A value that somebody should look at: shown in red."""

    __slots__ = ()


#: What is not wider is never folded.
FOLDED_MIN = 15
#: By their heads: what a row has in this column.
Columns = Mapping[str, Callable[[Row], Any]]


def show_rows(rows: Sequence[Row], columns: Columns, *, as_json: bool, none: str) -> None:
    """`none` is said when there are none."""
    if as_json:
        for row in rows:
            emit(row)
        return
    if not rows:
        say(none)
        return
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    table = Table()
    values = {head: [value_of(row) for row in rows] for head, value_of in columns.items()}
    texts = {head: [cell(value) for value in those] for head, those in values.items()}
    widths = [max(map(len, [head, *those])) for head, those in texts.items()]
    folded = folded_columns(widths, console.width)
    for place, (head, those) in enumerate(values.items()):
        present = [value for value in those if value is not None]
        numbers = bool(present) and all(type(value) is int for value in present)
        table.add_column(
            head,
            justify="right" if numbers else "left",
            overflow="fold",
            no_wrap=place not in folded,
        )
    for place in range(len(rows)):
        table.add_row(
            *(
                Text(texts[head][place], style="red" if type(those[place]) is Alarm else "")
                for head, those in values.items()
            )
        )
    console.print(table)


def folded_columns(widths: Sequence[int], width: int) -> set[int]:
    """Which may be folded into several lines: wide ones. The first is a name, which people copy: it
    stays whole while the others leave room for it.
    """
    wide = {place for place, each in enumerate(widths) if each > FOLDED_MIN}
    others = wide - {0}
    borders = 3 * len(widths) + 1
    fixed = sum(each for place, each in enumerate(widths) if place not in others)
    if fixed + borders + FOLDED_MIN * len(others) <= width:
        return others
    fixed -= widths[0] if 0 in wide else 0
    if fixed + borders + FOLDED_MIN * len(wide) <= width:
        return wide
    return set(range(len(widths)))


def cell(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(cell, cast("list[Any]", value)))
        case dict():
            return pairs(cast("Row", value))
        case _:
            return printable(str(value))


def pairs(values: Row) -> str:
    """As they are given on the command line, but shown one after the other."""
    return ", ".join(
        f"{printable(name)}={'' if value is None else plain(value)}"
        for name, value in values.items()
    )


def plain(value: Any) -> str:
    return str(value) if type(value) is int else cell(value)


def printable(text: str) -> str:
    """Names are others' texts: none of them may move the cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
