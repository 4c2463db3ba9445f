"""Spark and the checkers in Python judge the same histories alike."""
# Spark and Arrow come with few types.

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import (
    Verdict,
    ack_finality,
    delivery_count,
    publisher_order,
    sac_exclusion,
    total_queue,
)
from chaos.history import Op, line_of
from tests.checker.broker import broker
from tests.checker.histories import Told
from tests.testkit.draws import one_of_long

pytestmark = pytest.mark.spark

CHECKERS: list[Callable[[Sequence[Op]], Verdict]] = [
    total_queue,
    ack_finality,
    publisher_order,
    delivery_count(None),
    sac_exclusion(lambda _: True),
]
HISTORIES = 300
#: The checker in Python counts each consumer that held a newer token, Spark each settle.
BY_SETTLE = "old token settled"


def _spoilt(ops: list[Op], dice: random.Random) -> list[Op]:
    """Some of what a right broker never does, here and there."""
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at = dice.randrange(len(ops))
        op, value = ops[at], dict(ops[at].value)
        match dice.randrange(6):
            case 0:
                if op.f == "deliver":
                    del ops[at]
            case 1:
                ops.append(replace(op, value=value))
            case 2 if op.f == "deliver":
                change = dice.choice(("token", "first", "acquired_count", "delivery_count"))
                value[change] = None if value[change] is None else dice.randrange(0, 40)
                ops[at] = replace(op, value=value)
            case 3 if op.f == "deliver":
                token = None if value["token"] is None else dice.randrange(1, 60)
                again = {**value, "token": token, "consumer": dice.choice(("w/c1", "w/late"))}
                again["acquired_count"] = dice.randrange(2)
                ops.append(replace(op, value=again))
            case 4 if op.f == "settle":
                ops[at] = replace(op, type=dice.choice(("ok", "unknown", "refused")))
            case _:
                token = None if dice.random() < 0.3 else dice.randrange(1, 60)
                told = {"queue": "q", "consumer": "w/c1", "token": token, "accepted": True}
                ops.append(Op(0, "w/c1", "ok", "store", told))
    # A history is in order, whatever was put in or taken out.
    places = {id(op): at for at, op in enumerate(ops)}
    invoked = {op.index: places[id(op)] for op in ops if op.type == "invoke"}
    return [
        replace(op, index=at, invoke=None if op.invoke is None else invoked.get(op.invoke))
        for at, op in enumerate(ops)
    ]


def _numbers() -> list[Op]:
    """A simulated history, whose consumers are numbers that count."""
    told = Told()
    told.publish(1, 3)
    told.deliver("p:1", "p:2", token=1, first=1)
    told.deliver("p:2", token=2, first=2, consumer=2, acquired=1, failed=2)
    told.deliver("p:1", token=3, first=1, consumer=2, acquired=0)
    told.settle("p:2", token=1)
    told.settle("p:2", token=2, consumer=2)
    told.store(token=2, accepted=True)
    told.store(token=1, accepted=True)
    told.publish(4, ended="refused")
    told.deliver("p:4", token=4, first=4)
    told.drain()
    return list(told.ops)


def _histories() -> dict[str, list[Op]]:
    found = {"numbers": _numbers()}
    for seed in range(HISTORIES):
        ops = broker(seed, tells=seed % 3 > 0)
        found[f"h{seed}"] = _spoilt(ops, random.Random(seed))
    return found


def _anomalies(spark: Any, folder: Path, histories: dict[str, list[Op]]) -> list[Any]:
    from chaos.postmortem.queues.clients import anomalies, read_history

    with (folder / "history.jsonl").open("w") as file:
        for run, ops in histories.items():
            file.writelines(json.dumps({"run": run, **asdict(op)}) + "\n" for op in ops)
    return anomalies(read_history(spark, folder / "history.jsonl"), ["q"]).collect()


