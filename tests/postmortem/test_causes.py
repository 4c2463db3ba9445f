"""What led to what, and what it cost, over findings made by hand."""

from __future__ import annotations

from io import StringIO
from itertools import permutations
from pathlib import Path

import pytest
from rich.console import Console

from chaos.postmortem.findings.catalogue import RULES
from chaos.postmortem.limits import Limits
from chaos.postmortem.report import About
from chaos.postmortem.report.causes import (
    LINKS,
    by_queue,
    chains,
    told,
    told_harms,
    told_stage,
)
from chaos.postmortem.report.facts import Chain, Check, Facts, Finding, Harm, NodeRow
from chaos.postmortem.report.terminal import print_summary
from chaos.postmortem.report.write import write_facts

S = 1_000_000_000


def finding(code: str, begin: float | None = None, end: float | None = None, **known: object):
    times = {
        "from_ns": None if begin is None else round(begin * S),
        "to_ns": None if end is None else round(end * S),
    }
    rule = RULES[code]
    return Finding(rule.code, rule.severity, rule.title, **times, **known)  # type: ignore[arg-type]


def without(begin: float, end: float, *queues: str, node: str = "n1", group: int = 1) -> Harm:
    ms = (end - begin) * 1e3
    return Harm("without_leader", group, queues, round(begin * S), round(end * S), ms, node)


SLOW = finding("slow_sync", 100, 101.5, node="n1")
LOST = finding("leader_lost", 101, 102.2, node="n1", count=3)
FLAPS = finding("flapping_leader", 60, 102.2, node="n2", group=1)
GAP = without(101, 102.2, "orders", "ledger")


def codes(chain: Chain) -> list[str]:
    return [each.code for each in chain.findings]


def test_a_slow_disk_leads_to_a_lost_leader_and_that_to_time_without_service():
    for given in permutations((FLAPS, SLOW, LOST)):
        (chain,) = chains(given, [GAP])

        assert codes(chain) == ["slow_sync", "leader_lost", "flapping_leader"]
        assert chain.links == ((0, 1), (1, 2))
        assert chain.roots == [SLOW]
        assert chain.harms == (GAP,)
    assert told(LOST) == "a leader was lost on n1 (3 elections)"
    assert told_harms([GAP]) == ["1.2 s without service: ledger, orders"]


def test_another_node_or_another_time_is_no_cause():
    elsewhere = finding("slow_sync", 100, 101.5, node="n2")
    before = finding("slow_sync", 10, 11, node="n1")
    later = finding("slow_sync", 200, 201, node="n1")

    found = chains([elsewhere, before, later, LOST], [GAP])

    assert [codes(each) for each in found] == [
        ["slow_sync"],
        ["slow_sync"],
        ["leader_lost"],
        ["slow_sync"],
    ]
    assert [len(each.harms) for each in found] == [0, 0, 1, 0]


def test_times_by_a_wrong_clock_are_put_right_first():
    ahead = finding("slow_sync", 160, 161.5, node="n1")

    assert len(chains([ahead, LOST])) == 2
    (chain,) = chains([ahead, LOST], shift_ns={"n1": -60 * S})
    assert chain.roots == [ahead]


def test_what_has_no_time_is_linked_by_what_it_is_about():
    back = finding("folder_rolled_back", 5, node="n3")
    gone = finding("missing_entry", node="n3", group=4)
    commit = finding("minority_commit", node="n1", group=4)
    other = finding("minority_commit", node="n1", group=5)

    found = chains([commit, other, gone, back])

    assert [codes(each) for each in found] == [
        ["folder_rolled_back", "missing_entry", "minority_commit"], ["minority_commit"],
    ]  # fmt: skip


def test_two_causes_of_one_effect_are_one_chain():
    still = finding("process_stood_still", 99, 101, node="n1")

    (chain,) = chains([SLOW, still, LOST])

    assert [[each.code for each in stage] for stage in chain.stages] == [
        ["process_stood_still", "slow_sync"], ["leader_lost"],
    ]  # fmt: skip


def test_what_comes_again_and_again_is_told_once():
    again = [LOST, finding("leader_lost", 300, 301, node="n2"), SLOW]

    assert told_stage(again) == ["2 × a leader was lost (n1, n2)", "a slow disk on n1"]


