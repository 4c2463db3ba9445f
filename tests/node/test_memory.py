"""What a process of a node does about its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

IMPORTED = """
import gc, json
import node.node
from node.memory import CollectWhatIsNew

before = len(gc.get_objects())
CollectWhatIsNew()
print(json.dumps([before, len(gc.get_objects())]))
"""

#: Messages come and go beside queues that stay.
CHURN = """
import gc, json
from node.memory import CollectWhatIsNew

CollectWhatIsNew().begin()
queues = [[[number], [number]] for number in range(100_000)]
gc.collect()
looked_at = []
gc.callbacks.append(
    lambda phase, info: info["generation"] == 2 and phase == "start"
    and looked_at.append(len(gc.get_objects()))
)
for _ in range(30):
    backlog = [[number] for number in range(60_000)]
    backlog.clear()
print(json.dumps(looked_at))
"""

#: Channels are circles; these are permanent before they are closed.
CIRCLES = """
import gc, json, weakref
from node.memory import CollectWhatIsNew

class Channel:
    def __init__(self):
        self.own = self

CollectWhatIsNew().begin()
channels = [Channel() for _ in range(1_000)]
gc.collect()
alive = [weakref.ref(channel) for channel in channels]
channels.clear()
gc.collect()
at_once = sum(each() is not None for each in alive)
more, enough = [], 4 * gc.get_freeze_count() + 1_000_000
while len(more) < enough and any(each() is not None for each in alive):
    more.extend([number] for number in range(1_000))
print(json.dumps([at_once, sum(each() is not None for each in alive)]))
"""


def _said(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_a_full_collection_does_not_look_at_what_was_imported() -> None:
    before, after = _said(IMPORTED)
    assert before > 50_000
    assert after < before / 50


def test_full_collections_look_at_what_is_new_though_messages_come_and_go() -> None:
    looked_at = _said(CHURN)
    assert looked_at, "there were none"
    assert max(looked_at[1:]) < 200_000, "queues that stay were looked at again"


def test_circles_that_were_permanent_go_when_the_objects_have_doubled() -> None:
    assert _said(CIRCLES) == [1_000, 0]
