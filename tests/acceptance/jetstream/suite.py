"""The rows of NATS and JetStream, as a suite."""

from __future__ import annotations

import re

from tests.acceptance import jetstream
from tests.acceptance.jetstream.differences import DESIGN_DIFFERENCES, NOT_CHECKED
from tests.acceptance.jetstream.servers import NEEDS
from tests.acceptance.jetstream.visit import Visit
from tests.acceptance.rows.suite import Suite

SUITE = Suite(
    package=jetstream,
    row=re.compile(r"(d\d\d|n\d)_"),
    needs=NEEDS,
    differences=DESIGN_DIFFERENCES,
    not_checked=NOT_CHECKED,
    stay=Visit,
)
