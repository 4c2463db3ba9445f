"""Of what takes long, some in a run, and others for each commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from random import Random
from typing import Any, Final

import pytest

from tests import FIRST_SEED


def drawn(values: Collection[Any], count: int) -> list[Any]:
    """All as parameters of a test; those that are not among the `count` drawn are marked
    `undrawn`, which runs of all tests leave out. The seed that the run shows at its head decides.
    """
    chosen = _sample(values, count)
    return [
        pytest.param(value, marks=() if value in chosen else pytest.mark.undrawn)
        for value in values
    ]


#: Tests of minutes, each about something of its own; a run takes one of them.
LONG: Final = (
    "an installed post-mortem",
    "a simulated hour",
    "large bodies",
    "what left otherwise",
)


def one_of_long(name: str) -> Callable[[Any], Any]:
    """Of `LONG`: marked `undrawn` in all runs but those that draw it."""
    assert name in LONG
    return (lambda test: test) if name in _sample(LONG, 1) else pytest.mark.undrawn


def _sample(values: Collection[Any], count: int) -> list[Any]:
    return Random(int(os.environ[FIRST_SEED])).sample(sorted(values), count)
