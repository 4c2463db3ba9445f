"""Who led, until when and why: of one group, by what its nodes noted. No Spark here."""

from __future__ import annotations

from dataclasses import replace

from chaos.postmortem.life.leadership import Away, Candidacy, Leadership, Life, Noted, Said, Vote

MS = 1_000_000
NODES = ("n1", "n2", "n3")


class Story:
    """Notes of three nodes as time goes on."""

    def __init__(self) -> None:
        self.ms = 0
        self.noted: list[Noted] = []
        self.lives: dict[str, Life] = {n: Life(n, f"{n}-0", 0, 0, "open") for n in NODES}
        self.ended: list[Life] = []
        self.away: list[Away] = []
        self.offset = 0

    def _common(self, node: str, term: int) -> dict[str, object]:
        self.ms += 1
        self.offset += 48
        return {
            "node": node, "boot": self.lives[node].boot, "place": (1, self.offset),
            "at_ns": self.ms * MS, "shift_ns": 0, "term": term, "file": f"{node}.log",
        }  # fmt: skip

    def say(
        self, node: str, role: str, term: int, *, asked_by: str | None = None, index: int = 9
    ) -> None:
        common = self._common(node, term)
        said = Said(**common, role=role, leader=None, asked_by=asked_by, index=index)  # type: ignore[arg-type]
        self.noted.append(said)

    def vote(self, node: str, candidate: str, term: int) -> None:
        self.noted.append(Vote(**self._common(node, term), candidate=candidate))  # type: ignore[arg-type]

    def stand(
        self, node: str, term: int, *voters: str, asked_by: str | None = None, index: int = 9
    ) -> None:
        self.vote(node, node, term)
        self.say(node, "candidate", term, asked_by=asked_by, index=index)
        for voter in voters:
            self.vote(voter, node, term)

    def elect(self, node: str, term: int, *voters: str, index: int = 9) -> None:
        self.stand(node, term, *voters, index=index)
        self.say(node, "leader", term, index=index)

    def hand_over(self, old: str, new: str, term: int) -> None:
        self.stand(new, term, asked_by=old)
        self.say(old, "follower", term)
        self.vote(old, new, term)
        self.say(new, "leader", term)

    def end(self, node: str, how: str) -> None:
        life = self.lives[node]
        self.ended.append(Life(node, life.boot, life.from_ns, self.ms * MS, how))

    def start(self, node: str) -> None:
        self.ms += 1
        self.lives[node] = Life(node, f"{node}-{self.ms}", self.ms * MS, 0, "open")

    def passes(self, ms: int) -> None:
        self.ms += ms

    def told(self) -> Leadership:
        done = {life.boot for life in self.ended}
        running = [
            Life(life.node, life.boot, life.from_ns, self.ms * MS, "open")
            for life in self.lives.values()
            if life.boot not in done
        ]
        return Leadership(self.noted, [*self.ended, *running], self.away)


def founded() -> Story:
    story = Story()
    story.elect("n1", 1, "n2", index=1)
    story.passes(5_000)
    return story


def last(story: Story) -> Candidacy:
    return story.told().elections()[-1]


def ends(story: Story) -> list[tuple[str, int, str]]:
    return [(reign.leader, reign.term, reign.ended) for reign in story.told().reigns]


def test_the_first_election_of_a_group_replaces_nobody():
    story = founded()
    (only,) = story.told().elections()
    assert (only.cause, only.before, only.without_leader_ms) == ("first", None, None)
    assert [vote.node for vote in only.votes] == ["n1", "n2"]
    assert ends(story) == [("n1", 1, "open")]


def test_where_the_beginning_is_not_in_the_logs_nobody_knows_what_was_before():
    story = Story()
    story.elect("n1", 7, "n2", index=4_000)
    assert last(story).cause == "unknown"


def test_who_was_asked_by_the_leader_took_over_and_nothing_was_lost():
    story = founded()
    story.hand_over("n1", "n2", 2)
    assert (last(story).cause, last(story).before) == ("handed over", "n1")
    assert (last(story).without_leader_ms or 9) < 3
    assert ends(story) == [("n1", 1, "handed over"), ("n2", 2, "open")]


