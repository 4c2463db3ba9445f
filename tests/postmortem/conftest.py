"""One Spark session for all tests: to start one takes longer than most of them."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from chaos.postmortem.session import fit, missing, start

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    # Many small queries, each but once: what is compiled thoroughly never pays.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m -XX:+UseSerialGC"
    ),
}


#: Where Spark is not installed these cannot even be imported.
collect_ignore = (
    []
    if find_spec("pyspark")
    else [
        *("test_cluster_life.py", "test_message_fold.py", "test_queue_account.py"),
        *("test_queues.py", "test_replay.py"),
    ]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them in one process, whatever `-n` says."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Skips, with what to install, where Spark cannot run."""
    lacks = missing()
    if lacks is not None:
        pytest.skip(lacks)
    session = start("local[2]", options=SETTINGS)
    fit(session, 0)
    yield session
    session.stop()
