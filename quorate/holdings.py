"""What a consumer holds: ranges of positions with the token of their delivery, until the node
confirmed the settle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise


class Holdings:
    """Sorted, disjoint ranges. Work goes by ranges, not by messages."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def count(self) -> int:
        """Messages, not ranges."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def rows(self) -> list[list[int]]:
        """`[first, last, token]`, as SUBSCRIBE tells the new leader what need not be sent again."""
        return [list(row) for row in zip(self._firsts, self._lasts, self._tokens, strict=True)]

    def clear(self) -> None:
        for column in (self._firsts, self._lasts, self._tokens):
            column.clear()

    def add(self, first: int, last: int, token: int) -> list[tuple[int, int]]:
        """Hold them under `token`; returns the parts that are news: not held under this token or a
        later one.
        """
        if not self._lasts or first > self._lasts[-1]:
            self._firsts.append(first)
            self._lasts.append(last)
            self._tokens.append(token)
            return [(first, last)]
        news: list[tuple[int, int]] = []
        at = first
        for held_first, held_last, held_token in self._overlapping(first, last):
            if held_token < token:
                continue  # an old delivery of it: replaced below
            if at < held_first:
                news.append((at, held_first - 1))
            at = held_last + 1
        if at <= last:
            news.append((at, last))
        for news_first, news_last in news:
            self.remove(news_first, news_last, token)
            where = bisect_left(self._firsts, news_first)
            self._firsts.insert(where, news_first)
            self._lasts.insert(where, news_last)
            self._tokens.insert(where, token)
        return news

    def remove(self, first: int, last: int, token: int) -> None:
        """No longer held, unless they were delivered again since `token`."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return
        keep: list[tuple[int, int, int]] = []
        if self._firsts[low] < first:
            keep.append((self._firsts[low], first - 1, self._tokens[low]))
        keep += [row for row in self._overlapping(first, last) if row[2] > token]
        if self._lasts[high - 1] > last:
            keep.append((last + 1, self._lasts[high - 1], self._tokens[high - 1]))
        self._firsts[low:high] = [row[0] for row in keep]
        self._lasts[low:high] = [row[1] for row in keep]
        self._tokens[low:high] = [row[2] for row in keep]

    def _overlapping(self, first: int, last: int) -> list[tuple[int, int, int]]:
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [
            (max(first, self._firsts[at]), min(last, self._lasts[at]), self._tokens[at])
            for at in range(low, high)
        ]


def add_range(ranges: list[list[int]], first: int, last: int) -> None:
    """Append to ranges that mostly come in order; `merged` puts them right."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1][1] = last
    else:
        ranges.append([first, last])


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """Ascending and disjoint, neighbours joined."""
    if all(a[1] < b[0] for a, b in pairwise(ranges)):
        return ranges
    result: list[list[int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1][1] = max(result[-1][1], last)
        else:
            result.append([first, last])
    return result


def without(ranges: list[list[int]], position: int) -> list[list[int]]:
    """The same positions but one."""
    result: list[list[int]] = []
    for first, last in ranges:
        if first <= position <= last:
            parts = ([first, position - 1], [position + 1, last])
            result += [part for part in parts if part[0] <= part[1]]
        else:
            result.append([first, last])
    return result
