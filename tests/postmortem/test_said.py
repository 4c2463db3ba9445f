"""What nodes noted of themselves, in words."""

from __future__ import annotations

import json
from typing import Any

from chaos.postmortem.report.said import KINDS, Note, moments

S_NS = 10**9


def told(*notes: tuple[str, str, int, Any]) -> list[tuple[str, int, str]]:
    given = [Note(node, kind, s * S_NS, json.dumps(fields)) for node, kind, s, fields in notes]
    return [(each.node, each.at_ns // S_NS, each.text) for each in moments(given)]


def test_what_changed_between_two_starts_is_told_and_nothing_else():
    settings = {"node": "n1", "log_level": "info", "raft.heartbeat_ms": "60"}
    assert told(
        ("n1", "started", 1, [7, "0.1.0", 1, 1]),
        ("n1", "settings", 1, [settings]),
        ("n1", "started", 20, [8, "0.1.0", 1, 1]),
        ("n1", "settings", 20, [settings]),
        ("n2", "started", 25, [5, "0.9.0", 9, 9]),
        ("n1", "started", 30, [9, "0.2.0", 2, 1, "more"]),
        ("n1", "settings", 30, [{"node": "n1", "log_level": "error", "new": "x" * 99}]),
    ) == [
        (
            "n1", 30,
            "another release: 0.1.0 (machine 1, log format 1), now 0.2.0 (machine 2, log format 1)",
        ),
        (
            "n1", 30,
            "settings changed: log_level: info -> error; new: (none) -> "
            + "x" * 60
            + "; raft.heartbeat_ms: 60 -> (none)",
        ),
    ]  # fmt: skip


def test_trouble_is_told_in_words_when_it_was():
    assert told(
        ("n1", "publishers", 2, ["low on disk"]),
        ("n1", "publishers", 5, [None]),
        ("n1", "archive", 6, ["/a: No space left on device"]),
        ("n1", "archive", 7, [None]),
        ("n1", "failed", 90, ["write of /d failed: [Errno 28] No space left on device", 8 * S_NS]),
    ) == [
        ("n1", 2, "publishers wait: low on disk"),
        ("n1", 5, "publishers go on"),
        ("n1", 6, "segments cannot be archived: /a: No space left on device"),
        ("n1", 7, "the archive works again"),
        (
            "n1", 8,
            "the process ended by itself: write of /d failed: [Errno 28] No space left on device",
        ),
    ]  # fmt: skip


def test_an_alarm_is_told_once_by_the_node_itself_if_it_could():
    assert told(
        ("n2", "alarm", 10, ["n1", False, True]),
        ("n1", "alarm", 11, ["n1", False, True]),
        ("n3", "alarm", 12, ["n1", False, True]),
        ("n2", "alarm", 50, ["n1", False, False]),
        ("n3", "alarm", 51, ["n1", False, False]),
        ("n2", "alarm", 99, ["n2", True, True]),
    ) == [
        ("n1", 11, "low on disk"),
        ("n1", 50, "no longer low on anything, as n2 heard"),
        ("n2", 99, "low on memory and disk"),
    ]


def test_notes_of_another_shape_say_nothing():
    details = (None, "not json", "{}", "[]", "[[1]]", "[1, 2]")
    given = [Note("n1", kind, 1, detail) for kind in KINDS for detail in details]
    assert moments(given) == []
