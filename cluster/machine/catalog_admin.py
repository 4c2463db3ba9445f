"""The administrative tables: vhosts, users, permissions, policies, limits and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cluster.machine.arguments import SHARD_OF, SPLIT_QUEUE
from cluster.machine.catalog_entries import PROTECTED, TABLES, checked_key, checked_value, keys_of
from cluster.machine.catalog_queues import Placing
from cluster.machine.catalog_routing import Routing, no_vhost
from cluster.machine.catalog_tables import Entries, EntryKey, Queues
from cluster.machine.checks import BadValue
from cluster.machine.commands import DropEntry, PutEntry
from cluster.machine.effects import Applied, Effect
from cluster.machine.policies import Policies
from cluster.machine.replies import (
    BAD_ARGUMENT,
    IN_USE,
    LIMIT_REACHED,
    NO_USER,
    PROTECTED_VHOST,
    Ok,
    Refused,
)
from cluster.machine.versions import SPLITS_SINCE

ENTRIES_MAX = 100_000

FIRST_VHOST = "/"
#: A known user with a known password, for a first look from the same machine; hence a fixed salt.
FIRST_USER = "guest"
FIRST_HASH = "cXVvcmF0ZTogZ3Vlc3QgOgch8VgngcDaHoyq/AA6FuVwBlpKdYJ5dTa900N/mey5"


class Administration:
    """Carries out what administrators say."""

    def __init__(
        self,
        entries: Entries,
        queues: Queues,
        placing: Placing,
        routing: Routing,
        policies: Policies,
        version: Callable[[], int],
    ) -> None:
        self._entries = entries
        self._queues = queues
        self._placing = placing
        self._routing = routing
        self._policies = policies
        self._version = version  # of the catalog's machine

    def seed(self) -> None:
        """What a new cluster has."""
        self.add_vhost(FIRST_VHOST)
        user = {"password_hash": FIRST_HASH, "tags": ["administrator"]}
        self._put("users", (FIRST_USER,), checked_value("users", user))
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._put("permissions", (FIRST_USER, FIRST_VHOST), everything)

    def add_vhost(self, vhost: str) -> None:
        self._put("vhosts", (vhost,), checked_value("vhosts", {}))

    def put_entry(self, command: PutEntry) -> Applied:
        """Ok(1): it is new; Ok(0): it was there, and says this now."""
        table, key = command.table, tuple(command.key)
        try:
            parts = checked_key(table, key)
            value = checked_value(table, command.value, self._version())
        except BadValue as error:
            return Applied(Refused(BAD_ARGUMENT, str(error)))
        refusal = self._nobody(table, parts)
        refusal = refusal or self._left_behind(table, key, value.get("value"))
        if refusal is not None:
            return Applied(refusal)
        new = key not in self._entries.by_table[table]
        if new and len(self._entries) >= ENTRIES_MAX:
            reason = f"the administrative tables hold {ENTRIES_MAX} entries, their limit"
            return Applied(Refused(LIMIT_REACHED, reason))
        self._put(table, key, value)
        return Applied(Ok(int(new)))

    def drop_entry(self, command: DropEntry) -> Applied:
        table, key = command.table, tuple(command.key)
        try:
            checked_key(table, key)
        except BadValue as error:
            return Applied(Refused(BAD_ARGUMENT, str(error)))
        entry = self._entries.by_table[table].get(key)
        if entry is not None and entry.get(PROTECTED) is True and table == "vhosts":
            reason = f"refusing to delete vhost '{key[0]}': it is protected from deletion"
            return Applied(Refused(PROTECTED_VHOST, reason))
        refusal = self._left_behind(table, key, None)
        if refusal is not None:
            return Applied(refusal)
        if self._entries.by_table[table].pop(key, None) is None:
            return Applied(Ok(0))
        effects: Sequence[Effect] = ()
        if table == "vhosts":
            effects = self._close_vhost(key[0])
        elif table == "users":
            self._drop_all("user", key[0])
        self._changed(table, key)
        return Applied(Ok(1), effects)

    def _nobody(self, table: str, parts: dict[str, str]) -> Refused | None:
        """Entries about a vhost or a user that is not there would come alive with a namesake."""
        vhost, user = parts.get("vhost"), parts.get("user")
        if table == "parameters" and vhost == "":
            return None  # a global one
        if vhost is not None and table != "vhosts" and not self._routing.known(vhost):
            return no_vhost(vhost)
        if user is not None and table != "users" and self._entries.find("users", user) is None:
            return Refused(NO_USER, f"no user '{user}'")
        return None

    def _left_behind(self, table: str, key: EntryKey, value: Any) -> Refused | None:
        """A queue stays split as it is while any of its shards is there, but for being joined. Who
        says otherwise has not heard of what others did, and nobody would consume from a shard that
        is not named, or empty it.
        """
        if table != "parameters" or key[0] != SPLIT_QUEUE or self._version() < SPLITS_SINCE:
            return None
        match self._entries.by_table[table].get(key), value:
            case {"value": {"shards": [*names], **was}}, {"shards": [*same], **will} if (
                same == names and was.get("joining") in (None, False, will.get("joining"))
            ):
                return None
            case {"value": {"shards": [*names]}}, _:
                infos = [self._queues.by_name.get((key[1], str(name))) for name in names]
            case _:
                return None
        shard = next((i for i in infos if i and i.arguments.get(SHARD_OF) == key[2]), None)
        if shard is None:
            return None
        return Refused(
            IN_USE,
            f"queue '{key[2]}' in vhost '{key[1]}' is split, and its shard '{shard.name}' is there:"
            " it stays split like that until it is joined",
        )

    def _put(self, table: str, key: EntryKey, value: dict[str, Any]) -> None:
        self._entries.by_table[table][key] = value
        if table == "vhosts" and not self._routing.known(key[0]):
            self._routing.open_vhost(key[0])
        self._changed(table, key)

    def _close_vhost(self, vhost: str) -> Sequence[Effect]:
        effects = [self._placing.remove(info) for info in self._queues.of_vhost(vhost)]
        self._routing.close_vhost(vhost)
        self._drop_all("vhost", vhost)
        return effects

    def _drop_all(self, part: str, name: str) -> None:
        for table in TABLES:
            entries = self._entries.by_table[table]
            for key in keys_of(entries, table, part, name):
                del entries[key]

    def _changed(self, table: str, key: EntryKey) -> None:
        if table in ("vhosts", "policies", "operator_policies"):
            self._policies.forget(key[0])
            self._routing.changed(key[0])
        elif table == "parameters":  # one may say that a queue is split
            self._routing.changed(key[1])
        elif table == "vhost_limits":
            self._policies.forget(key[0])

    def invariants(self) -> None:
        vhosts = {key[0] for key in self._entries.by_table["vhosts"]}
        assert vhosts == self._routing.exchanges.by_vhost.keys(), "each vhost has its exchanges"
        for table in TABLES:
            for key in self._entries.by_table[table]:
                parts = checked_key(table, key)
                assert self._nobody(table, parts) is None, f"{table} {key} is about nobody"
