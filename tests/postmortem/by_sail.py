"""A post-mortem by Sail, in a process of its own: one process speaks to one engine.

    python -m tests.postmortem.by_sail ASKED

ASKED is JSON: paths, out, and what else was asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from chaos.builds import broken

ROOT = Path(__file__).parents[2]


def by_sail(paths: list[str], out: Path, **asked: Any) -> int:
    """The exit status that the command would have."""
    told = json.dumps({"paths": paths, "out": str(out), **asked}, default=str)
    command = [sys.executable, "-m", "tests.postmortem.by_sail", told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def main(told: str) -> None:
    from chaos.postmortem.pipeline import Asked, run
    from chaos.postmortem.session import start

    asked = json.loads(told)
    build = asked["build"] and partial(broken, asked["build"])
    files = {name: asked[name] and Path(asked[name]) for name in ("history", "confirmed")}
    spark = start(engine="sail")
    result = run(
        asked["paths"],
        Path(asked["out"]),
        spark=spark,
        asked=Asked(build=build or nullcontext, **files),
    )
    spark.stop()
    print(result.status)


if __name__ == "__main__":
    main(sys.argv[1])
