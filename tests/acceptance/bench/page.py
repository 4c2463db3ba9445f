"""What the pages of measurements share: where they were made, tables, and a template."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def end_nodes_when_ended() -> None:
    """SIGTERM is Ctrl-C, which ends the nodes, too."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


def host_of(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}. `fdatasync` of a small append: "
        f"p50 {machine['fsync_p50_ms']:.2f} ms, p99 {machine['fsync_p99_ms']:.2f} ms."
    )


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(template: Path, parts: Mapping[str, str]) -> str:
    text = template.read_text()
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text
