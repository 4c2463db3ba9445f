"""Rows of the table `events`, written by hand, and what is made of them."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.postmortem.findings import queues
from chaos.postmortem.limits import Limits
from chaos.postmortem.pipeline import FINDINGS
from chaos.postmortem.queues.messages import messages
from chaos.postmortem.queues.traffic import latency, redelivery, sac, throughput, unacked
from chaos.postmortem.tables import Tables, schema_of
from cluster.history.event_rows import Event

MAKERS = {
    "messages": messages,
    "latency": latency,
    "throughput": throughput,
    "redelivery": redelivery,
    "unacked": unacked,
    "sac": sac,
}
START_MS = 1_700_000_040_000  # a full minute


class Told:
    """What happens to one queue, entry by entry."""

    def __init__(self, queue: int, name: str, *, group: int = 1, sac: bool = False) -> None:
        self.rows: list[Event] = []
        self._same = {"group": group, "queue": queue, "vhost": "/", "name": name, "sac": sac}
        self.index = 1
        self.step = 0
        self.at_ms = START_MS

    def entry(self, index: int, at_ms: int = 0) -> Told:
        """What follows is done by this entry, `at_ms` after the start."""
        self.index, self.step, self.at_ms = index, 0, START_MS + at_ms
        return self

    def add(
        self, event: str, first: int | None = None, last: int | None = None, **more: Any
    ) -> Told:
        last = first if last is None else last
        row = {"at_ms": self.at_ms, "first": first, "last": last} | self._same | more
        self.rows.append(
            Event(index=self.index, term=3, ordinal=0, step=self.step, event=event, **row)
        )
        self.step += 1
        return self

    def published(self, first: int, last: int | None = None, **more: Any) -> Told:
        return self.add("published", first, last, **{"entry": self.index, "entry_offset": 0} | more)

    def delivered(
        self, first: int, last: int | None = None, *, acquired: int = 0, by: int = 7, **more: Any
    ) -> Told:
        token = self.index << 16 | self.step
        body = {"entry": first * 2, "entry_offset": 0, "token": token, "failed": 0} | more
        body |= {"session": f"s{by}", "consumer": by, "acquired": acquired}
        return self.add("delivered", first, last, **body)

    def settled(self, first: int, last: int | None = None, *, by: int = 7, **more: Any) -> Told:
        return self.add("settled", first, last, consumer=by, session=f"s{by}", **more)

    def returned(
        self, first: int, last: int | None = None, *, by: int = 7, failed: int = 0
    ) -> Told:
        more = {"consumer": by, "session": f"s{by}", "failed": failed, "reason": "asked"}
        return self.add("returned", first, last, **more)

    def active(self, consumer: int | None) -> Told:
        session = None if consumer is None else f"s{consumer}"
        return self.add("active", consumer=consumer, session=session, token=self.index << 16)


def filled(
    spark: Any,
    folder: Path,
    events: Sequence[tuple[Any, ...]],
    others: Mapping[str, Sequence[Any]] | None = None,
) -> Tables:
    """Tables with these rows, and all that is made of them."""
    tables = Tables(spark, folder)
    given = {"events": events, "entries": [], "leaders": [], "replays": [], "segments": []}
    for name, rows in (given | dict(others or {})).items():
        schema = schema_of(name)
        whole = [
            tuple(row.get(each) for each in schema.names) if isinstance(row, dict) else tuple(row)
            for row in rows
        ]
        tables.write(name, spark.createDataFrame(whole, schema))
    for name, make in MAKERS.items():
        tables.write(name, make(tables))
    return tables


def findings_of(tables: Tables, limits: Limits) -> list[Any]:
    """Of all rules about queues."""
    rules = [rule for rule in FINDINGS if rule.__module__ == queues.__name__]
    assert rules
    return [row for rule in rules for row in rule(tables, limits).collect()]


def rows_of(tables: Tables, name: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in tables[name].collect()]