def test_spark_and_the_checkers_agree(spark: Any, tmp_path: Path) -> None:
    histories = _histories()
    by_spark = Counter[tuple[str, str, str]]()
    late = set[tuple[str, int]]()
    for row in _anomalies(spark, tmp_path, histories):
        by_spark[row.run, row.checker, row.kind] += 1
        if row.kind == BY_SETTLE:
            late.add((row.run, row.op))

    by_python = Counter[tuple[str, str, str]]()
    told_late = set[str]()
    for run, ops in histories.items():
        for checker in CHECKERS:
            verdict = checker(ops)
            for kind, count in verdict.counts.items():
                if kind in verdict.examples:
                    by_python[run, verdict.checker, kind] = count
                if kind == BY_SETTLE and count:
                    told_late.add(run)

    assert {run for run, _ in late} == told_late
    differ = {
        key: (by_python[key], by_spark[key])
        for key in by_python.keys() | by_spark.keys()
        if key[2] != BY_SETTLE and by_python[key] != by_spark[key]
    }
    assert not differ
    kinds = {kind for _, _, kind in by_python}
    assert len(kinds) >= 12, f"too tame: only {kinds}"


def test_a_right_history_accuses_nobody(spark: Any, tmp_path: Path) -> None:
    histories = {f"h{seed}": broker(seed, tells=seed % 2 > 0) for seed in range(20)}

    assert _anomalies(spark, tmp_path, histories) == []


def _shop() -> Told:
    """Queues that lose messages or get them from elsewhere, as they should; and four crimes."""
    told = Told()

    def declare(queue: str, **arguments: Any) -> None:
        value = {"queue": queue, "arguments": {f"x-{n}": v for n, v in arguments.items()}}
        told.end(told.invoke("admin", "declare", value), "ok")

    declare("short", **{"message-ttl": 400, "dead-letter-exchange": ""})
    told.publish(1, 2, queue="short")
    told.deliver("p:2", token=1, queue="dead")
    told.publish(3, queue="plain", ttl_ms=300)
    told.publish(4, queue="gone")
    told.end(told.invoke("admin", "delete", {"queue": "gone"}), "ok")
    routed = {"queue": None, "exchange": "all", "publisher": "p", "first": 5, "count": 1}
    told.end(told.invoke("p", "publish", routed), "ok")
    told.deliver("p:5", token=2, queue="bound")
    told.publish(6, queue="late", ordered=True, delay_ms=900)
    told.publish(7, queue="late", ordered=True)
    told.deliver("p:7", token=3, first=2, queue="late")
    told.deliver("p:6", token=4, first=1, queue="late")
    declare("q")
    told.publish(8, 3, ordered=True)
    told.deliver("p:10", token=5, first=1)
    told.deliver("p:9", "phantom:1", token=6, first=2)
    told.publish(11, 2, queue="source")
    told.deliver("p:11", token=7, first=1, queue="far")
    told.settle("p:11", token=7, queue="far")
    told.deliver("p:11", token=8, first=2, queue="far")  # a link may send it twice
    told.publish(13, 2, queue="a")
    told.publish(13, 2, queue="b")
    told.deliver("p:13", "p:14", token=9, first=1, queue="a")
    told.deliver("p:13", token=10, first=1, queue="b")
    for queue in ("short", "dead", "plain", "gone", "bound", "late", "q", "source", "far", "b"):
        told.drain(queue)
    return told


def test_what_queues_are_made_for_is_no_crime(spark: Any, tmp_path: Path) -> None:
    from chaos.postmortem.queues.clients import anomalies, provable, read_history

    file = tmp_path / "history.jsonl"
    file.write_text("".join(map(line_of, _shop())))
    ops = read_history(spark, file)

    found = provable(ops, anomalies(ops, [])).collect()

    assert {(row.queue, row.message, row.kind) for row in found} == {
        ("source", "p:12", "lost"),
        ("b", "p:14", "lost"),
        ("q", "p:8", "lost"),
        ("q", "phantom:1", "unexpected"),
        ("q", "p:10", "stored out of order"),
        ("q", "p:9", "first delivered out of order"),
    }


# --- against what the log says --------------------------------------------------------------------


