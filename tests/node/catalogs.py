"""Administrative tables as the catalog has them, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.access.passwords import hash_password


class Tables:
    """Entries are replaced, never changed."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, tuple[str, ...]], Mapping[str, Any]] = {}

    @property
    def catalog_machine(self) -> Tables:
        """It stands for the node that has it, too."""
        return self

    def entry(self, table: str, key: tuple[str, ...]) -> Mapping[str, Any] | None:
        return self.all.get((table, key))

    def entries(self, table: str) -> dict[tuple[str, ...], Mapping[str, Any]]:
        return {key: entry for (of, key), entry in self.all.items() if of == table}

    def put(self, table: str, *key: str, **value: Any) -> None:
        self.all[table, key] = {name.replace("_", "-"): each for name, each in value.items()}

    def drop(self, table: str, *key: str) -> None:
        del self.all[table, key]

    def user(self, name: str, password: str, *tags: str) -> None:
        kept, algorithm = hash_password(password)
        self.all["users", (name,)] = {
            "password_hash": kept,
            "hashing_algorithm": algorithm,
            "tags": list(tags),
        }