def test_redeliveries_are_put_to_what_happened_to_their_queue():
    storm = finding("redelivery_storm", 480, 540, group=3, queue="invoices")
    again = Harm("redelivered", 3, ("invoices",), 480 * S, 540 * S, 1_600, entry=40)
    of_another = Harm("redelivered", 3, ("bills",), 480 * S, 540 * S, 5)

    (chain,) = chains([storm], [again, of_another])

    assert chain.harms == (again,)
    assert told_harms(chain.harms) == ["1,600 messages delivered again: invoices"]


def test_times_without_a_leader_that_overlap_count_once():
    lost = Harm("unanswered", 1, ("orders",), 101 * S, 101 * S, 3, "n1", entry=7, again=2)

    orders, ledger = by_queue(
        [without(101, 102, "orders"), without(101.5, 103, "orders", "ledger"), lost]
    )

    assert (orders.queue, orders.without_ms, orders.unanswered, orders.again) == (
        "orders",
        2_000,
        3,
        2,
    )
    assert (ledger.queue, ledger.without_ms, ledger.unanswered) == ("ledger", 1_500, 0)
    assert [each.kind for each in orders.evidence] == ["without_leader", "unanswered"]
    assert orders.evidence[0].amount == 1_500


def test_links_name_rules_and_lead_in_no_circle():
    after = {
        code: {e for link in LINKS if code in link.causes for e in link.effects} for code in RULES
    }
    named = {code for link in LINKS for code in (*link.causes, *link.effects)}
    assert named <= {*RULES}

    def reached(code: str, seen: frozenset[str]) -> None:
        assert code not in seen
        for each in after[code]:
            reached(each, seen | {code})

    for code in RULES:
        reached(code, frozenset())


def test_a_disk_is_slow_beside_its_peers_and_not_when_all_are():
    pytest.importorskip("pyspark")
    from chaos.postmortem.findings.cluster import MINUTE_NS, Syncs, slow_spells

    def minutes(node: str, *ms: float) -> list[Syncs]:
        return [Syncs(node, at * MINUTE_NS, 60, each) for at, each in enumerate(ms)]

    peers = [*minutes("n1", *[2] * 9), *minutes("n3", *[3] * 9)]
    one = minutes("n2", 2, 2, 200, 210, 190, 200, 2, 200, 200)
    ((first, last, count, words),) = slow_spells([*peers, *one], Limits())
    assert (first.node, first.minute_ns, last.minute_ns, count) == (
        "n2",
        2 * MINUTE_NS,
        5 * MINUTE_NS,
        4,
    )
    assert words.endswith("took 200 ms, that of its peers 2.5 ms")
    everywhere = [each for node in ("n1", "n2", "n3") for each in minutes(node, *[200] * 9)]
    assert slow_spells(everywhere, Limits()) == []
    assert slow_spells(minutes("n2", *[200] * 9), Limits()) == []  # nobody to compare it with


def test_the_terminal_the_page_and_the_ticket_begin_with_the_impact(tmp_path: Path):
    lost = Harm("unanswered", 1, ("orders",), 101 * S, 101 * S, 3, "n1", "1.log", 48, 7, 2)
    checks = [Check(RULES[each.code], 1, (each,)) for each in (SLOW, LOST)]
    given = (("n1", "log", 2), ("n2", "log", 1), ("n3", "not given", 0))
    nodes = [NodeRow(*each, 0, 0, 0, 0, 0, None, None) for each in given]
    facts = Facts(
        checks=checks,
        impact=by_queue([GAP, lost]),
        chains=chains([SLOW, LOST], [GAP, lost]),
        nodes=nodes,
    )
    write_facts(facts, tmp_path, About(("logs",), 90 * S, 120 * S, 1, "1.2.3", 3.0))
    out = StringIO()
    print_summary(Console(file=out, width=160), tmp_path)
    said = " ".join(out.getvalue().split())
    ticket = (tmp_path / "ticket.txt").read_text(encoding="utf-8")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")

    line = "a slow disk on n1 → a leader was lost on n1 (3 elections) → 1.2 s without service"
    assert f"{line}: orders, ledger → 3 publishes without an answer: orders" in said
    assert "orders 1.2 s 3 (2 came again) ledger 1.2 s" in said
    assert said.index("Impact") < said.index("A slow disk")
    assert "Read: 2 of 3 members (not n3)" in said
    assert (
        html.index("<h2>Impact") < html.index("<h2>What led to what") < html.index("<h2>Findings")
    )
    assert "orders: 1.2 s without service, 3 publishes without an answer" in ticket
    assert ticket.index("Likely cause\n- a slow disk on n1") > ticket.index("Impact")
    assert RULES["slow_sync"].advice in ticket
    assert RULES["leader_lost"].advice not in ticket  # it is no cause, but an effect
