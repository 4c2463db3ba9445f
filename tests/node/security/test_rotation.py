"""Secrets that are replaced while the cluster goes on."""

from __future__ import annotations

from pathlib import Path

from cluster.machine.commands import PutEntry
from node.access.passwords import hash_password, verify
from tests.node.nodes import Nodes, until


async def test_a_password_that_is_replaced_is_renewed_when_a_node_starts_with_both(
    tmp_path: Path,
):
    for name, text in (("old", "the old password"), ("new", "the new password")):
        (tmp_path / name).write_text(text)
    flags = {"default_user": "admin", "default_password_file": str(tmp_path / "old")}
    async with Nodes(tmp_path / "data", **flags) as nodes:
        await until(lambda: _verifies(nodes, "the old password"))
        await nodes.stop("n1")
        nodes.set("n1", default_password_file=str(tmp_path / "new"))
        nodes.set("n1", previous_default_password_file=str(tmp_path / "old"))
        await nodes.start("n1")
        await until(lambda: _verifies(nodes, "the new password"))

        # Changed by its owner meanwhile: it stays.
        user = dict(nodes.one.cluster.catalog_machine.entry("users", ("admin",)) or {})
        kept, algorithm = hash_password("of the owner")
        user |= {"password_hash": kept, "hashing_algorithm": algorithm}
        await nodes.one.cluster.change(PutEntry("users", ("admin",), user))
        await nodes.stop("n1")
        await nodes.start("n1")
        await until(lambda: nodes.one.parts.first_user._given is None)
        assert _verifies(nodes, "of the owner")


def _verifies(nodes: Nodes, password: str) -> bool:
    user = nodes.one.cluster.catalog_machine.entry("users", ("admin",))
    return user is not None and verify(password, user["password_hash"], user["hashing_algorithm"])
