"""What is judged of streams: each anomaly is seen, and what may be is none."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker.streams import (
    matches,
    stream_acks,
    stream_contents,
    stream_copies,
    stream_deliveries,
    stream_registers,
)
from chaos.history import History, Op


class Story:
    """A history, told by its ends: each op begins just before, unless told otherwise."""

    def __init__(self, *, each: int = 0, retention: str = "limits", policy: str = "explicit"):
        self.now_ms = 0
        self.history = History(lambda: (0, self.now_ms * 1_000_000))
        self._saw("stream", stream="s", retention=retention, each=each)
        made = {"consumer": "c", "filter": "s.>", "policy": policy}
        self._saw("consumer", stream="s", **made, ack_wait_s=None if policy == "none" else 2.0)
        self.places = 0

    def _saw(self, f: str, **value: Any) -> None:
        self.history.saw("p", f, value)

    def begin_put(self, body: str, *, subject: str = "s.a", **more: Any) -> Op:
        value = {"stream": "s", "subject": subject, "body": body, "id": True, "expected": None}
        return self.history.invoke("p", "put", {**value, "again": False, **more})

    def stored(self, begun: Op, sequence: int, *, duplicate: bool = False) -> None:
        self.history.end(begun, "ok", {"sequence": sequence, "duplicate": duplicate})

    def put(self, body: str, sequence: int, *, duplicate: bool = False, **more: Any) -> None:
        self.stored(self.begin_put(body, **more), sequence, duplicate=duplicate)

    def refused(self, body: str, **more: Any) -> None:
        found = {"found": more.pop("found")} if "found" in more else {}
        self.history.end(self.begin_put(body, **more), "refused", {"code": 10071, **found})

    def pull(self) -> Op:
        return self.history.invoke("c", "pull", {"stream": "s", "consumer": "c"})

    def handed(self, sequence: int, body: str, *, count: int = 1, **more: Any) -> None:
        """The one before long ago."""
        self.now_ms += more.pop("after_ms", 10_000)
        self.places += 1
        value = {"stream": "s", "consumer": "c", "sequence": sequence, "body": body}
        value |= {"count": count, "place": self.places, "subject": "s.a"}
        pull = more.pop("pull", None) or self.pull()
        self._saw("handed", **{**value, "pull": pull.index, **more})

    def acked(self, sequence: int, word: str = "+ACK", *, up_to: bool = False) -> None:
        value = {"stream": "s", "consumer": "c", "sequence": sequence, "word": word, "all": up_to}
        self.history.end(self.history.invoke("c", "ack", value), "ok")

    def read(self, sequence: int, **body: str) -> None:
        begun = self.history.invoke("r", "read", {"stream": "s", "subject": "s.a"})
        self.history.end(begun, "ok", {"sequence": sequence, **body})

    def holds(self, *rows: tuple[int, str], last: int | None = None, subject: str = "s.a") -> None:
        most = max((sequence for sequence, _ in rows), default=0)
        content = [[sequence, subject, body] for sequence, body in rows]
        self._saw("content", stream="s", first=1, last=last or most, rows=content)

    def copied(self, *rows: tuple[int, str, str], filters: tuple[str, ...] = ()) -> None:
        copied = [list(row) for row in rows]
        self._saw("copy", stream="m", of="s", filters=list(filters), rows=copied)

    def drained(self) -> None:
        self._saw("drained", stream="s", consumer="c")


@pytest.fixture
def story() -> Story:
    return Story()


class TestContents:
    check = staticmethod(stream_contents())

    def test_what_was_said_to_be_stored_is_there(self, story: Story):
        story.put("a", 1)
        story.put("b", 2)
        story.put("a", 1, duplicate=True, again=True)
        story.holds((1, "a"), (2, "b"))

        assert self.check(story.history.ops).valid is True

    def test_it_is_lost(self, story: Story):
        story.put("a", 1)
        story.put("b", 2)
        story.holds((1, "a"), last=2)

        assert self.check(story.history.ops).counts["lost"] == 1
        assert self.check(story.history.ops).counts["gaps"] == 1

    def test_another_is_in_its_place(self, story: Story):
        story.put("a", 1)
        story.begin_put("b")
        story.holds((1, "b"))

        verdict = self.check(story.history.ops)
        assert verdict.counts["lost"] == 1
        assert verdict.counts["two under one sequence"] == 1

    def test_another_is_read_in_its_place(self):
        story = Story(each=1)
        story.put("a", 1)
        story.begin_put("b")
        story.read(1, body="b")
        story.holds((1, "a"))

        assert self.check(story.history.ops).counts["two under one sequence"] == 1

    def test_only_the_last_of_a_subject_is_kept(self):
        story = Story(each=1)
        story.put("a", 1)
        story.put("b", 2)
        story.holds((2, "b"))
        assert self.check(story.history.ops).valid is True

        story.put("c", 3)
        story.holds((2, "b"))
        assert self.check(story.history.ops).counts["lost"] == 1

    def test_it_is_stored_twice(self, story: Story):
        story.put("a", 1)
        story.put("a", 2, again=True)
        story.holds((1, "a"), (2, "a"))

        verdict = self.check(story.history.ops)
        assert verdict.counts["stored twice"] == verdict.counts["new twice"] == 1
        lax = stream_contents(true_clocks=False)
        assert lax(story.history.ops).valid is True, "nobody can tell for how long ids are known"

    def test_nobody_published_it(self, story: Story):
        story.put("a", 1)
        story.holds((1, "a"), (2, "b"))

        assert self.check(story.history.ops).counts["nobody put it there"] == 1

    def test_it_was_refused(self, story: Story):
        story.refused("a")
        story.holds((1, "a"))

        assert self.check(story.history.ops).counts["refused, yet stored"] == 1

    def test_without_a_look_at_the_end_nothing_is_decided(self, story: Story):
        story.put("a", 1)

        assert self.check(story.history.ops).valid == "unknown"


class TestDeliveries:
    check = staticmethod(stream_deliveries())

    def test_all_is_handed_out_and_again_until_it_is_acknowledged(self, story: Story):
        story.put("a", 1)
        story.put("b", 2)
        story.handed(1, "a")
        story.handed(2, "b")
        story.handed(1, "a", count=2)
        story.drained()

        assert self.check(story.history.ops).valid is True

    @pytest.mark.parametrize(
        ("row", "anomaly"),
        [
            ({"count": 1}, "the count does not grow"),
            ({"count": 2, "place": 1}, "one place twice"),
            ({"count": 2, "subject": "t.a"}, "against the filter"),
        ],
    )
    def test_a_delivery_that_cannot_be(self, story: Story, row: dict[str, Any], anomaly: str):
        story.put("a", 1)
        story.handed(1, "a")
        story.handed(1, "a", **row)
        story.drained()

        assert self.check(story.history.ops).counts[anomaly] == 1

    def test_out_of_order(self, story: Story):
        story.put("a", 1)
        story.put("b", 2)
        story.handed(2, "b")
        story.handed(1, "a")
        story.drained()

        assert self.check(story.history.ops).counts["out of order"] == 1

    def test_never(self, story: Story):
        story.put("a", 1)
        assert self.check(story.history.ops).valid == "unknown"
        story.drained()

        assert self.check(story.history.ops).counts["never handed"] == 1

    @pytest.mark.parametrize(("after_ms", "early"), [(100, 1), (1_900, 0)])
    def test_to_two_while_the_first_may_acknowledge_it(
        self, story: Story, after_ms: int, early: int
    ):
        story.put("a", 1)
        story.handed(1, "a")
        story.handed(1, "a", count=2, after_ms=after_ms)
        story.drained()

        assert self.check(story.history.ops).counts["handed to two"] == early
        jumping = stream_deliveries(steady_clocks=False)
        assert jumping(story.history.ops).valid is True

    def test_to_two_by_a_new_leader_where_a_later_acknowledgement_means_it_too(self):
        story = Story(policy="all")
        story.put("a", 1)
        story.handed(1, "a")
        story.handed(1, "a", count=2, after_ms=0)

        assert self.check(story.history.ops).valid is True

    def test_to_two_because_the_first_gave_it_back(self, story: Story):
        story.put("a", 1)
        story.handed(1, "a")
        story.acked(1, "-NAK")
        story.handed(1, "a", count=2, after_ms=0)
        story.drained()

        assert self.check(story.history.ops).valid is True

    def test_twice_where_nothing_is_acknowledged(self):
        story = Story(policy="none")
        story.put("a", 1)
        story.handed(1, "a")
        story.handed(1, "a", count=2)

        verdict = self.check(story.history.ops)
        assert verdict.counts["handed again, and it takes no acks"] == 1

    def test_where_nothing_is_acknowledged_a_new_leader_sends_under_the_same_numbers(self):
        story = Story(policy="none")
        story.put("a", 1)
        story.put("b", 2)
        story.handed(1, "a")
        story.handed(1, "a", place=1)
        story.drained()
        assert self.check(story.history.ops).valid is True

        story.handed(2, "b", place=1)
        assert self.check(story.history.ops).counts["one place twice"] == 1

    @pytest.mark.parametrize(
        ("pattern", "subject", "does"),
        [
            ("s.>", "s.a.b", True),
            ("s.>", "s", False),
            ("s.*.a", "s.1.a", True),
            ("s.*.a", "s.1.b", False),
            ("s.*", "s.1.b", False),
            (">", "s", True),
        ],
    )
    def test_what_a_filter_means(self, pattern: str, subject: str, does: bool):
        assert matches(pattern, subject) is does


class TestAcknowledgements:
    def test_what_was_asked_for_before_may_still_come(self, story: Story):
        early = story.pull()
        story.handed(1, "a")
        story.acked(1)
        story.handed(1, "a", count=2, pull=early)

        assert stream_acks(story.history.ops).valid is True

    def test_it_comes_again(self, story: Story):
        story.handed(1, "a")
        story.acked(1)
        story.handed(1, "a", count=2)

        assert stream_acks(story.history.ops).counts["handed after it was acknowledged"] == 1

    def test_one_stands_for_all_before_it(self, story: Story):
        story.handed(1, "a")
        story.handed(2, "b")
        story.acked(2, up_to=True)
        story.handed(1, "a", count=2)

        assert stream_acks(story.history.ops).counts["handed after it was acknowledged"] == 1

    def test_what_is_refused_for_good_does_not_come_again_and_what_is_given_back_does(
        self, story: Story
    ):
        story.acked(1, "-NAK")
        story.handed(1, "a", count=2)
        assert stream_acks(story.history.ops).valid is True
        story.acked(1, "+TERM")
        story.handed(1, "a", count=3)

        assert stream_acks(story.history.ops).valid is False

    def test_a_work_queue_keeps_nothing_that_is_done(self):
        story = Story(retention="workqueue")
        story.handed(1, "a")
        story.acked(1)
        story.holds((1, "a"))

        assert stream_acks(story.history.ops).counts["still in the work queue"] == 1


class TestRegisters:
    check = staticmethod(stream_registers())

    @pytest.fixture
    def story(self) -> Story:
        return Story(each=1)

    def test_each_sets_what_it_saw(self, story: Story):
        story.put("a", 1, expected=0)
        story.read(1)
        story.put("b", 2, expected=1)
        story.refused("c", expected=1, found=2)
        story.read(2)

        assert self.check(story.history.ops).valid is True

    def test_two_set_the_same(self, story: Story):
        story.put("a", 1, expected=0)
        story.put("b", 2, expected=0)

        assert self.check(story.history.ops).counts["another was there"] == 1

    def test_one_is_refused_that_was_right(self, story: Story):
        story.put("a", 1, expected=0)
        story.refused("b", expected=1, found=1)

        assert self.check(story.history.ops).counts["refused, and it was the last"] == 1

    def test_a_version_that_nobody_made(self, story: Story):
        story.put("a", 1, expected=0)
        story.read(7)

        assert self.check(story.history.ops).counts["out of thin air"] == 1
        assert stream_registers(true_clocks=False)(story.history.ops).valid is True

    def test_one_of_unknown_outcome_may_have_made_it(self, story: Story):
        story.put("a", 1, expected=0)
        story.begin_put("b", expected=1)
        story.read(7)

        assert self.check(story.history.ops).valid is True

    def test_an_old_version_is_seen_after_a_new_one(self, story: Story):
        story.put("a", 1, expected=0)
        story.put("b", 2, expected=1)
        story.read(1)

        assert self.check(story.history.ops).counts["seen too late"] == 1

    def test_who_was_on_the_way_may_see_either(self, story: Story):
        story.put("a", 1, expected=0)
        reading = story.history.invoke("r", "read", {"stream": "s", "subject": "s.a"})
        story.put("b", 2, expected=1)
        story.history.end(reading, "ok", {"sequence": 1})

        assert self.check(story.history.ops).valid is True


# --- streams that follow others -------------------------------------------------------------------

MIRRORED = ((1, "s.a", "x"), (2, "s.a", "y"), (4, "s.a", "z"))


@pytest.mark.parametrize(
    "rows",
    [
        MIRRORED[:-1],
        MIRRORED[1:],
        (*MIRRORED, (5, "s.a", "z")),
        (*MIRRORED[:-1], (3, "s.a", "z")),
        ((1, "s.a", "y"), (2, "s.a", "x"), MIRRORED[-1]),
    ],
    ids=["one less at the end", "and at the beginning", "twice", "elsewhere", "in another order"],
)
def test_a_mirror_that_has_something_else_is_seen(story: Story, rows: Any) -> None:
    story.holds((1, "x"), (2, "y"), (4, "z"))
    story.copied(*rows)
    assert stream_copies([*story.history]).counts["mirrored otherwise"] == 1


def test_what_is_sourced_may_be_mixed_but_not_be_missing_twice_or_in_another_order() -> None:
    def verdict(*bodies: str) -> Any:
        story = Story()
        rows = [[1, "s.a", "a1"], [2, "s.b", "b1"], [3, "s.a", "a2"]]
        story.history.saw("p", "content", {"stream": "s", "first": 1, "last": 3, "rows": rows})
        some = [(at, f"s.{body[0]}", body) for at, body in enumerate(bodies, start=7)]
        story.copied(*some, filters=("s.a", "s.b"))
        return stream_copies([*story.history]).counts["sourced otherwise"]

    assert verdict("b1", "a1", "a2") == verdict("a1", "a2", "b1") == 0
    assert verdict("a2", "a1", "b1") == verdict("a1", "a2", "b1", "b1") == verdict("a1", "a2") == 1


def test_a_mirror_that_is_the_same_is_right_and_one_of_what_nobody_read_is_left_open(
    story: Story,
) -> None:
    story.copied(*MIRRORED)
    assert stream_copies([*story.history]).valid == "unknown"
    story.holds((1, "x"), (2, "y"), (4, "z"))
    found = stream_copies([*story.history])
    assert (found.valid, found.counts["taken"]) == (True, 3)
