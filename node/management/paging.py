"""Lists as the query of a request wants them: filtered, sorted, in pages, with some columns."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from node.access.patterns import check_pattern
from node.management.errors import ApiError, bad_request

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 500
PATTERN_BYTES_MAX = 512

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListQuery:
    columns: tuple[tuple[str, ...], ...] = ()  # each a path; none: all
    sort: tuple[str, ...] = ()
    reverse: bool = False
    page: int | None = None  # None: a plain list
    page_size: int = PAGE_SIZE_DEFAULT
    name: re.Pattern[str] | str | None = None

    def wants(self, name: str) -> bool:
        """Whether something must have this name to be listed."""
        if self.name is None:
            return True
        if isinstance(self.name, str):
            return self.name.lower() in name.lower()
        return self.name.search(name) is not None


def list_query(query: Mapping[str, str]) -> ListQuery:
    columns = tuple(tuple(c.split(".")) for c in query.get("columns", "").split(",") if c)
    sort = query.get("sort", "")
    page: int | None = None
    size = PAGE_SIZE_DEFAULT
    name: re.Pattern[str] | str | None = None
    if "page" in query:
        page = _number(query["page"])
        size = _number(query.get("page_size", str(PAGE_SIZE_DEFAULT)))
        if size > PAGE_SIZE_MAX:
            raise bad_request(
                f"Pagination parameters are invalid: page_size is over {PAGE_SIZE_MAX}"
            )
        name = _name(query.get("name", ""), use_regex=query.get("use_regex") == "true")
    return ListQuery(
        columns=columns,
        sort=tuple(sort.split(".")) if sort else (),
        reverse=query.get("sort_reverse") == "true",
        page=page,
        page_size=size,
        name=name,
    )


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0:
        return int(text)
    raise bad_request("Pagination parameters are invalid")


def _name(text: str, *, use_regex: bool) -> re.Pattern[str] | str | None:
    if not text:
        return None
    if not use_regex:
        return text
    try:
        if len(text.encode()) <= PATTERN_BYTES_MAX:
            check_pattern(text)
            return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError, UnicodeEncodeError):
        pass
    raise bad_request("Pagination parameters are invalid: name is no regular expression")


async def listed(
    query: ListQuery,
    things: Sequence[T],
    name_of: Callable[[T], str],
    shown: Callable[[Sequence[T]], Awaitable[list[Json]]],
    values: Callable[[Sequence[T]], Awaitable[list[Any]]] | None = None,
) -> Any:
    """Only what is on the page is looked at closely, when the order does not depend on it.
    `values`: what the query wants things sorted by, where that costs less than all that is shown.
    """
    found = [thing for thing in things if query.wants(name_of(thing))]
    if query.page is None:
        return _cut(query, _sorted(query, await shown(found)))
    if query.sort in ((), ("name",)):
        found.sort(key=name_of, reverse=query.reverse)
        start = (query.page - 1) * query.page_size
        items = await shown(found[start : start + query.page_size])
    elif values is not None:
        orders = list(map(_order, await values(found)))
        places = sorted(range(len(found)), key=orders.__getitem__, reverse=query.reverse)
        start = (query.page - 1) * query.page_size
        items = await shown([found[place] for place in places[start : start + query.page_size]])
    else:
        start = (query.page - 1) * query.page_size
        items = _sorted(query, await shown(found))[start : start + query.page_size]
    if not items and query.page > 1:
        raise ApiError(
            400,
            "page_out_of_range",
            f"Page out of range, page: {query.page} page size: {query.page_size},"
            f" len: {len(found)}",
        )
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": _cut(query, items),
        "page": query.page,
        "page_count": max(1, -(-len(found) // query.page_size)),
        "page_size": query.page_size,
        "total_count": len(things),
    }


async def listed_as_is(query: ListQuery, items: Sequence[Json]) -> Any:
    """What is cheap to show whole."""

    async def shown(some: Sequence[Json]) -> list[Json]:
        return list(some)

    return await listed(query, items, lambda item: str(item.get("name", "")), shown)


def cut_columns(query: ListQuery, item: Json) -> Json:
    """With the columns that were asked for, those in depth included."""
    if not query.columns:
        return item
    result: Json = {}
    for path in query.columns:
        source: Any = item
        target = result
        for word in path[:-1]:
            source = cast("Json", source).get(word) if isinstance(source, dict) else None
            if not isinstance(source, dict):
                break
            deeper = target.setdefault(word, {})
            if deeper is source:
                break  # asked for as a whole already
            target = deeper
        else:
            if isinstance(source, dict) and path[-1] in source:
                target[path[-1]] = source[path[-1]]
    return result


def _cut(query: ListQuery, items: list[Json]) -> list[Json]:
    return [cut_columns(query, item) for item in items] if query.columns else items


def _sorted(query: ListQuery, items: list[Json]) -> list[Json]:
    if not query.sort:
        return items
    return sorted(
        items, key=lambda item: _order(_value_at(item, query.sort)), reverse=query.reverse
    )


def _value_at(item: Json, path: tuple[str, ...]) -> Any:
    value: Any = item
    for word in path:
        value = cast("Json", value).get(word) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Numbers, then texts; what is not there first."""
    if isinstance(value, (bool, int, float)):
        return (1, value)
    return (0, "") if value is None else (2, str(value))
