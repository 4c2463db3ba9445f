"""What must come out after a majority was lost for good, by tiny histories; whole runs after."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import History
from chaos.simulator.plan import draw_plan
from chaos.simulator.recoveries import Disaster, Recoveries, _messages, recovered_verdict
from chaos.simulator.run import Run
from cluster.codec.entries import encode_entry
from cluster.machine.commands import CreateQueue, Enqueue, Purge, QueueConfig, Transaction
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import GroupId, NodeId, QueueId
from tests.testkit.draws import drawn

MOVED = ("debits", "credits")


def published(history: History, queue: str, publisher: str, count: int) -> None:
    value: dict[str, Any] = {"queue": queue, "publisher": publisher, "first": 1, "count": count}
    history.end(history.invoke(publisher, "publish", value), "ok")


def delivered(history: History, queue: str, *messages: str) -> None:
    counts = {"delivery_count": 0, "acquired_count": 0}
    about = {"queue": queue, "consumer": 1, "token": 1, "first": 1, **counts}
    history.saw("c", "deliver", {**about, "messages": list(messages)})


def verdict(
    before: History,
    after: History,
    held: set[str],
    problem: str | None = None,
    queue: str | None = None,
) -> Any:
    kept = {GroupId(1): ((1, 9), {queue: held})}
    disaster = Disaster(len(before.ops), {}, [NodeId("n1")], {}, kept)
    return recovered_verdict(before.ops, disaster, after.ops, problem, MOVED)


def test_what_a_survivor_held_must_come_out_and_what_only_the_lost_held_need_not():
    before, after = History(), History()
    published(before, "q", "p", 3)
    delivered(after, "q", "p:1")

    assert verdict(before, after, {"p:1"}).valid is True
    found = verdict(before, after, {"p:1", "p:3"})
    assert (found.valid, found.examples["lost"]) == (False, ["p:3"])
    assert found.counts["held by lost nodes only"] == 1


def test_what_a_survivor_held_for_a_queue_that_only_the_lost_had_in_the_catalog_need_not():
    before = History()
    published(before, "q", "p", 1)

    assert verdict(before, History(), {"p:1"}).valid is False
    assert verdict(before, History(), {"p:1"}, queue="q").valid is True


def test_a_copy_holds_what_has_not_left_it_and_what_its_transactions_brought():
    queue, other = QueueId(1), QueueId(2)
    entries = [
        [CreateQueue(queue, "/", "q", QueueConfig()), CreateQueue(other, "/", "r", QueueConfig())],
        [Enqueue(queue, None, 0, [b"p:1|", b"p:2|"])],
        [
            Purge(queue),
            Enqueue(queue, None, 0, [b"p:3|"]),
            Transaction("n1", 1, 1, 1, [Enqueue(other, None, 0, [b"t:1|"])], []),
        ],
    ]
    commands = [REGULAR + encode_entry(1_000, each) for each in entries]
    journal: Any = SimpleNamespace(
        group=1,
        base_index=1,
        last_index=4,
        load_snapshot=lambda: None,
        read=lambda index: commands[index - 2],
        term_at=lambda _: 1,
    )

    assert _messages(journal) == {"q": {"p:3"}, "r": {"t:1"}, None: {"t:1"}}


def test_what_somebody_set_out_to_settle_need_not_come_out():
    before = History()
    published(before, "q", "p", 2)
    settle = {"queue": "q", "consumer": 1, "token": 1, "messages": ["p:2"]}
    before.invoke("c", "settle", settle)
    after = History()
    delivered(after, "q", "p:1")

    assert verdict(before, after, {"p:1", "p:2"}).valid is True


def test_what_is_confirmed_afterwards_must_come_out_and_transactions_are_whole():
    after = History()
    published(after, "q", "again", 1)
    for queue in MOVED:
        published(after, queue, "t", 1)
    delivered(after, "debits", "t:1")

    found = verdict(History(), after, set())
    assert found.examples == {"lost afterwards": ["again:1"], "half done afterwards": ["t:1"]}
    delivered(after, "q", "again:1")
    delivered(after, "credits", "t:1")
    assert verdict(History(), after, set()).valid is True


def test_a_cluster_that_does_not_serve_afterwards_is_wrong():
    assert verdict(History(), History(), set(), "groups [2] have no leader").valid is False


def recovered(seed: int, nodes: int) -> Any:
    plan = replace(draw_plan(seed, faults_s=3.0, nodes=nodes), recovers=True, members=False)
    return Run(replace(plan, disk_weights=())).go()


#: The last one is not served when not all survivors have to elect the first leader.
RECOVERED = {920_000_001: 3, 920_000_012: 5, 920_000_110: 7}


@pytest.mark.parametrize("seed", drawn(RECOVERED, 1))
def test_a_run_whose_survivors_recover_keeps_what_they_held(seed: int):
    result = recovered(seed, RECOVERED[seed])

    assert result.status == 0, result.violations
    found = next(each for each in result.verdicts if each.checker == "recovery")
    assert found.counts["came out"] > 0


def test_a_group_of_which_no_survivor_has_a_copy_is_not_expected_to_be_served(
    monkeypatch: pytest.MonkeyPatch,
):
    survive = Recoveries._each_group_survives
    monkeypatch.setattr(
        Recoveries, "_each_group_survives", lambda self, some: not survive(self, some)
    )
    result = recovered(920_000_012, 5)

    assert result.status == 0, [result.violations, *(v.describe() for v in result.verdicts)]
    assert result.counts["recoveries"] == 1
    assert result.counts["groups without a copy left"] > 0
