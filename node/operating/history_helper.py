"""The process that tells the history of one message: `python -m node.operating.history_helper`.

A question comes on standard input, the answer goes to standard output, both as CBOR. It reads the
node's files and asks the node nothing; it may be ended at any moment.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.codec.cbor import pack, unpack
from cluster.history.message_events import Wanted
from cluster.history.message_history import NoHistory, history

NICE = 10
#: When memory is short, the kernel ends this process and not the node.
OOM_SCORE = "1000"


def restrain(*, memory_bytes_max: int, seconds_max: int) -> None:
    """Behind the node in everything, and not for ever even if the node is gone."""
    os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes_max),
        (resource.RLIMIT_CPU, seconds_max),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        own = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (own, own))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        wanted = Wanted(**request["wanted"])
        found = history(
            request["folders"],
            wanted,
            applied=request["applied"],
            seconds_max=request["seconds_max"],
        )
        return {"told": found}
    except NoHistory as none:
        return {"code": none.code, "reason": none.reason}
    except MemoryError:
        limit = request["memory_bytes_max"]
        return {
            "code": "out_of_reach",
            "reason": f"it takes more than {limit:,} bytes of memory: raise"
            " limits.history_memory_bytes_max, or read the folder with `quorate message --data`",
        }


def main() -> int:
    request = unpack(sys.stdin.buffer.read())
    restrain(
        memory_bytes_max=request["memory_bytes_max"], seconds_max=int(request["seconds_max"]) + 1
    )
    sys.stdout.buffer.write(pack(answer(request)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
