"""What a process of a node does about its memory."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
import node.node
from node.memory import spare_what_was_imported

before = len(gc.get_objects())
spare_what_was_imported()
print(before, len(gc.get_objects()))
"""


def test_a_full_collection_does_not_look_at_what_was_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    before, after = map(int, done.stdout.split())
    assert before > 50_000
    assert after < before / 50
