"""`quorate queue why`, `move` and their kin: what piles up, and what is done about it."""

from __future__ import annotations

from typing import Any

from quorate.cli.api import with_api
from quorate.cli.output import emit, say
from quorate.cli.tables import printable

Row = dict[str, Any]


def _missing(queue: str) -> str:
    return f"there is no queue {queue}: see `quorate queue list`"


def run_why(queue: str, url: str | None, *, vhost: str, as_json: bool, timeout: float) -> int:
    found: Row = with_api(
        url,
        lambda api: api.get("queues", vhost, queue, "why"),
        timeout=timeout,
        missing=_missing(queue),
    )
    findings: list[Row] = found["findings"]
    if as_json:
        emit(found)
    elif not findings:
        say(f"queue {queue}: nothing keeps its messages from moving")
    else:
        for each in findings:
            say(f"queue {queue}: {each['code']}: {printable(each['sentence'])}")
            say(f"  next: {each['next']}")
    return 1 if findings else 0
