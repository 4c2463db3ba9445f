"""Twenty minutes of a cluster of three, as rows of the tables: a made-up incident for the report.

n1 is killed, then n2, the follower n3 stands still for eight seconds, a consumer returns all that
it gets for eighty seconds. Nine groups, three busy queues, `ledger` with a single active consumer.
"""
# Spark and Arrow come with few types.

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.postmortem.findings.catalogue import RULES

BEGIN_NS: Final = 1_794_970_800_000_000_000  # 2026-11-18 03:00:00 UTC
SECONDS: Final = 1_200
S: Final = 1_000_000_000
NODES: Final = ("n1", "n2", "n3")
GROUPS: Final = tuple(range(9))
KILLS: Final = (("n1", 250.4, 297.0), ("n2", 680.2, 731.0))
PAUSE: Final = ("n3", 941.3, 949.4)
STORM: Final = (480, 560)
LEDGER: Final = (2, 310, "/", "ledger")
QUEUES: Final = ((1, 205, "/", "orders"), (3, 402, "billing", "invoices"), LEDGER)

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def at(second: float) -> int:
    return BEGIN_NS + round(second * S)


def queue(key: tuple[int, int, str, str]) -> Row:
    return dict(zip(("group", "queue", "vhost", "name"), key, strict=True))


def finding(code: str, **known: Any) -> Row:
    rule = RULES[code]
    return {"code": code, "severity": rule.severity, "title": rule.title, "count": 1, **known}


