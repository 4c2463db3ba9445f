from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.node.security.processes import Secret


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secret(tmp_path: Path, authority: trustme.CA) -> Secret:
    """The server's certificate."""
    made = Secret(tmp_path / "secret")
    made.put(authority, "127.0.0.1", "localhost")
    return made
