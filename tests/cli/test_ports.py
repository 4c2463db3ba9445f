"""Ports for nodes on loopback."""

from __future__ import annotations

import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from quorate import ports


def _ask(count: int) -> list[int]:
    return [ports.free_port() for _ in range(count)]


def test_processes_that_ask_at_once_are_never_given_the_same() -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        given = [port for some in pool.map(_ask, [50] * 8) for port in some]
    assert len(set(given)) == len(given)


def test_one_that_is_listened_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = ports.free_port()
    with socket.create_server((ports.HOST, taken)):
        monkeypatch.setattr(ports, "_turns", lambda: tmp_path / "turns")
        (tmp_path / "turns").write_text(str(taken - 1))
        assert ports.free_port() != taken
        monkeypatch.setattr(ports, "PORT_MIN", taken)
        monkeypatch.setattr(ports, "PORT_MAX", taken + 1)
        with pytest.raises(OSError, match="no port"):
            ports.free_port()


def test_after_the_last_comes_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_turns", lambda: tmp_path / "turns")
    (tmp_path / "turns").write_text(str(ports.PORT_MAX - 1))
    assert ports.PORT_MIN <= ports.free_port() < ports.PORT_MAX - 1
    (tmp_path / "turns").write_text("nonsense")
    assert ports.PORT_MIN <= ports.free_port() < ports.PORT_MAX