class Incident:
    """The tables of one incident; more can be put into `tables` before they are written."""

    def __init__(self, seed: int = 6) -> None:
        self._dice = random.Random(seed)
        self.tables: Rows = {
            "segments": list(self._segments()),
            "lives": list(self._lives()),
            "leaders": list(self._leaders()),
            "elections": list(self._elections()),
            "commit_latency": list(self._latencies()),
            "syncs": list(self._syncs()),
            "lag": list(self._lag()),
            "standstills": [self._where("n3", 3) | {
                "from_ns": at(PAUSE[1]), "to_ns": at(PAUSE[2]), "ms": 8_100.0, "syncing": False}],
            "clocks": list(self._clocks()),
            "snapshots": [
                self._where(node, 2) | {"group": group, "index": 60_000 + group, "term": 3,
                                        "at_ns": at(600 + 3 * group), "installed": False}
                for node in NODES for group in (1, 2, 3)],
            "throughput": list(self._throughput()),
            "latency": list(self._queue_latency()),
            "redelivery": [queue(QUEUES[1]) | {
                "minute_ms": at(480 + 60 * minute) // 1_000_000,
                "delivered": 30_000 - 12_000 * minute,
                "redelivered": 27_500 - 11_500 * minute, "messages": 60, "consumers": 2,
                "entry": 40_000} for minute in (0, 1)],
            "sac": list(self._sac()),
            "unacked": [queue(QUEUES[0]) | {
                "consumer": 7, "session": "worker-3", "held": 25,
                "oldest_ms": at(1_188) // 1_000_000,
                "oldest_position": 91_000, "oldest_entry": 99_120, "longest_ms": 12_400}],
            "replays": [{"group": group, "span": 0, "base": 0, "first": 2, "last": 90_000 + group,
                         "node": "n1", "entries": 90_000 + group, "commands": 88_000,
                         "messages": 120_000} for group in GROUPS],
            "states": [{"group": group, "index": 1_000 * k, "node": node, "source": "digest",
                        "noted": "aa", "replayed": "aa", "agrees": True}
                       for group in GROUPS for node in NODES for k in (1, 2, 3)],
            "findings": list(self._findings()),
        }  # fmt: skip

    def _where(self, node: str, segment: int) -> Row:
        return {"cluster": "mq", "node": node, "boot": f"{node}-a", "segment": segment,
                "created_ns": at(0), "offset": 4_096 * segment + 48,
                "file": f"/srv/{node}/log/{segment:020d}.log"}  # fmt: skip

    def _segments(self) -> Iterator[Row]:
        for node in NODES:
            for number in range(1, 6):
                last = number == 5
                yield self._where(node, number) | {
                    "bytes": 64 << 20, "source": "log", "copy": False, "last": last,
                    "status": "sound", "records": 410_000, "entries": 180_000,
                    "first_ns": at(240 * (number - 1)), "last_ns": at(240 * number),
                }  # fmt: skip

    def _lives(self) -> Iterator[Row]:
        killed = {node: (down, up) for node, down, up in KILLS}
        for node in NODES:
            if node not in killed:
                spans = [(0, SECONDS, "open")]
            else:
                down, up = killed[node]
                spans = [(0, down, "killed"), (up, SECONDS, "open")]
            for life, (begin, end, ended) in enumerate(spans):
                yield self._where(node, 1) | {
                    "life": life, "boot": f"{node}-{'ab'[life]}", "from_ns": at(begin),
                    "to_ns": at(end), "ended": ended,
                }  # fmt: skip

    def _reigns(self) -> Iterator[tuple[int, list[tuple[str, int, float, float, str]]]]:
        """Of each group: leader, term, from, to, ended."""
        for group in GROUPS:
            if group % 2 == 0:
                down = KILLS[0][1]
                back = 330 + 2.5 * group
                won = down + 1.6 + 0.11 * group
                yield (
                    group,
                    [
                        ("n1", 2, 1.2, down, "killed"),
                        ("n3" if group == 4 else "n2", 3, won, back, "handed over"),
                        ("n1", 4, back + 0.05, SECONDS, "open"),
                    ],
                )
            else:
                down = KILLS[1][1]
                back = 775 + 2.5 * group
                yield (
                    group,
                    [
                        ("n2", 2, 1.4, down, "killed"),
                        ("n1", 3, down + 1.3 + 0.17 * group, back, "handed over"),
                        ("n2", 4, back + 0.05, SECONDS, "open"),
                    ],
                )

    def _leaders(self) -> Iterator[Row]:
        for group, reigns in self._reigns():
            for leader, term, begin, end, ended in reigns:
                yield self._where(leader, 1) | {
                    "group": group, "term": term, "leader": leader, "from_ns": at(begin),
                    "to_ns": at(end), "ended": ended,
                }  # fmt: skip

    def _elections(self) -> Iterator[Row]:
        for group, reigns in self._reigns():
            before: str | None = None
            end = 0.0
            for leader, term, begin, ends, _ in reigns:
                cause = {2: "first", 3: "killed", 4: "handed over"}[term]
                yield self._where(leader, 1) | {
                    "group": group, "term": term, "candidate": leader, "at_ns": at(begin - 0.04),
                    "voters": [
                        {"node": node, "at_ns": at(begin - 0.02), "file": "a.log", "offset": 48}
                        for node in (leader, "n3")
                    ],
                    "leader": leader, "led_ns": at(begin), "cause": cause, "before": before,
                    "without_leader_ms": 1e3 * (begin - end) if before else None,
                }  # fmt: skip
                before, end = leader, ends

    def _down(self, node: str, second: float) -> bool:
        return any(node == who and begin <= second < end for who, begin, end in KILLS)

    def _paused(self, node: str, second: float) -> bool:
        return node == PAUSE[0] and PAUSE[1] <= second < PAUSE[2]

    def _latencies(self) -> Iterator[Row]:
        for group, reigns in self._reigns():
            for minute in range(0, SECONDS, 60):
                for node in NODES:
                    leads = any(
                        leader == node and begin < minute + 60 and end > minute
                        for leader, _, begin, end, _ in reigns
                    )
                    if self._down(node, minute + 30) and self._down(node, minute):
                        continue
                    troubled = minute in (240, 660)
                    base = self._dice.uniform(2.2, 3.4) * (1.4 if node == "n2" else 1)
                    p99 = base * self._dice.uniform(4, 7) * (40 if troubled else 1)
                    yield {
                        "node": node, "group": group, "minute_ns": at(minute), "leads": leads,
                        "entries": 9_000, "bytes": 4_000_000, "sync_p50": base / 2,
                        "sync_p99": base * 2, "sync_max": base * 4, "commit_p50": base,
                        "commit_p95": p99 / 2, "commit_p99": p99, "commit_max": p99 * 2,
                    }  # fmt: skip

    def _syncs(self) -> Iterator[Row]:
        for node in NODES:
            for second in range(SECONDS):
                if self._down(node, second) or self._paused(node, second):
                    continue
                longest = self._dice.lognormvariate(1.1, 0.45)
                if node == "n2" and 1_030 < second < 1_060:
                    longest *= self._dice.uniform(5, 60)
                yield self._where(node, 2) | {
                    "at_ns": at(second), "records": 700, "bytes": 300_000, "syncs": 180,
                    "longest_ms": longest,
                }  # fmt: skip

    def _lag(self) -> Iterator[Row]:
        for node in NODES:
            for group in (1, 2, 3):
                lag, committed = 0.0, 100_000
                for second in range(SECONDS):
                    down = self._down(node, second)
                    committed += 110
                    if down or self._paused(node, second):
                        lag += 110
                    else:
                        lag = lag * 0.42 if lag > 40 else self._dice.choice((0, 0, 1, 3, 6))
                    yield {
                        "node": node, "group": group, "at_ns": at(second), "leader": "n1",
                        "committed": committed, "index": committed - round(lag),
                        "lag_entries": round(lag), "lag_ms": lag * 9.0, "down": down,
                    }  # fmt: skip

    def _clocks(self) -> Iterator[Row]:
        for minute in range(0, SECONDS, 60):
            for node, peer, offset in (("n1", "n2", 1.8), ("n1", "n3", -0.6), ("n2", "n3", -2.4)):
                yield {"node": node, "peer": peer, "minute_ns": at(minute),
                       "offset_ms": offset + self._dice.uniform(-0.2, 0.2), "bound_ms": 0.35,
                       "samples": 12}  # fmt: skip

    def _stalled(self, group: int, second: int) -> bool:
        down = KILLS[group % 2][1]
        return down <= second < down + 2

    def _throughput(self) -> Iterator[Row]:
        for key, rate in zip(QUEUES, (900, 380, 120), strict=True):
            for second in range(2, SECONDS):
                if self._stalled(key[0], second):
                    continue
                published = round(rate * self._dice.uniform(0.85, 1.15))
                caught_up = self._stalled(key[0], second - 2)
                delivered = round(rate * self._dice.uniform(0.85, 1.1)) * (2 if caught_up else 1)
                again = round(self._dice.uniform(380, 460)) if (
                    key[3] == "invoices" and STORM[0] <= second < STORM[1]) else (
                    40 if caught_up else 0)  # fmt: skip
                yield queue(key) | {
                    "second_ms": at(second) // 1_000_000, "published": published,
                    "delivered": delivered + again, "redelivered": again,
                    "settled": delivered, "returned": again, "dead": 0,
                }  # fmt: skip

    def _queue_latency(self) -> Iterator[Row]:
        for key in QUEUES:
            for kind, p50 in (("confirm", 3.0), ("deliver", 4.4), ("settle", 18.0)):
                for minute in range(0, SECONDS, 60):
                    spike = 60 if minute in (240, 660) else 1
                    yield queue(key) | {
                        "kind": kind, "minute_ms": at(minute) // 1_000_000, "messages": 20_000,
                        "p50": p50, "p95": p50 * 3, "p99": p50 * 6 * spike,
                        "longest": p50 * 9 * spike,
                    }  # fmt: skip

    def _sac(self) -> Iterator[Row]:
        spans = ((2.0, 250.4, 21, "ledger-a"), (252.9, 610.0, 22, "ledger-b"),
                 (610.4, 1_000.0, 21, "ledger-a"), (1_003.0, None, 23, "ledger-c"))  # fmt: skip
        for token, (begin, end, consumer, session) in enumerate(spans, start=1):
            yield queue(LEDGER) | {
                "consumer": consumer, "session": session, "token": 1_000 * token,
                "from_ms": at(begin) // 1_000_000,
                "to_ms": None if end is None else at(end) // 1_000_000,
                "until_token": None if end is None else 1_000 * (token + 1), "entry": 5_000 * token,
            }  # fmt: skip

    def _findings(self) -> Iterator[Row]:
        for which, (node, down, _) in enumerate(KILLS):
            groups = [group for group in GROUPS if group % 2 == which]
            yield finding(
                "leader_lost", node=node, term=2, from_ns=at(down), to_ns=at(down + 2.6),
                count=len(groups), file=f"/srv/{node}/log/{2 + which:020d}.log", offset=1_204_224,
                detail=f"{node} was killed while it led groups {', '.join(map(str, groups))};"
                " without a leader for 1.3 to 2.6 s; now led by "
                + ("n2 (0, 2, 6, 8) and n3 (4)" if which == 0 else "n1 (all)"),
            )  # fmt: skip
        yield finding(
            "process_stood_still", node="n3", from_ns=at(PAUSE[1]), to_ns=at(PAUSE[2]),
            file="/srv/n3/log/00000000000000000004.log", offset=40_113_152,
            detail="nothing was written for 8.1 s, no fsync was under way: the process did not run",
        )  # fmt: skip
        yield finding(
            "lagging_replica", node="n3", group=1, first=181_530, last=182_421, count=891,
            from_ns=at(942), to_ns=at(952), file="/srv/n3/log/00000000000000000004.log",
            offset=40_113_408, detail="up to 891 entries (8.0 s) behind n2",
        )  # fmt: skip
        yield finding(
            "redelivery_storm", group=3, queue="billing/invoices", first=40_000, last=71_211,
            count=27_500, from_ns=at(STORM[0]), to_ns=at(STORM[1]),
            message="3-40000-0",
            detail="27,500 of 30,000 deliveries in the worst minute were repetitions, of 60"
            " messages to 2 consumers (invoicer-1, invoicer-2)",
        )  # fmt: skip


def fill(tables: Any, rows: Mapping[str, list[Row]]) -> None:
    """As a pipeline would leave them, but without Spark's jobs; what has no rows is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    from chaos.postmortem.tables import schema_of

    for name, known in rows.items():
        schema = to_arrow_schema(schema_of(name))
        data = [{column: row.get(column) for column in schema.names} for row in known]
        folder = Path(tables.path(name))
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(data, schema), folder / "part-0.parquet")
