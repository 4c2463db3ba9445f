"""A publisher's name and numbers, and what becomes of numbered frames when they must change.

A queue takes the numbers of a name from 1 on, in order, without gaps. So when a frame was surely
not stored, neither was anything behind it, and all of that gets other numbers. A frame that was
sent more than once and is refused at the end may have been stored by an earlier sending: nobody can
know, and its caller is told so.
"""

from __future__ import annotations

import secrets

from quorate.batches import Batch
from quorate.errors import Refused

#: Number 1 is taken again from a name that the queue forgot, so it is sent again for a time that is
#: well within the queue's memory: an hour for names that begin with `~`, a week for others.
FIRST_AGAIN_S_MAX = 900.0


class Numbering:
    """Made anew after each trouble, by `start_again`; a made-up name is replaced then."""

    def __init__(self, name: str | None, next_seqno: int | None) -> None:
        self.named = name is not None
        self.counted = self.named and next_seqno is not None  # by the program itself
        self.name = name or _generated_name()
        #: None: the queue is asked before anything is numbered, since a program before this one may
        #: have used the name.
        self.next: int | None = next_seqno if self.named else 1
        self._free_from: int | None = None  # numbers from here on were surely not stored
        self._unknown = False  # of some numbers nobody knows
        self._gap: Refused | None = None  # what the program's own numbers were answered

    def give(self, batch: Batch) -> None:
        """The next numbers."""
        assert self.next is not None
        batch.name = self.name
        batch.seqno = self.next
        self.next += len(batch.bodies)

    def too_late(self, batch: Batch, now_s: float) -> bool:
        """The queue may have stored it and forgotten the name since: it might be stored twice."""
        return (
            batch.seqno == 1 and bool(batch.unsure) and now_s > batch.sent_at_s + FIRST_AGAIN_S_MAX
        )

    def was_used(self, batch: Batch) -> bool:
        """Asked of a duplicate. What was sent only once is no duplicate of itself: something else
        has its number, a frame of ours that arrived late or one of another program.
        """
        ours = self.named and not self.counted
        return ours and len(batch.unsure) == 1 and not batch.has_dedup_id

    # --- trouble ----------------------------------------------------------------------------------

    def not_stored(self, seqno: int, gap: Refused | None = None) -> None:
        """This number was surely not stored. `gap`: because the queue expects another one."""
        self._free_from = min(seqno, self._free_from or seqno)
        if self.counted:
            self._gap = self._gap or gap

    def unknown(self) -> None:
        """A frame left the line, and nobody can know whether it is stored."""
        self._unknown = True

    def is_unknown(self, batch: Batch) -> bool:
        """Whether this numbered frame, all answers being there, may be stored."""
        free = self._free_from is not None and batch.seqno >= self._free_from
        return bool(batch.unsure) and not free

    def start_again(self) -> Refused | None:
        """From now on other numbers are given. The refusal that a program which counts by itself
        must hear about everything that it numbered.
        """
        gap, free_from, unknown = self._gap, self._free_from, self._unknown
        self._gap, self._free_from, self._unknown = None, None, False
        if not self.named:
            self.name = _generated_name()
            self.next = 1
        else:
            self.next = free_from if self.counted and not unknown else None
        return gap


def _generated_name() -> str:
    """For a publisher that nobody named: unique, so that its numbers are its own."""
    return f"~{secrets.token_hex(8)}"
