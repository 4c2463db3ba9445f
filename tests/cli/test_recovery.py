"""`quorate node recover`: what it says before anything is changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import node.operating.recovery
from cluster.machine.catalog import CatalogMachine
from cluster.recovery.lost_majority import LostMajority, NoCopy
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.operating.recovery import Survey
from quorate.cli import recovery

LOST = ("n1", "n2", "n3")
QUEUES = [("/", f"q{number}") for number in range(11)] + [("shop", "orders")]


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch) -> Survey:
    """As the folder of n4 says it, of five nodes."""
    nodes = [NodeId(f"n{number}") for number in range(1, 6)]
    catalog = LostMajority(CATALOG_GROUP, "catalog", nodes, tuple(nodes[3:]), 9, 9, None)
    gone = [NoCopy("default-1", tuple(nodes[:3]), QUEUES)]
    found = Survey("n4", LOST, [catalog], [], gone, CatalogMachine())

    async def surveyed(*_: Any) -> Survey:
        return found

    monkeypatch.setattr(node.operating.recovery, "survey", surveyed)
    monkeypatch.setattr(recovery, "answer", lambda _: "not the name of the cluster")
    return found


def run(tmp_path: Path, *, as_json: bool) -> int:
    flags = [f"--data-dir={tmp_path}", "--node=n4", "--cluster=shop"]
    return recovery.run_recover(None, flags, list(LOST), yes=False, as_json=as_json)


def test_groups_without_a_copy_are_named_before_the_question(
    survey: Survey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(tmp_path, as_json=False) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "No copy is left of default-1 (n1, n2, n3 had them): all that it held is gone. Its queues"
        " (12): q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, ..." in said
    )
    assert "If a lost node can come back with its folder, start it, and do not go on." in said
    assert "declare queues under other names, with an x-queue-group of their own" in said


def test_all_their_queues_are_in_the_json(
    survey: Survey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(tmp_path, as_json=True) == 1
    out = capsys.readouterr().out
    found, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
    queues = [{"vhost": vhost, "name": name} for vhost, name in QUEUES]
    assert found["without_copy"] == [
        {"group": "default-1", "homes": ["n1", "n2", "n3"], "queues": queues}
    ]


def test_of_a_copy_that_does_not_count_the_others_say_who_goes_on(
    survey: Survey, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    voters = [NodeId(f"n{number}") for number in range(1, 6)]
    learning = LostMajority(GroupId(3), "default-3", voters[:3], (voters[2],), 5, 5, None)
    found = replace(survey, groups=[*survey.groups, learning], elsewhere=["default-3"])

    async def surveyed(*_: Any) -> Survey:
        return found

    monkeypatch.setattr(node.operating.recovery, "survey", surveyed)
    assert run(tmp_path, as_json=False) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "see the others" in said
    assert "This node's copy of default-3 does not count" in said
    assert run(tmp_path, as_json=True) == 1
    out = capsys.readouterr().out
    told, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
    assert [(g["group"], g["counts"]) for g in told["groups"]] == [
        ("catalog", True),
        ("default-3", False),
    ]
