"""What every test shares: Hypothesis profiles, `--rewrite`, fresh seeds, a guard against blocking
calls, no login that a command left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, Phase, settings

from chaos.simulator.command import FRESH_SEEDS, fresh_seed
from chaos.simulator.plan import FRESH_FROM
from quorate.cli import output
from quorate.lifetime import tied
from tests import FIRST_SEED
from tests.cluster.world import MakeWorld, World, worlds
from tests.testkit.reaper import watch_over
from tests.testkit.virtual_time import loop_factories

REAPER = pytest.StashKey["subprocess.Popen[bytes]"]()

# No deadlines: two cores run other things too, and a slow example is no failure.
settings.register_profile(
    "quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
# The same examples every time: what lands is decided by the change, not by luck.
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True)
# For who wants to know that something fails, and not the smallest example of it.
settings.register_profile(
    "first", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what came out into the scripts, instead of comparing",
    )
    parser.addoption(
        "--first-seed",
        type=int,
        help="the first of the simulator's fresh seeds; by default nobody knows it before, in CI"
        " the commit says it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Drawn once for all workers of a run, which inherit the environment."""
    given = config.getoption("--first-seed")
    if given is not None:
        os.environ[FIRST_SEED] = str(given)
    elif not hasattr(config, "workerinput"):
        of_commit = _seed_of_commit() if "CI" in os.environ else None
        os.environ[FIRST_SEED] = str(fresh_seed() if of_commit is None else of_commit)
    # Hundreds of processes import the same modules: compiled once, where no checkout sees it. Not
    # for a few tests, which might be those of a mutant.
    if sys.dont_write_bytecode and config.getoption("numprocesses", default=None):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.rootpath / ".pytest_cache" / "bytecode")
    # A shell's background jobs ignore it, and so would every process that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A test that is killed leaves no node behind.
    os.environ |= tied({})
    if not hasattr(config, "workerinput"):
        marks, config.stash[REAPER] = watch_over(dict(os.environ))
        os.environ |= marks


def pytest_unconfigure(config: pytest.Config) -> None:
    reaper = config.stash.get(REAPER, None)
    if reaper is not None:
        reaper.communicate()


def _seed_of_commit() -> int | None:
    """Each commit has seeds of its own; who runs it before CI does sees what CI will see."""
    asked = ["git", "rev-parse", "HEAD"]
    said = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, check=False).stdout
    return int(said, 16) % FRESH_SEEDS + FRESH_FROM if said else None


def pytest_report_header() -> str:
    first = os.environ[FIRST_SEED]
    return f"fresh seeds of the simulator from {first}; the same again: --first-seed {first}"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_factories(item)


@pytest.fixture
async def make_world() -> AsyncIterator[MakeWorld]:
    """Makes clusters under virtual time, which it stops after the test."""
    async with worlds() as make:
        yield make


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    """Three nodes under virtual time; every group has a leader that all know."""
    return await make_world().born()


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Fails a test whose event loop sleeps, reads a file or waits for a socket."""
    with blockbuster_ctx() as guard:
        yield guard


@pytest.fixture(autouse=True)
def no_login_is_left() -> Iterator[None]:
    """A command that runs in this process remembers who it was called by; tests after it do not."""
    yield
    for name, value in asdict(output.Login()).items():
        setattr(output.login, name, value)
