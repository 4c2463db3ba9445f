"""What people call the cluster."""

from __future__ import annotations

from typing import Final

from cluster.machine.catalog import CatalogMachine

#: The global parameter that says it.
CLUSTER_NAME: Final = "cluster_name"


def named(catalog: CatalogMachine, cluster: str) -> str:
    """`cluster`: its name in the settings, which counts until somebody gives it another."""
    entry = catalog.entry("parameters", ("", "", CLUSTER_NAME))
    name = None if entry is None else entry["value"]
    return name if isinstance(name, str) else cluster
