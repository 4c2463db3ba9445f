"""What earlier releases wrote leads to the same states and answers for ever. See `golden`."""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path
from typing import Any

import cbor2
import pytest

from cluster.codec.entries import decode_entry, encode_reply
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.recovery.rehearsing import rehearse
from cluster.types import Stamp
from node.operating.backup_folder import replay_all
from tests.acceptance.upgrade.golden import FILES, GOLDEN, HISTORIES

RELEASES = {"0.1": 1, "0.2": 2}
MACHINES = {"queues": QueueMachine, "catalog": CatalogMachine}


def test_every_release_has_its_files():
    assert sorted(each.name for each in GOLDEN.iterdir()) == sorted(RELEASES)


@pytest.fixture(params=RELEASES, scope="module")
def release(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def histories(release: str) -> list[tuple[str, list[Any]]]:
    return cbor2.loads(lzma.decompress((GOLDEN / release / HISTORIES).read_bytes()))


@pytest.fixture(scope="module")
def files(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / release / FILES) as tar:
        tar.extractall(folder, filter="data")
    return folder


def applied(machine: Any, rows: list[Any]) -> None:
    """Every answer, digest and snapshot is the one of then."""
    for place, written, reply, state in rows:
        index, term, ordinal, offset = place
        entry = decode_entry(written)
        (command,) = entry.commands
        stamp = Stamp(index, term, entry.now_ms, ordinal, offset)
        answer = encode_reply(machine.apply(stamp, command).reply)
        # As values: a map that comes out of a snapshot may be in another order.
        assert cbor2.loads(answer) == cbor2.loads(reply), command
        if state is not None:
            assert [machine.digest(), machine.snapshot()] == state, f"after {command}"


def test_its_logs_lead_to_its_answers_digests_and_snapshots(
    release: str, histories: list[tuple[str, list[Any]]]
):
    versions: set[int] = set()
    for kind, rows in histories:
        machine = MACHINES[kind]()
        applied(machine, rows)
        versions.add(machine.version)
    assert max(versions) == RELEASES[release]


def test_its_snapshots_go_on_as_it_went_on(histories: list[tuple[str, list[Any]]]):
    resumed = 0
    for kind, rows in histories:
        for number, (*_, state) in enumerate(rows):
            if state is not None:
                machine = MACHINES[kind]()
                machine.restore(state[1])
                assert [machine.digest(), machine.snapshot()] == state
                applied(machine, rows[number + 1 :])
                resumed += 1
    assert resumed > 50


def test_the_log_of_one_of_its_nodes_leads_to_the_digests_that_it_noted(files: Path):
    groups = list(rehearse(str(files / "log")))

    assert [each.problem for each in groups if not each.sound] == []
    assert len(groups) > 1
    assert sum(each.compared for each in groups) > 0


def test_a_backup_of_it_is_whole(files: Path):
    manifest, groups = replay_all(files / "backup", lambda _: None)

    assert len(groups) == len(manifest["groups"]) > 1
    catalog = next(each.machine for each in groups if isinstance(each.machine, CatalogMachine))
    queues = sum(each.machine.overview().get("queues", 0) for each in groups)
    assert queues > 8
    assert catalog.entry("policies", ("/", "short-one"))
