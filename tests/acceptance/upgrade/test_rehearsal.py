"""Upgrades as operators do them, with real nodes: see `rehearsal`. Two in a run; all of them are
`make upgrade-rehearsal`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.upgrade.rehearsal import REHEARSALS
from tests.acceptance.upgrade.releases import Unavailable
from tests.testkit.draws import drawn


@pytest.mark.live
@pytest.mark.parametrize("name", drawn(REHEARSALS, 2))
async def test_nothing_is_lost_and_nothing_diverges(name: str, tmp_path: Path) -> None:
    try:
        await REHEARSALS[name](tmp_path, print)
    except Unavailable as error:
        pytest.skip(str(error))
