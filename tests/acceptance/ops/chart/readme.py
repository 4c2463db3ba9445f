"""Is the chart's README.md what helm/readme.py makes of values.yaml?"""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.sources import ROOT


def stale() -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "helm" / "readme.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [done.stderr.strip()] if done.returncode else []
