"""One node as a process of the harness: the real node, but for its wall clock, for snapshots that
come sooner, and for one thing broken in it on purpose when a build is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from chaos.live.clocks import SkewedClock
from cluster.cluster_node import ClusterConfig
from node import node
from node.peering import cluster_config
from node.settings.settings import Settings, load
from quorate.lifetime import end_with_starter


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.live.node_process", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the node's settings (TOML)")
    parser.add_argument(
        "--harness",
        type=Path,
        required=True,
        help='JSON: {"clock": file with the offset, "snapshot_entries": how many make a snapshot}',
    )
    parser.add_argument("--build", help="what to break, by its name in chaos.builds")
    asked = parser.parse_args(arguments)
    end_with_starter()
    harness = json.loads(asked.harness.read_text(encoding="utf-8"))
    _snapshot_after(int(harness["snapshot_entries"]))
    if asked.build is not None:
        # Broken only where it is asked for: no other process may even load it.
        import_module("chaos.builds").break_node(asked.build)
    return node.main(load(file=asked.config), clock=SkewedClock(Path(harness["clock"])))


def _snapshot_after(entries: int) -> None:
    """No setting of the node, since nobody who runs one would want to change it."""

    def often(settings: Settings, addresses: dict[str, str]) -> ClusterConfig:
        return replace(cluster_config(settings, addresses), snapshot_entries=entries)

    node.cluster_config = often


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
