"""What is drawn and written of facts, without Spark."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from chaos.postmortem.findings.catalogue import RULES
from chaos.postmortem.report import About
from chaos.postmortem.report.axes import LEFT, RIGHT, WIDTH, TimeAxis, linear, logarithmic
from chaos.postmortem.report.cards import by_severity
from chaos.postmortem.report.facts import (
    Active,
    Check,
    Curve,
    Election,
    Facts,
    Finding,
    Incident,
    Lead,
    Life,
    MessageHistory,
    Picture,
    Queue,
    QueueRow,
    QueueTraffic,
    Standstill,
    Step,
    Window,
)
from chaos.postmortem.report.lanes import BAR, active, leaders, nodes, strip
from chaos.postmortem.report.markup import Markup, tag
from chaos.postmortem.report.numbers import key_numbers
from chaos.postmortem.report.page import page
from chaos.postmortem.report.panel import LETTER, Scene
from chaos.postmortem.report.plots import line
from chaos.postmortem.report.summary import summary
from chaos.postmortem.report.terminal import print_summary
from chaos.postmortem.report.units import (
    duration,
    facts_told,
    moment,
    number,
    numbers,
    size,
    span_of,
    visible,
)
from chaos.postmortem.report.windows import BUCKETS_MAX, closer_looks, window
from chaos.postmortem.report.write import write_facts

S = 1_000_000_000
BEGIN_NS = 1_794_970_800_000_000_000  # 2026-11-18 03:00:00 UTC
EVIL = "<script>alert('1')</script>\"&\u202etxt.exe\x1b[31m[bold red]"


def at(second: float) -> int:
    return BEGIN_NS + round(second * S)


def finding(code: str, begin: float | None = None, end: float | None = None, **known: object):
    rule = RULES[code]
    times = {
        "from_ns": None if begin is None else at(begin),
        "to_ns": None if end is None else at(end),
    }
    return Finding(rule.code, rule.severity, rule.title, **times, **known)  # type: ignore[arg-type]


def checks_of(*findings: Finding) -> list[Check]:
    return [
        Check(rule, len(mine), tuple(mine))
        for code, rule in RULES.items()
        for mine in [[each for each in findings if each.code == code]]
    ]


def incidents_of(findings: Sequence[Finding]) -> list[Incident]:
    timed = [each for each in findings if each.from_ns is not None]
    return [
        Incident(place, each, each.from_ns or 0, each.to_ns or each.from_ns or 0)
        for place, each in enumerate(timed, start=1)
    ]


def about(**other: object) -> About:
    known = {"inputs": ("/srv/n1",), "from_ns": at(0), "to_ns": at(600), "status": 1,
             "version": "1.2.3", "seconds": 12.5}  # fmt: skip
    return About(**(known | other))  # type: ignore[arg-type]


def scene(*incidents: Incident, seconds: float = 600) -> Scene:
    return Scene(TimeAxis(window(at(0), at(seconds))), incidents, ["n1", "n2", "n3"])


def drawn(picture: Markup) -> ET.Element:
    return ET.fromstring(picture)


def rects(picture: Markup, class_: str) -> list[tuple[float, float]]:
    """Left and right border of those of a class."""
    found = [each for each in drawn(picture).iter("rect") if class_ in each.attrib["class"].split()]
    return [
        (float(each.attrib["x"]), float(each.attrib["x"]) + float(each.attrib["width"]))
        for each in found
    ]


def full() -> Facts:
    """A little of everything, called by names that want to break out of it."""
    evil = Queue(3, 40, EVIL, EVIL)
    found = [
        finding("leader_lost", 100, 102.6, node="n1", group=1, count=3, detail=EVIL),
        finding("sac_overlap", 300, 330, queue=EVIL, first=4000, last=4003, message="3-4000-0"),
        finding("corrupt_segment", node=EVIL, file=EVIL, offset=1048),
    ]
    curve = Curve("n1", ((at(0), 1.0), (at(2), 250.0), (at(4), 3.0)))
    flow = QueueTraffic(evil, curve, curve, curve)
    step = Step(at(1), 5, 1, EVIL, consumer=1, session=EVIL, publisher=EVIL, reason=EVIL)
    return Facts(
        checks=checks_of(*found),
        incidents=incidents_of(found),
        pictures=[Picture(window(at(0), at(600)), (flow,), (curve,), (curve,), (curve,), (curve,))],
        lives=[
            Life(EVIL, "b", at(0), at(300), "killed"),
            Life(EVIL, "c", at(310), at(600), "open"),
        ],
        standstills=[Standstill("n1", at(20), at(28), 8000.0, syncing=True)],
        leaders=[
            Lead(1, 1, EVIL, at(0), at(100), "killed"),
            Lead(1, 2, "n2", at(102), at(600), "x"),
        ],
        elections=[Election(1, 2, EVIL, at(102), (EVIL,), EVIL, at(102), EVIL, EVIL, 2.0, EVIL, 1)],
        active=[Active(evil, 7, EVIL, 99, at(10), None, None, 4)],
        queues=[QueueRow(evil, 10, 12, 2, 10, 0, held=1, oldest_ns=at(5), longest_ms=10)],
        messages=[MessageHistory("3-4000-0", evil, 1, at(0), steps=(step,), outcome=EVIL)],
        rows={"entries": 12},
    )


def test_whatever_a_queue_is_called_nothing_of_it_becomes_markup_or_is_loaded():
    html = page(full(), about(queue=EVIL, since=EVIL, history=EVIL, inputs=(EVIL,)))
    document = ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))  # well-formed to the end

    names = {each.tag for each in document.iter()}
    assert names.isdisjoint({"script", "img", "link", "iframe", "object", "form", "input"})
    attributes = {name for each in document.iter() for name in each.attrib}
    assert not any(name.startswith("on") or name == "src" for name in attributes)
    targets = {each.attrib["href"] for each in document.iter("a")}
    assert targets
    assert all(re.fullmatch(r"#[a-z0-9-]+", target) for target in targets)
    assert targets <= {f"#{each.attrib['id']}" for each in document.iter() if "id" in each.attrib}
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= {"#hatch"}
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "default-src 'none'" in html
    text = "".join(document.itertext())
    assert visible(EVIL) in text
    assert r"\u202etxt.exe\u001b" in text


def test_markup_escapes_all_that_is_not_markup():
    inner = tag("b", "1 < 2 & 3")

    assert inner == "<b>1 &lt; 2 &amp; 3</b>"
    assert tag("p", inner, None, ["x", 3], class_='a"b', open=True, id=None, hidden=False) == (
        '<p class="a&quot;b" open="open"><b>1 &lt; 2 &amp; 3</b>x3</p>'
    )
    assert tag("line", x1=1.26, stroke_width=2.0) == '<line x1="1.3" stroke-width="2"/>'


def test_a_band_lies_over_its_time_in_every_picture_and_its_number_leads_to_the_finding():
    facts = full()
    html = page(facts, about())
    axis = TimeAxis(facts.pictures[0].window)
    left = axis.x(at(300))
    right = axis.x(at(330))

    bands = re.findall(
        r'<rect x="([\d.]+)" y="14" width="([\d.]+)"[^>]*class="band violation"', html
    )
    panels = html.count("<svg viewBox")
    assert panels >= 8
    assert len(bands) == panels
    for x, width in bands:
        assert float(x) == pytest.approx(left, abs=0.1)
        assert float(x) + float(width) == pytest.approx(right, abs=0.2)
    assert html.count('href="#finding-2"') >= panels
    assert html.count('id="finding-2"') == 1


def test_findings_of_one_severity_that_overlap_are_one_band_with_all_their_numbers():
    found = [finding("flapping_leader", 100, 200), finding("process_stood_still", 150, 260),
             finding("lagging_replica", 400, 410), finding("sac_overlap", 120, 130)]  # fmt: skip

    picture = strip(scene(*incidents_of(found)))

    assert len(rects(picture, "warning")) == 3 + 2  # in the strip each has its own
    assert [each.text for each in drawn(picture).iter("text") if each.get("class") == "mark"] == [
        "4", "1", "2", "3",
    ]  # fmt: skip


def test_what_lasts_all_the_time_is_no_band():
    long = Incident(1, finding("clock_offset", 0, 500), at(0), at(500))
    short = Incident(2, finding("process_stood_still", 500, 500.01), at(500), at(500.01))

    picture = strip(scene(long, short))

    assert len(rects(picture, "band")) == 1
    assert len(rects(picture, "incident")) == 2


def test_names_of_findings_never_lie_on_each_other_and_stay_in_the_picture():
    dice = random.Random(4)
    codes = list(RULES)
    for count in (1, 5, 60):
        incidents: list[Incident] = []
        for place in range(count):
            begin = dice.uniform(0, 600)
            end = begin + dice.choice((0, 1, 30, 400))
            one = finding(dice.choice(codes), begin, end, node="n" * dice.randint(1, 30))
            incidents.append(Incident(place + 1, one, at(begin), at(end)))
        picture = drawn(strip(scene(*incidents)))

        rows: dict[float, list[tuple[float, float]]] = {}
        for link in picture.iter("a"):
            bar, label = link.find("rect"), link.find("text")
            if bar is None or label is None or "incident" not in bar.attrib["class"]:
                continue
            x, length = float(label.attrib["x"]), 6.0 * len(label.text or "")
            begin = x - length if "end" in label.attrib["class"] else x
            bar_begin = float(bar.attrib["x"])
            bar_end = bar_begin + float(bar.attrib["width"])
            rows.setdefault(float(bar.attrib["y"]), []).append(
                (min(begin, bar_begin), max(begin + length, bar_end))
            )
        assert rows
        for spans in rows.values():
            spans.sort()
            assert spans[0][0] >= 0
            assert spans[-1][1] <= RIGHT + 0.2
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_a_group_without_a_leader_is_red_for_just_that_time():
    leads = [Lead(1, 1, "n1", at(0), at(200), "killed"), Lead(1, 2, "n2", at(230), at(600), "open")]

    picture = leaders(scene(), leads)

    axis = scene().time
    assert rects(picture, "nobody") == [
        (pytest.approx(axis.x(at(200)), abs=0.1), pytest.approx(axis.x(at(230)), abs=0.2))
    ]
    assert "nobody from 03:03:20.0 for 30.0 s" in picture
    assert rects(picture, "n0")
    assert rects(picture, "n1")


def test_two_leaders_of_one_term_are_marked_and_two_of_different_terms_are_not():
    def picture(term: int) -> Markup:
        leads = [
            Lead(1, 4, "n1", at(0), at(300), "open"),
            Lead(1, term, "n2", at(200), at(600), "x"),
        ]
        return leaders(scene(), leads)

    assert len(rects(picture(4), "twice")) == 1
    assert rects(picture(5), "twice") == []
    assert rects(picture(5), "nobody") == []


def test_a_leader_that_heard_a_moment_later_that_it_had_handed_over_leaves_no_mark():
    leads = [
        Lead(1, 4, "n1", at(0), at(300), "handed over"),
        Lead(1, 5, "n2", at(299.999), at(600), "x"),
    ]

    picture = leaders(scene(), leads)

    assert "n2 · term 5" in picture
    assert picture.count(f'height="{BAR}"') == 2


def test_two_active_consumers_are_marked_and_a_gap_is_red():
    queue = Queue(2, 9, "/", "ledger")

    def one(consumer: int, begin: float, end: float | None) -> Active:
        to_ns = None if end is None else at(end)
        return Active(queue, consumer, None, consumer, at(begin), to_ns, None, None)

    together = active(scene(), [one(5, 10, 300), one(6, 290, None)])
    apart = active(scene(), [one(5, 10, 300), one(6, 310, None)])

    assert len(rects(together, "twice")) == 1
    assert rects(together, "nobody") == []
    assert rects(apart, "twice") == []
    assert len(rects(apart, "nobody")) == 1


def test_a_killed_node_has_a_cross_and_says_how_long_it_was_down():
    lives = [
        Life("n1", "a", at(0), at(200), "killed"),
        Life("n1", "b", at(300), at(600), "open"),
        Life("n2", "a", at(0), at(200), "orderly"),
    ]

    picture = nodes(scene(), lives, [Standstill("n3", at(9), at(17), 8000.0, syncing=False)], [])

    texts = [each.text for each in drawn(picture).iter("text")]
    assert texts.count("✕") == 1
    assert texts.count("|") == 1
    assert "down 1 min 40 s" in texts
    assert len(rects(picture, "standstill")) == 1


@pytest.mark.parametrize(
    ("cause", "words"),
    [("machine", "its machine was paused"), ("process", "did not run"), ("unknown", "it synced")],
)
def test_a_node_that_stood_still_says_why(cause: str, words: str):
    still = Standstill("n3", at(9), at(17), 8000.0, syncing=True, cause=cause)

    assert words in str(nodes(scene(), [], [still], []))


def test_a_curve_is_broken_where_nothing_was_measured():
    axis = linear(10, 20, 120)
    time = TimeAxis(Window(at(0), at(100), S))
    curve = Curve("n1", tuple((at(second), 5.0) for second in (0, 1, 2, 50, 51, 90)))

    path = drawn(line(time, axis, curve, "n0")).attrib["d"]

    assert path.count("M") == 3
    assert path.count("L") == 3


def test_values_lie_between_bottom_and_top_and_the_axis_has_round_numbers():
    flat = linear(930, 20, 120)
    steep = logarithmic(0.3, 2_000, 20, 120)

    assert (flat.y(0), flat.y(1_000)) == (120, 20)
    assert flat.ticks() == [0, 250, 500, 750, 1_000]
    assert steep.ticks() == [0.1, 10, 1_000] or steep.ticks() == [0.1, 10, 1_000, 100_000]
    assert steep.y(0.0) == 120  # zero has no logarithm
    assert steep.y(1.0) - steep.y(10.0) == pytest.approx(steep.y(10.0) - steep.y(100.0))


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (8, ["03:00:00", "03:00:01"]),
        (1_200, ["03:00", "03:02"]),
        (86_400, ["04:00", "06:00"]),
        (9 * 86_400, ["19 Nov", "20 Nov"]),
    ],
)
def test_times_at_the_axis_are_round(seconds: int, labels: list[str]):
    axis = TimeAxis(window(at(0), at(seconds)))
    ticks = axis.ticks()

    assert [label for _, label in ticks[:2]] == labels
    assert 4 <= len(ticks) <= 14
    assert (axis.x(at(0)), axis.x(at(seconds))) == (LEFT, RIGHT)
    assert axis.x(at(-5)) == LEFT


@pytest.mark.parametrize("seconds", [22, 600, 9 * 86_400])
def test_times_at_the_axis_stay_in_the_picture(seconds: int):
    picture = drawn(leaders(scene(seconds=seconds), [Lead(1, 1, "n1", at(0), at(5), "killed")]))

    labels = [each for each in picture.iter("text") if "tick" in each.attrib["class"].split()]
    assert labels
    for each in labels:
        x, width = float(each.attrib["x"]), LETTER * len(each.text or "")
        assert (x if "end" in each.attrib["class"].split() else x + width / 2) <= WIDTH


@pytest.mark.parametrize("seconds", [0, 1, 59, 1_200, 86_400, 40 * 86_400])
def test_a_window_has_few_buckets_of_whole_seconds(seconds: int):
    found = window(at(0), at(seconds))

    assert found.bucket_ns % S == 0
    assert 0 < (found.to_ns - found.from_ns) / found.bucket_ns <= BUCKETS_MAX


def test_short_incidents_get_a_closer_look_and_neighbours_share_it():
    whole = window(at(0), at(7_200))
    found = incidents_of([
        finding("leader_lost", 600, 603), finding("lagging_replica", 610, 640),
        finding("process_stood_still", 5_000, 5_008), finding("clock_offset", 0, 7_000),
    ])  # fmt: skip

    first, second = closer_looks(found, whole)

    assert first.from_ns < at(600)
    assert at(640) < first.to_ns < at(1_000)
    assert second.from_ns < at(5_000)
    assert at(5_008) < second.to_ns
    assert first.bucket_ns == S
    assert closer_looks(found, window(at(595), at(645))) == []


def test_the_worst_findings_come_first_and_then_the_earliest():
    found = checks_of(
        finding("process_stood_still", 5), finding("leader_lost", 9), finding("archive_gap"),
        finding("unflagged_duplicate", 30), finding("divergence", 40),
    )  # fmt: skip

    assert [check.rule.code for check in by_severity(found)] == [
        "unflagged_duplicate", "divergence", "archive_gap", "process_stood_still", "leader_lost",
    ]  # fmt: skip


def test_a_check_passes_warns_fails_or_could_not_be_made():
    checks = [
        Check(RULES["divergence"], 0),
        Check(RULES["divergence"], 1),
        Check(RULES["process_stood_still"], 2),
        Check(RULES["corrupt_segment"], 1),
        Check(RULES["lost_message"], 0, skipped="no history"),
    ]

    told = summary(Facts(checks=checks), about())["checks"]

    assert [check["status"] for check in told] == ["pass", "fail", "warn", "fail", "skipped"]


def test_the_summary_says_where_each_example_lies(tmp_path: Path):
    write_facts(full(), tmp_path, about(status=5))

    told = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    by_code = {check["code"]: check for check in told["checks"]}
    assert (told["status"], told["exit"], told["from"]) == (
        "violation", 5, "2026-11-18T03:00:00Z",
    )  # fmt: skip
    assert set(by_code) == set(RULES)
    assert by_code["corrupt_segment"]["examples"] == [{"node": EVIL, "file": EVIL, "offset": 1048}]
    assert by_code["sac_overlap"]["examples"][0]["to"] == "2026-11-18T03:05:30Z"


@pytest.mark.parametrize("colours", [False, True])
def test_the_terminal_says_what_was_found_and_where_the_report_is(tmp_path: Path, colours: bool):
    write_facts(full(), tmp_path, about(status=5))
    out = StringIO()
    terminal = Console(file=out, width=200, force_terminal=colours, color_system="standard")

    print_summary(terminal, tmp_path)

    said = out.getvalue()
    assert "A promise was broken" in said
    assert "03:01:40" in said
    assert r"\u202etxt.exe\u001b[31m[bold red]" in said  # neither a colour nor an escape
    assert "\u202e" not in said
    assert "\x1b[31m[" not in said
    assert said.index("Two active consumers") < said.index("A leader was lost")
    assert f"{len(RULES) - 3} rules found nothing" in re.sub(r"\x1b\[[\d;]*m", "", said)
    assert str(tmp_path / "report.html") in said


def test_the_terminal_names_the_day_where_there_are_several(tmp_path: Path):
    found = finding("not_replayed", 600, file="/n1/1-20.snap")
    facts = Facts(checks=checks_of(found), incidents=incidents_of([found]))
    for days, when in ((1, "03:10:00"), (3, "2026-11-18 03:10:00")):
        write_facts(facts, tmp_path, about(to_ns=at(1_000 + (days - 1) * 86_400)))
        out = StringIO()

        print_summary(Console(file=out, width=200), tmp_path)

        (row,) = [line for line in out.getvalue().splitlines() if "Not all was replayed" in line]
        assert ("2026-11-18" in row, when in row) == (days > 1, True)
        assert "1-20.snap" in out.getvalue()
        assert "?" not in out.getvalue()


def test_who_stood_in_vain_is_no_unplanned_leader():
    def election(term: int, leader: str | None, cause: str) -> Election:
        return Election(1, term, "n2", at(1), (), leader, None, cause, "n1", None, None, None)

    facts = Facts(
        checks=checks_of(),
        elections=[
            election(1, "n1", "first"),
            election(2, "n2", "killed"),
            election(3, None, "contested"),
            election(4, None, "contested"),
        ],
    )

    assert dict(key_numbers(facts))["unplanned elections"] == "1"
    assert "4 elections, 1 of them unplanned, 2 won by nobody" in page(facts, about())


def test_a_clean_run_says_so_and_an_empty_one_too(tmp_path: Path):
    clean = page(Facts(checks=checks_of()), about(status=0))
    empty = page(Facts(checks=checks_of()), about(status=3, from_ns=0, to_ns=0))

    assert "Nothing found" in clean
    assert f"{len(RULES)} rules found nothing" in clean
    assert "no record was read" in empty


def test_the_message_that_was_asked_for_and_is_not_there_is_told_so():
    html = page(Facts(messages=[MessageHistory("1-2-3")]), about(message="1-2-3"))

    assert "Message 1-2-3" in html
    assert "No such message" in html


def test_a_messages_history_is_told_in_words():
    steps = (
        Step(at(0), 10, 1, "published", publisher="shop", seqno=4),
        Step(at(1), 11, 1, "delivered", consumer=7, token=70, acquired=0),
        Step(at(61), 12, 1, "returned", consumer=7, reason="ended"),
        Step(at(62), 13, 2, "delivered", consumer=8, token=71, acquired=1),
        Step(at(63), 14, 2, "died", reason="rejected", goes=True),
    )
    history = MessageHistory(
        "1-10-0", Queue(1, 2, "/", "orders"), 3, at(0), 2.5, 2, 1, "died", at(63), "rejected",
        steps=steps,
    )  # fmt: skip

    told = " ".join(
        ET.fromstring(page(Facts(messages=[history]), about()).split("\n", 1)[1]).itertext()
    )

    for words in ("published, sequence number 4", "the consumer ended",
                  "delivered again, 1 time before", "+ 60.0 s",
                  "died: a consumer rejected it, goes on as a dead letter",
                  "publisher shop", "Confirmed after 2.5 ms"):  # fmt: skip
        assert words in told


def test_numbers_and_times_read_well():
    assert [duration(ms) for ms in (0.42, 250, 8_100, 99_960, 125_000, 12_000_000, 4e8)] == [
        "0.4 ms", "250 ms", "8.1 s", "1 min 40 s", "2 min 5 s", "3 h 20 min", "4 d 15 h",
    ]  # fmt: skip
    assert [number(value) for value in (0, 0.25, 2.34, 1_234_567.0, 345.6)] == [
        "0", "0.25", "2.3", "1,234,567", "346",
    ]  # fmt: skip
    assert [size(count) for count in (0, 1_000, 64 << 20, 3 << 40)] == [
        "0 B", "1000 B", "64.0 MiB", "3.0 TiB",
    ]  # fmt: skip
    assert facts_told('{"noted": "ab", "nodes_alike": 1}') == "noted ab, nodes alike 1"
    assert [facts_told(text) for text in ("{x", "12", "it stopped")] == ["{x", "12", "it stopped"]
    assert numbers([4, 0, 2, 3, 9, 5, 10]) == "0, 2–5, 9, 10"
    assert span_of(at(0), at(86_400)) == "2026-11-18 03:00:00 – 2026-11-19 03:00:00"
    assert moment(BEGIN_NS + 123_456_789).microsecond == 123_456
