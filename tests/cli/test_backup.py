"""`quorate backup`: what it decides before it asks a cluster."""

from pathlib import Path

import pytest

from quorate.cli.backup import dated
from quorate.cli.output import CommandError


def test_runs_within_one_second_have_folders_of_their_own(tmp_path: Path):
    made = [dated(tmp_path / "backups") for _ in range(3)]

    assert sorted(set(made)) == made
    assert all(each.stat().st_mode & 0o777 == 0o700 for each in made)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "backups").touch()
    with pytest.raises(CommandError, match=r"backups.* cannot be used: Not a directory"):
        dated(tmp_path / "backups")
