"""`make upgrade-rehearsal`"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.upgrade.rehearsal import REHEARSALS
from tests.acceptance.upgrade.releases import Unavailable


def main(names: list[str]) -> int:
    for name in names or REHEARSALS:
        began = time.monotonic()

        def say(words: str, name: str = name, began: float = began) -> None:
            print(f"{name:6} {time.monotonic() - began:6.1f} s  {words}", flush=True)

        with tempfile.TemporaryDirectory(prefix="quorate-upgrade-") as folder:
            try:
                asyncio.run(REHEARSALS[name](Path(folder), say))
            except Unavailable as error:
                say(f"skipped: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
