"""What makes a node a full member, as the statuses of nodes tell it."""

from __future__ import annotations

from typing import Any

from chaos.live.whole import missing_parts
from cluster.types import NodeId

NODE = NodeId("node-2")


def group(**values: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "default-1",
        "members": ["node-1", "node-2", "node-3"],
        "learners": [],
        "withholds_votes": False,
        "role": "follower",
        "term": 3,
        "commit": 9,
        "applied": 9,
        **values,
    }


def judge(own: dict[str, Any], leader: dict[str, Any]) -> str | None:
    return missing_parts(NODE, {"groups": [own]}, [{"groups": [leader]}, {"groups": [own]}])


def test_who_has_applied_what_the_leader_committed_is_whole():
    assert judge(group(), group(role="leader")) is None


def test_who_is_behind_is_not():
    assert judge(group(applied=8), group(role="leader")) is not None


def test_who_withholds_its_votes_is_not():
    assert judge(group(withholds_votes=True), group(role="leader")) is not None


def test_a_learner_is_not():
    assert judge(group(), group(role="leader", learners=["node-2"])) is not None


def test_a_group_without_a_leader_has_no_full_members():
    assert judge(group(), group()) is not None


def test_the_leader_of_the_newest_term_is_believed():
    old = group(role="leader", term=2, commit=99)
    answers = [{"groups": [each]} for each in (old, group(role="leader"), group())]

    assert missing_parts(NODE, {"groups": [group()]}, answers) is None


def test_a_copy_that_is_not_there_is_missed():
    answers = [{"groups": [group(role="leader")]}]

    assert missing_parts(NODE, {"groups": []}, answers) is not None


def test_who_is_no_member_lacks_nothing():
    leader = group(role="leader", members=["node-1", "node-3", "node-4"])

    assert missing_parts(NODE, {"groups": []}, [{"groups": [leader]}]) is None