def test_a_hand_over_whose_heir_fails_is_none_the_less_one():
    story = founded()
    story.stand("n2", 2, asked_by="n1")
    story.say("n1", "follower", 2)
    story.passes(1_500)
    story.elect("n3", 3, "n1")
    first, failed, won = story.told().elections()
    assert first.cause == "first"
    assert (failed.cause, failed.led_by) == ("contested", None)
    assert (won.cause, won.before) == ("handed over", "n1")


def test_a_killed_leader_is_missed_from_its_last_record_on():
    story = founded()
    story.end("n1", "killed")
    story.passes(120)
    story.elect("n2", 2, "n3")
    assert (last(story).cause, last(story).before) == ("killed", "n1")
    assert 120 < (last(story).without_leader_ms or 0) < 130
    story.start("n1")
    assert ends(story) == [("n1", 1, "killed"), ("n2", 2, "open")]


def test_a_leader_that_stood_still_is_missed_from_then_on_and_learns_of_it_later():
    story = founded()
    stood_ns = story.ms * MS
    story.passes(1_400)
    story.elect("n2", 2, "n3")
    story.passes(3_000)
    story.away.append(Away("n1", None, stood_ns, story.ms * MS))
    story.say("n1", "follower", 2)
    assert last(story).cause == "silent"
    assert 1_400 < (last(story).without_leader_ms or 0) < 1_410
    told = story.told().reigns[0]
    assert told.ended == "deposed"
    assert told.to_ns == story.told().reigns[1].began.ref_ns  # not until it said so


def test_a_pause_of_another_time_explains_nothing():
    story = founded()
    story.away.append(Away("n1", None, 0, 2_000 * MS))
    story.passes(1_000)
    story.elect("n2", 2, "n3")
    assert last(story).cause == "silent"
    assert (last(story).without_leader_ms or 0) < 10


def test_who_hears_no_majority_steps_down_and_why_depends_on_the_others():
    for how, cause in (("killed", "stepped down"), ("orderly", "stopped")):
        story = founded()
        story.end("n2", how)
        story.end("n3", "orderly")
        story.passes(2_000)
        story.say("n1", "follower", 1)
        story.start("n2")
        story.passes(3_000)
        story.elect("n1", 2, "n2")
        assert (last(story).cause, last(story).before) == (cause, "n1"), how
        assert (last(story).without_leader_ms or 0) > 3_000


def test_a_cluster_that_was_stopped_in_order_has_lost_nobody():
    story = founded()
    story.hand_over("n1", "n2", 2)
    for node in NODES:
        story.passes(50)
        story.end(node, "orderly")
    story.passes(60_000)
    for node in NODES:
        story.start(node)
    story.elect("n3", 3, "n1")
    assert (last(story).cause, last(story).before) == ("stopped", "n2")


def test_two_leaders_of_one_term_are_both_there_and_neither_replaced_the_other():
    story = founded()
    story.hand_over("n1", "n2", 2)
    story.elect("n3", 2)
    found = [each for each in story.told().elections() if each.term == 2]
    assert {each.candidate: each.cause for each in found} == {
        "n2": "handed over",
        "n3": "unknown",
    }
    assert [reign.leader for reign in story.told().reigns] == ["n1", "n2", "n3"]


def test_a_vote_that_is_in_the_log_twice_is_one():
    story = founded()
    story.vote("n2", "n1", 1)
    (only,) = story.told().elections()
    assert [(vote.node, vote.offset) for vote in only.votes] == [("n1", 48), ("n2", 144)]


def test_times_of_clocks_that_differ_compare_once_they_are_shifted():
    """n2 is ten seconds behind: without the shift it would lead before n1 was killed."""
    story = founded()
    story.end("n1", "killed")
    story.passes(200)
    story.elect("n2", 2, "n3")
    behind = 10_000 * MS
    story.noted = [
        replace(each, at_ns=each.at_ns - behind, shift_ns=behind) if each.node == "n2" else each
        for each in story.noted
    ]
    assert last(story).cause == "killed"
    assert 200 < (last(story).without_leader_ms or 0) < 210
