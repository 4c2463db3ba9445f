"""What every test shares: Hypothesis profiles, `--rewrite`, a guard against blocking calls."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

# No deadlines: two cores run other things too, and a slow example is no failure.
settings.register_profile(
    "quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
# The same examples every time: what lands is decided by the change, not by luck.
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what came out into the scripts, instead of comparing",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Fails a test whose event loop sleeps, reads a file or waits for a socket."""
    with blockbuster_ctx() as guard:
        yield guard
