"""The history that a live run writes while its clients run."""

import gc
from pathlib import Path

import pytest

from chaos.history import FREEZE_EVERY, Recorder


@pytest.fixture
def _frozen_no_more():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen_no_more")
def test_a_collection_of_garbage_does_not_look_at_a_long_history(tmp_path: Path):
    recorder = Recorder(tmp_path / "history.jsonl")
    gc.collect()
    before = len(gc.get_objects())

    for first in range(3 * FREEZE_EVERY):
        recorder.invoke("p", "publish", {"queue": "q", "first": first})
    recorder.close()

    assert len(recorder) == 3 * FREEZE_EVERY
    assert len(gc.get_objects()) - before < FREEZE_EVERY
