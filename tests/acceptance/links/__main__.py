"""`python -m tests.acceptance.links`: messages between brokers while both sides are killed, and a
backlog that waits in another cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from tests.acceptance.links.relief import relieve
from tests.acceptance.links.shovels import SCENES, Result
from tests.testkit.rabbitmq import installed

BACKLOG = "backlog"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.links", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="of each scene")
    parser.add_argument("--only", choices=[*SCENES, BACKLOG], help="this scene")
    given = parser.parse_args()
    # Brokers that were started are ended, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    if not installed():
        print("RabbitMQ's scenes are left out; on Debian: apt-get install rabbitmq-server")
    results: list[Result] = []
    for name, scene in SCENES.items():
        if given.only not in (None, name) or (scene.needs_rabbitmq and not installed()):
            continue
        with tempfile.TemporaryDirectory(prefix="links-") as folder:
            results.append(asyncio.run(scene.run(Path(folder), given.messages, print)))
        print(results[-1].line())
    good = all(result.good for result in results)
    if given.only in (None, BACKLOG):
        with tempfile.TemporaryDirectory(prefix="links-") as folder:
            good &= asyncio.run(relieve(Path(folder), print))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
