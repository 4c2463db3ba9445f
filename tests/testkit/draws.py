"""Of what takes long, some in a run, and others for each commit."""

from __future__ import annotations

import os
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

from tests import FIRST_SEED


def drawn(values: Collection[Any], count: int) -> list[Any]:
    """All as parameters of a test; those that are not among the `count` drawn are marked
    `undrawn`, which runs of all tests leave out. The seed that the run shows at its head decides.
    """
    chosen = Random(int(os.environ[FIRST_SEED])).sample(sorted(values), count)
    return [
        pytest.param(value, marks=() if value in chosen else pytest.mark.undrawn)
        for value in values
    ]
