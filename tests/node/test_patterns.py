"""Patterns that would hold a node are refused; those that people write are not."""

from __future__ import annotations

import re

import pytest

from node.access.patterns import check_pattern
from node.errors import Refused


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".*",
        "^$",
        "^(?!amq\\.).*",
        "^(amq\\.default|orders|orders\\.dead)$",
        "^{username}-.*",
        "^[^.]+\\.[^.]+\\.[^.]+\\.[^.]+\\.[^.]+$",
        "^a\\..*\\.b\\..*\\.c$",
        "(foo|bar)+\\.x",
        "^([a-z]+\\.)*log$",
        "\\.(dev|test)$",
        "^ha\\.[0-9]{1,3}\\.\\w+$",
        "(",  # for others to refuse
    ],
)
def test_what_people_write_is_taken(pattern: str):
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "^(a|ab|b)*c$",
        "^(.*)*x",
        "((a?){30})a{30}",
        "a?" * 30 + "a" * 30,
        "^.*a.*a.*a.*a$",
        ".*.*.*x",
        "^(?=(a+)+$)",
        "^([a-z]+)*$",
    ],
)
def test_what_would_try_very_many_ways_is_refused(pattern: str):
    with pytest.raises(Refused, match="too long to match"):
        check_pattern(pattern)


def test_the_worst_that_is_taken_ends():
    worst = "^.*a.*a.*a$"
    check_pattern(worst)
    assert re.search(worst, "a" * 254 + "b") is None
