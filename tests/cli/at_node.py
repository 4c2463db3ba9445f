"""Commands at a node of this process: on a loop of its own, since a command runs one, too."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from quorate.cli import run
from tests.node.nodes import Nodes
from tests.testkit.threads import in_a_thread

Output = pytest.CaptureFixture[str]


@contextmanager
def one_node(folder: Path, **options: Any) -> Iterator[Nodes]:
    """What it logs does not stand between what a command says."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    nodes = Nodes(folder, **options)
    try:
        with in_a_thread(nodes):
            yield nodes
    finally:
        structlog.reset_defaults()


def only_at(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find this node, and nothing else in their environment."""
    monkeypatch.setenv("QUORATE_URL", nodes.url("n1"))
    for name in ("QUORATE_USER", "QUORATE_PASSWORD", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def rows_of(capsys: Output, *command: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
