"""What was handed out is in its queue until somebody settles it: when the queue is empty in the
end, for each message that came out somebody asked for just that.

For queues whose messages have no other end: no limit, no time to live. `total_queue` says that what
was confirmed came out at all; this says that it did not go when its consumer died.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.checker.deliveries import MessageKey, deliveries_by_message, settled_keys
from chaos.checker.verdict import Verdict, judge
from chaos.history import Op


def vanished(ops: Sequence[Op]) -> Verdict:
    """A settle of unknown outcome may have been the end; one that was refused was not."""
    drained = {op.value["queue"] for op in ops if op.f == "drain" and op.type == "ok"}
    ended = perhaps_settled(ops)
    gone: list[str] = []
    undecided: list[str] = []
    for key, seen in deliveries_by_message(ops).items():
        if key not in ended:
            (gone if key[0] in drained else undecided).append(seen[-1].describe())
    return judge(
        "vanished",
        {"gone, settled by nobody": gone},
        undecided={"not settled, not drained": undecided},
        reported={"settled": len(ended)},
    )


def perhaps_settled(ops: Sequence[Op], *, discards: bool = True) -> set[MessageKey]:
    """All whose settling was asked for, and not surely in vain. `discards` count as well."""
    refused = {op.invoke for op in ops if op.type == "refused"}
    return {
        key
        for op in ops
        if op.type == "invoke" and op.index not in refused and (discards or op.f != "discard")
        for key in settled_keys(op)
    }