def _lost(queue: str, count: int) -> list[Op]:
    """As many as that were confirmed and never came, and the queue was drained."""
    value: dict[str, Any] = {"queue": queue, "publisher": "p", "first": 1, "count": count}
    return [
        Op(0, "p", "invoke", "publish", value),
        Op(1, "p", "ok", "publish", value, invoke=0),
        Op(2, "c", "invoke", "drain", {"queue": queue}),
        Op(3, "c", "ok", "drain", {"queue": queue}, invoke=2),
    ]


@one_of_long("what left otherwise")
def test_what_left_otherwise_excuses_no_more_than_itself(spark: Any, tmp_path: Path) -> None:
    """Each history has lost `p:1` to `p:3` of its queue."""
    from chaos.postmortem.findings.clients import client_anomalies
    from chaos.postmortem.limits import Limits
    from chaos.postmortem.pipeline import Asked, _clients, _of_queue
    from cluster.codec.entries import encode_entry
    from cluster.machine.commands import Enqueue
    from cluster.types import QueueId
    from tests.postmortem.queue_events import Told, filled

    web = {"publisher": "p", "seqno": 1}
    old, elsewhere = {"publisher": "p", "seqno": 11}, {**web, "vhost": "a"}
    told = [
        Told(1, "all lost").published(1, 3, **web),
        Told(2, "one died").published(1, 3, **web).add("died", 2, reason="expired"),
        Told(3, "all gone").published(1, 3, **web).add("purged", 1, 2).add("deleted", 3),
        Told(4, "others died").published(1, 3, **old).add("died", 1, 3, reason="expired"),
        Told(5, "never stored"),
        Told(6, "namesake", group=2).published(1, 3, **web),
        Told(7, "namesake", group=2).published(1, 3, **elsewhere).add("died", 1, 3, vhost="a"),
        Told(8, "other vhost").published(1, 3, **elsewhere).add("died", 1, 3, vhost="a"),
        Told(9, "nameless").published(1, 2).add("purged", 1, 2),
        Told(10, "by body").entry(40).published(1, 3).add("purged", 1, 3),
    ]
    bodies = [b"p:1|...", b"p:22", b"p:2...."]
    command = b"\0" + encode_entry(1, [Enqueue(QueueId(10), None, 0, bodies)])
    stored = {"group": 1, "index": 40, "command": command, "kind": "entry", "wall_ns": 0}
    names = [each.rows[0].name for each in told if each.rows and each.rows[0].name != "namesake"]
    names += ["never stored", "namesake", "a/namesake", "a/other vhost"]
    ops = [op for name in names for op in _lost(str(name), 3)]
    with (tmp_path / "history.jsonl").open("w") as file:
        for index, op in enumerate(ops):
            moved = op.index + index // 4 * 4
            invoke = None if op.invoke is None else op.invoke + index // 4 * 4
            file.write(json.dumps(asdict(replace(op, index=moved, invoke=invoke))) + "\n")
    rows = [row for each in told for row in each.rows]
    tables = filled(spark, tmp_path / "tables", rows, {"records": [stored]})

    def found(queue: str | None) -> dict[str, int]:
        seen = tables if queue is None else tables.only("events", _of_queue(queue))
        asked = Asked(history=tmp_path / "history.jsonl", queue=queue)
        tables.write("client_findings", _clients(seen, asked))
        rows = client_anomalies(seen, Limits()).collect()
        assert {row.code for row in rows} <= {"lost_message"}
        details.update({row.queue: row.detail for row in rows})
        return {row.queue: row["count"] for row in rows}

    details = dict[str, str]()
    assert found(None) == {
        "all lost": 3,
        "one died": 2,
        "others died": 3,
        "never stored": 3,
        "namesake": 3,
        "nameless": 1,
        "by body": 1,
    }
    assert "the log has it: ready" in details["all lost"]
    assert "no log that was given has it" in details["never stored"]
    assert "not counted: 2 that died, were purged, withdrawn or deleted" in details["nameless"]
    assert "not counted" not in details["by body"]
    assert found("all gone") == {}
    assert found("one died") == {"one died": 2}

    def meant(queue: str) -> set[str]:
        rows = tables["events"].where(_of_queue(queue)).where("name is not null")
        return {f"{row.name} in {row.vhost}" for row in rows.select("name", "vhost").collect()}

    for named in ("one died", "/one died", "//one died"):
        assert meant(named) == {"one died in /"}
    assert meant("a/namesake") == {"namesake in a"}


