"""What a stream costs in memory: 10,000,000 messages of 1,000,000 subjects fit into 1 GiB."""

from __future__ import annotations

import tracemalloc
from random import Random

from cluster.machine.stream.retained import Retained

MESSAGES = 40_000
SUBJECTS = 4_000
BATCH = 250
#: What 1 GiB allows; 44 B were measured.
BYTES_MAX = 2**30 / 10_000_000


def test_a_message_among_many_subjects_takes_its_share_of_one_gib() -> None:
    dice = Random(7)
    tracemalloc.start()
    try:
        retained = Retained(1)
        ids = [retained.subjects.id_for(b"orders.%d.created" % at) for at in range(SUBJECTS)]
        for number in range(MESSAGES // BATCH):
            some = [dice.choice(ids) for _ in range(BATCH)]
            sizes = [dice.randrange(80, 140) for _ in range(BATCH)]
            retained.append(some, 100 + number, 0, sizes, 1_000 + number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert retained.count == MESSAGES
    assert taken / MESSAGES < BYTES_MAX, f"{taken / MESSAGES:.0f} B a message"
