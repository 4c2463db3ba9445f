"""Why a stream does not take a message, or a consumer's settings: NATS's own numbers."""

from __future__ import annotations

from typing import Final

#: No error: stored before, under the number that comes with it.
DUPLICATE: Final = 0

MESSAGE_TOO_LARGE: Final = 10054
WRONG_STREAM: Final = 10060
SUBJECTS_OVERLAP: Final = 10065
WRONG_LAST_ID: Final = 10070
WRONG_LAST_SEQUENCE: Final = 10071
NO_ROOM_MESSAGES: Final = 10077  # and, with the same number, for bytes
SEALED: Final = 10109
NO_ROLLUP: Final = 10111
NO_TTL: Final = 10166
WRONG_SUBJECT: Final = 10076  # none of the stream's
