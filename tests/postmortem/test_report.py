"""The report of a made-up incident, from its tables on: what Spark sums up is what plain Python
sums up of the same rows.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos.postmortem.report import About
from chaos.postmortem.report.facts import Curve, Facts
from chaos.postmortem.report.write import write_facts
from tests.postmortem.incident import (
    KILLS,
    NODES,
    QUEUES,
    SECONDS,
    STORM,
    Incident,
    Row,
    S,
    at,
    fill,
    finding,
    queue,
)

#: Of what waits for ever: with a busy machine the first queries alone take minutes.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVIL = (4, 77, "/", "<script>alert(1)</script>")
LETTERS = (1, 206, "/", "orders.dead")
MESSAGE = "1-5000-2"
STUCK = 25


def event(
    index: int, second: float, what: str, key: tuple[int, int, str, str], **known: Any
) -> Row:
    return queue(key) | {"index": index, "term": 2, "ordinal": 0, "step": 0, "event": what,
                         "at_ms": at(second) // 1_000_000, **known}  # fmt: skip


def history() -> tuple[list[Row], list[Row]]:
    """A message, and the dead letter that it became; and rows of others beside it."""
    orders = QUEUES[0]
    told = queue(orders) | {
        "position": 30, "message": MESSAGE, "entry": 5_000, "entry_offset": 2, "deliveries": 2,
        "redeliveries": 1, "published_ms": at(50) // 1_000_000, "outcome": "died",
        "outcome_ms": at(53) // 1_000_000, "reason": "rejected", "confirm_ms": 2.5,
    }  # fmt: skip
    letter = queue(LETTERS) | {"position": 1, "message": MESSAGE, "deliveries": 0,
                               "published_ms": at(53) // 1_000_000, "outcome": "ready"}  # fmt: skip
    events = [
        event(5_000, 50, "published", orders, first=28, last=31, publisher="shop", seqno=4),
        event(5_001, 51, "delivered", orders, first=30, last=30, consumer=7, token=70, acquired=0),
        event(5_002, 51, "delivered", orders, first=31, last=40, consumer=8, token=71, acquired=0),
        event(5_003, 52, "duplicate", orders, first=25, last=35, publisher="shop"),
        event(5_004, 52, "active", orders, consumer=8, token=71),
        event(5_005, 53, "died", orders, first=30, last=30, reason="rejected", goes=True),
        event(5_005, 53, "letter", LETTERS, first=1, last=1, reason="rejected", ordinal=1),
        event(5_005, 53, "published", (2, 206, "/", "other"), first=30, last=30),
    ]
    return [letter, told, told | {"message": "1-5000-3", "position": 31}], events


@pytest.fixture(scope="module")
def rows() -> dict[str, list[Row]]:
    tables = Incident().tables
    tables["findings"] += [
        finding("stuck_unacked", group=1, queue="orders", first=place, from_ns=at(900 + place))
        for place in range(STUCK)
    ]
    tables["throughput"].append(
        queue(EVIL) | {"second_ms": at(5) // 1_000_000, "published": 1, "delivered": 1,
                       "redelivered": 0, "settled": 1, "returned": 0, "dead": 0}
    )  # fmt: skip
    tables["messages"], tables["events"] = history()
    tables["corruption"] = [
        {"node": "n2", "file": "/srv/n2/log/1.log", "offset": 99, "group": -1, "kind": "bad record",
         "reason": "its checksum differs"}
    ]  # fmt: skip
    return tables


@pytest.fixture(scope="module")
def told(spark: Any, rows: dict[str, list[Row]], tmp_path_factory: Any) -> tuple[Facts, Path]:
    from chaos.postmortem.report.gather import gather
    from chaos.postmortem.tables import Tables

    folder = tmp_path_factory.mktemp("postmortem")
    tables = Tables(spark, folder / "tables")
    fill(tables, rows)
    about = About(("/srv",), at(0), at(SECONDS), 1, "1.2.3", 3.0, message=MESSAGE,
                  skipped={"lost_message": "no history was given"})  # fmt: skip
    facts = gather(tables, about)
    write_facts(facts, folder / "report", about)
    return facts, folder / "report"


def test_every_check_is_counted_and_shows_its_first_examples(told: tuple[Facts, Path]):
    summary = json.loads((told[1] / "summary.json").read_text(encoding="utf-8"))
    checks = {check["code"]: check for check in summary["checks"]}

    assert {code: check["count"] for code, check in checks.items() if check["count"]} == {
        "leader_lost": 2, "process_stood_still": 1, "lagging_replica": 1, "redelivery_storm": 1,
        "stuck_unacked": STUCK,
    }  # fmt: skip
    assert [each["first"] for each in checks["stuck_unacked"]["examples"]] == list(range(20))
    assert checks["lost_message"]["status"] == "skipped"
    assert checks["divergence"]["status"] == "pass"
    lost = checks["leader_lost"]["examples"]
    assert [(each["node"], each["from_ns"]) for each in lost] == [
        (node, at(down)) for node, down, _ in KILLS
    ]
    assert lost[0]["file"] == "/srv/n1/log/00000000000000000002.log"
    assert lost[0]["offset"] == 1_204_224


def test_all_tables_are_counted_also_those_that_nobody_wrote(
    told: tuple[Facts, Path], rows: dict[str, list[Row]]
):
    counts = told[0].rows

    assert {name: count for name, count in counts.items() if count} == {
        name: len(known) for name, known in rows.items() if known
    }
    assert counts["client_findings"] == 0
    assert counts["records"] == 0


def test_incidents_are_numbered_as_they_happened(told: tuple[Facts, Path]):
    incidents = told[0].incidents

    times = [each.from_ns for each in incidents]
    assert [each.number for each in incidents] == list(range(1, len(incidents) + 1))
    assert times == sorted(times)
    assert [each.finding.code for each in incidents[:4]] == [
        "leader_lost", "redelivery_storm", "leader_lost", "stuck_unacked",
    ]  # fmt: skip


def summed(curve: Curve, bucket_ns: int, end_ns: int) -> float:
    """Messages of all buckets, of which the last one need not be whole."""
    return sum(
        value * (min(begin_ns + bucket_ns, end_ns) - begin_ns) / S
        for begin_ns, value in curve.points
    )


def test_traffic_is_that_of_the_rows_whatever_the_buckets(
    told: tuple[Facts, Path], rows: dict[str, list[Row]]
):
    picture = told[0].pictures[0]
    wanted: Counter[str] = Counter()
    for row in rows["throughput"]:
        wanted[""] += row["published"]
        wanted[row["name"]] += row["published"]

    assert picture.window.bucket_ns == 5 * S
    found = {
        "" if flow.queue is None else flow.queue.name: round(
            summed(flow.published, picture.window.bucket_ns, picture.window.to_ns)
        )
        for flow in picture.traffic
    }
    assert found == dict(wanted)
    storm = next(flow for flow in picture.traffic if flow.queue and flow.queue.name == "invoices")
    assert {begin_ns for begin_ns, value in storm.redelivered.points if value > 100} == {
        at(second) for second in range(*STORM, 5)
    }


def test_curves_show_the_worst_of_each_bucket(told: tuple[Facts, Path], rows: dict[str, list[Row]]):
    whole, *closer = told[0].pictures

    assert [curve.name for curve in whole.sync] == list(NODES)
    for node, curve in zip(NODES, whole.sync, strict=True):
        by_bucket: dict[int, float] = {}
        for row in rows["syncs"]:
            if row["node"] == node:
                begin_ns = row["at_ns"] - (row["at_ns"] - at(0)) % (5 * S)
                by_bucket[begin_ns] = max(by_bucket.get(begin_ns, 0.0), row["longest_ms"])
        assert dict(curve.points) == by_bucket
    # Nothing is known of a node that is down: no lag of it is drawn.
    down = next(curve for curve in whole.lag if curve.name == "n1")
    assert not any(at(260) <= begin_ns < at(290) for begin_ns, _ in down.points)
    assert max(value for _, value in whole.lag[2].points) == max(
        row["lag_entries"] for row in rows["lag"] if row["node"] == "n3"
    )
    leading = [row for row in rows["commit_latency"] if row["leads"] and row["node"] == "n1"]
    assert max(value for _, value in whole.commit_p99[0].points) == max(
        row["commit_p99"] for row in leading
    )
    # A minute that began before a closer look is in it all the same.
    assert all(picture.commit_p99 for picture in closer)
    # A closer look has every second.
    assert closer
    assert all(picture.window.bucket_ns == S for picture in closer)
    window = closer[0].window
    assert window.from_ns < at(KILLS[0][1]) < window.to_ns
    assert dict(closer[0].sync[1].points) == {
        window.from_ns + (row["at_ns"] - window.from_ns) // S * S: row["longest_ms"]
        for row in rows["syncs"]
        if row["node"] == "n2" and window.from_ns <= row["at_ns"] < window.to_ns
    }


def test_queues_that_findings_name_come_before_busier_ones(told: tuple[Facts, Path]):
    by_name = {row.queue.name: row for row in told[0].queues}

    assert [row.queue.name for row in told[0].queues] == [
        "orders", "invoices", "ledger", "<script>alert(1)</script>",
    ]  # fmt: skip
    orders = by_name["orders"]
    assert (orders.held, orders.oldest_ns, orders.longest_ms) == (25, at(1_188), 12_400)
    assert orders.p99["confirm"] == pytest.approx(3.0 * 6 * 60)
    assert by_name["ledger"].held == 0


def test_leaders_nodes_and_replays_are_there(told: tuple[Facts, Path]):
    facts = told[0]

    assert len(facts.leaders) == 27
    unplanned = [each for each in facts.elections if not each.planned]
    assert len(unplanned) == 9
    assert unplanned[0].voters == ("n2", "n3")
    assert [(row.node, row.files, row.unsound) for row in facts.nodes] == [
        (node, 5, 0) for node in NODES
    ]
    assert [row.agreed for row in facts.replays] == [9] * 9
    assert facts.damages[0].offset == 99
    assert len(facts.active) == 4
    assert facts.active[-1].to_ns is None
    assert facts.more == {}


def test_a_message_has_its_own_steps_and_those_of_its_dead_letter(told: tuple[Facts, Path]):
    message, letter = told[0].messages

    assert [(step.index, step.event) for step in message.steps] == [
        (5_000, "published"), (5_001, "delivered"), (5_005, "died"),
    ]  # fmt: skip
    assert message.queue is not None
    assert message.queue.name == "orders"
    assert [step.event for step in letter.steps] == ["letter"]


def test_the_page_shows_it_all_and_believes_no_name(told: tuple[Facts, Path]):
    html = (told[1] / "report.html").read_text(encoding="utf-8")

    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    for words in ("Warnings: no promise was broken", f"Message {MESSAGE}", "billing/invoices",
                  "A closer look", "n1 · term 2", f"({STUCK})"):  # fmt: skip
        assert words in html
    assert len(html) < 2_000_000