def test_clients_call_a_queue_by_its_name_and_by_its_vhost_where_that_is_not_enough() -> None:
    from chaos.postmortem.pipeline import called

    queues = [("/", "q", True), ("a", "q", False), ("a", "b", True), ("a", "c", False)]
    assert called([*queues, ("d", "c", True)]) == {
        "//q": True, "q": True, "a/q": False, "a/b": True, "b": True, "a/c": False, "d/c": True,
    }  # fmt: skip


def test_a_record_of_confirms_is_judged_where_logs_reach(spark: Any, tmp_path: Path) -> None:
    from chaos.postmortem.queues.receipts import LOST, TWICE, receipts
    from tests.postmortem.queue_events import START_MS, Told, filled

    orders = Told(1, "orders").published(1, 3, publisher="web", seqno=1)
    orders.entry(40, 60_000).published(4, publisher="web", seqno=2)
    late = Told(2, "late", group=2).entry(90, 30_000).published(9, publisher="web", seqno=9)
    replays = [
        {"group": 1, "span": 0, "base": 1, "last": 99},
        {"group": 2, "span": 0, "base": 80, "last": 99},
    ]
    ends = [{"node": "n1", "last_ns": (START_MS + 90_000) * 1_000_000}]
    more = {"replays": replays, "segments": ends}
    tables = filled(spark, tmp_path / "tables", [*orders.rows, *late.rows], more)
    rows = [
        ("orders", "web:1", START_MS + 1_000, 1),
        ("orders", "web:2", None, 2),  # twice
        ("orders", "web:7", START_MS + 1_000, 3),  # nowhere
        ("orders", "web:8", None, 4),  # nowhere, and nobody knows when
        ("orders", "web:8", START_MS + 90_000, 5),  # perhaps behind the end of the logs
        ("late", "web:1", START_MS + 1_000, 6),  # before the log of its group begins
        ("late", "web:2", START_MS + 40_000, 7),  # nowhere
        ("late", "web:9", START_MS + 40_000, 8),
        ("late", "2-90-0", START_MS + 40_000, 9),
        ("elsewhere", "web:1", START_MS + 40_000, 10),
    ]

    found = receipts(tables, rows, {"orders": (1, 1), "late": (2, 2)}).collect()

    assert {row.op: row.kind for row in found} == {2: TWICE, 3: LOST, 7: LOST}


def test_a_body_may_begin_with_the_name_of_its_message() -> None:
    from chaos.postmortem.queues.outcomes import beginnings

    assert beginnings(b"web:17....") == ["web:17"]
    assert beginnings(b"a1:b:2|" + bytes(9)) == ["a1:b:2"]
    assert beginnings(b"w2:3:45") == ["w2:3", "w2:3:45"]
    assert beginnings(b"2026 \xff:1") == beginnings(b"") == beginnings(b"no number") == []


def test_a_queue_that_is_not_there_is_refused(spark: Any, tmp_path: Path) -> None:
    from chaos.postmortem.pipeline import of_queue
    from chaos.postmortem.reading.inputs import BadInput
    from chaos.postmortem.tables import Tables
    from tests.postmortem.queue_events import Told, filled

    told = [Told(1, "orders").published(1), Told(2, "bills").published(1)]
    tables = filled(spark, tmp_path / "tables", [row for each in told for row in each.rows])

    assert of_queue(tables, "orders")["events"].count() == 1
    with pytest.raises(BadInput, match=r"no queue order .*: bills in vhost /, orders in vhost /"):
        of_queue(tables, "order")
    # Where nothing at all could be replayed, nobody knows.
    nothing = Tables(spark, tmp_path / "nothing")
    nothing.write("events", nothing.empty("events"))
    assert of_queue(nothing, "order")["events"].count() == 0
