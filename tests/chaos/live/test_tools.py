from __future__ import annotations

import os
import shutil

import pytest

from chaos.commands import main
from chaos.live.tools import PACKAGES, advice


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def _without(monkeypatch: pytest.MonkeyPatch, *tools: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in tools else f"/bin/{tool}")


def test_one_line_says_which_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ip", "ss", "iptables-restore")

    expected = "To have every kind of fault, first: apt-get install iproute2 iptables"
    assert advice() == expected


def test_nothing_is_said_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch)

    assert advice() is None


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "nft")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    said = "To have every kind of fault, first: apt-get install nftables and run this as root"
    assert advice() == said


def test_a_run_says_it_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without(monkeypatch, *PACKAGES)

    main(["run", "--mix", "no-such-mix", "--seed", "1"])

    assert capsys.readouterr().err.splitlines()[0].startswith("To have every kind of fault")
