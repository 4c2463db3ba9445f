"""`python -m tests.site.learn`: what the OpenAPI document knows of bodies, learned from the tests
of both APIs, and added to docs/site/bodies.json; remove that file first to learn all anew.
"""

from __future__ import annotations

import os
import subprocess
import sys

from docs.site.reference import BODIES
from tests.architecture.sources import ROOT
from tests.site.learning import FILE

TESTS = (
    "tests/node/management",
    "tests/node/test_http.py",
    "tests/node/test_history.py",
    "tests/node/test_drain.py",
    "tests/node/test_backup_cut.py",
    "tests/node/amqp/test_split_queues.py",
    "tests/node/links/test_shovels.py",
    "tests/node/links/federation/test_live.py",
    "tests/node/security/test_audit.py",
    "tests/site/test_openapi.py",
)


def main() -> int:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.site.learning"),
            *("-p", "no:cacheprovider", "-m", "not toolchain", *TESTS),
        ],
        cwd=ROOT,
        env={**os.environ, FILE: str(BODIES)},
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
