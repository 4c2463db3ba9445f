"""Why a stream does not take a message, or a consumer's settings: NATS's own numbers."""

from __future__ import annotations

from typing import Final

#: No error: a message with its id was stored before, under the number that comes with it. 0: of a
#: batch that came before, was stored, and under which number is forgotten.
DUPLICATE: Final = 0
#: No error: stored under the number that comes with it when this batch, or some of it, came before.
#: To its publisher that is as if it were stored now.
STORED: Final = -1

#: Of a batch that came before, and nobody knows any more whether it was stored: "temporarily
#: unavailable", for which clients publish again. As a duplicate it would be taken for stored.
FORGOTTEN: Final = 10008
MESSAGE_TOO_LARGE: Final = 10054
WRONG_STREAM: Final = 10060
SUBJECTS_OVERLAP: Final = 10065
WRONG_LAST_ID: Final = 10070
WRONG_LAST_SEQUENCE: Final = 10071
#: The number that comes with it: 0 for messages, 1 for bytes, 2 for messages of the subject.
NO_ROOM: Final = 10077
SEALED: Final = 10109
NO_ROLLUP: Final = 10111
SEQUENCE_UNCLEAR: Final = 10164  # an earlier message of the same batch changes it
NO_TTL: Final = 10166
NO_COUNTER: Final = 10168
NO_INCREMENT: Final = 10169
NO_BATCHES: Final = 10174
NOT_IN_A_BATCH: Final = 10177
NO_SCHEDULES: Final = 10188
NO_SUCH_SCHEDULE: Final = 10212
DUPLICATE_IN_A_BATCH: Final = 10201
WRONG_SUBJECT: Final = 10076  # none of the stream's

# Of consumers; as the `detail` of a refusal.
CONSUMER_MISSING: Final = 10149
CONSUMER_EXISTS: Final = 10148
MANY_UNFILTERED: Final = 10099
OVERLAPPING_FILTERS: Final = 10100
