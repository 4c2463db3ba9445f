"""Rows for people, as tables, or for programs, as a line of JSON each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from quorate.cli.output import CommandError, emit, say, stdout, viewing

Row = dict[str, Any]


class Alarm(str):
    """A value that somebody should look at: shown in red."""

    __slots__ = ()


NUMBERS = re.compile(r"(\d+(?:\.\d+)?)")
#: What is not wider is never folded.
FOLDED_MIN = 15
#: By their heads: what a row has in this column.
Columns = Mapping[str, Callable[[Row], Any]]


def show_rows(rows: Sequence[Row], columns: Columns, *, as_json: bool, none: str) -> None:
    """Those that were asked for, in the order that was asked for. `none` is said when there are
    none. Raises CommandError.
    """
    rows = chosen(rows, columns)
    if as_json:
        for row in rows:
            emit(row)
        return
    if not rows:
        say(none if viewing.filter is None else f"no row contains {viewing.filter!r}")
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


def chosen(rows: Sequence[Row], columns: Columns) -> list[Row]:
    """By --filter and --sort. Raises CommandError."""
    found = list(rows)
    if viewing.filter is not None:
        head, given, text = viewing.filter.partition("=")
        if not given:
            heads, text = list(columns), head
        else:
            heads = [_known(head, columns)]
        found = [row for row in found if any(text in cell(columns[head](row)) for head in heads)]
    if viewing.sort is not None:
        value_of = columns[_known(viewing.sort.removeprefix("-"), columns)]
        found.sort(key=lambda row: _natural(value_of(row)), reverse=viewing.sort.startswith("-"))
    return found


def _known(head: str, columns: Columns) -> str:
    if head not in columns:
        raise CommandError(f"there is no column {head!r}: there are {', '.join(columns)}", 2)
    return head


def _natural(value: Any) -> tuple[Any, ...]:
    """Nothing first; numbers by their size, also those in a text."""
    if value is None:
        return ()
    words = NUMBERS.split(cell(value).replace(",", ""))
    return tuple((float(word), "") if at % 2 else (0.0, word) for at, word in enumerate(words))


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
