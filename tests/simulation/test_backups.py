"""What must come out of a restored backup, by tiny histories; whole ones are in the swarm."""

from __future__ import annotations

from typing import Any

from chaos.history import History
from chaos.simulator.backups import Backup, restored_verdict


def _published(history: History, *, settle_last: bool = False) -> None:
    value: dict[str, Any] = {"queue": "q", "publisher": "p", "first": 1, "count": 3}
    history.end(history.invoke("p", "publish", value), "ok")
    if settle_last:
        settle = {"queue": "q", "consumer": 1, "token": 1, "messages": ["p:3"]}
        history.invoke("c", "settle", settle)


def _came_out(*messages: str) -> History:
    history = History()
    counts = {"delivery_count": 0, "acquired_count": 0}
    about = {"queue": "q", "consumer": 1, "token": 1, "first": 1, **counts}
    history.saw("c", "deliver", {**about, "messages": list(messages)})
    return history


def _verdict(before: History, after: History, **how: Any) -> Any:
    begun = how.get("begun", len(before.ops))
    backup = Backup(begun, len(before.ops), [], {})
    return restored_verdict(before.ops, backup, after.ops, how.get("problem"))


def test_what_was_confirmed_before_and_does_not_come_out_is_lost() -> None:
    before = History()
    _published(before)

    assert _verdict(before, _came_out("p:1", "p:2", "p:3")).valid is True
    verdict = _verdict(before, _came_out("p:1", "p:2"))
    assert (verdict.valid, verdict.examples["lost"]) == (False, ["p:3"])


def test_what_somebody_set_out_to_settle_or_was_confirmed_later_need_not_come_out() -> None:
    before = History()
    _published(before, settle_last=True)

    assert _verdict(before, _came_out("p:1", "p:2")).valid is True
    assert _verdict(before, _came_out(), begun=1).valid is True


def test_a_restored_cluster_that_does_not_serve_is_none() -> None:
    before = History()

    assert _verdict(before, _came_out(), problem="group 2 has no leader").valid is False
