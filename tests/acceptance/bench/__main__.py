"""`python -m tests.acceptance.bench`: through the native protocol."""

from __future__ import annotations

import sys

from tests.acceptance.bench import hard, runs
from tests.acceptance.bench.program import main

RUNS = {
    "publish": runs.publish,
    "consume": runs.consume,
    "both": runs.both,
    "latency": runs.latency,
    "backlog": hard.backlog,
    "failover": hard.failover,
}

if __name__ == "__main__":
    sys.exit(main(RUNS, "python -m tests.acceptance.bench"))
