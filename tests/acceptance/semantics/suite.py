"""The rows of AMQP, as a suite."""

from __future__ import annotations

import re

from tests.acceptance import semantics
from tests.acceptance.rows.suite import Suite
from tests.acceptance.semantics.brokers import NEEDS
from tests.acceptance.semantics.differences import DESIGN_DIFFERENCES, NOT_VISIBLE
from tests.acceptance.semantics.visit import Visit

SUITE = Suite(
    package=semantics,
    row=re.compile(r"([abc]\d\d)_"),
    needs=NEEDS,
    differences=DESIGN_DIFFERENCES,
    not_checked={
        row: (shows, f"not client-visible: {reason}")
        for row, (shows, reason) in NOT_VISIBLE.items()
    },
    stay=Visit,
)
