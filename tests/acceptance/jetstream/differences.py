"""Where Quorate differs from nats-server on purpose, and the rows without a check."""

from __future__ import annotations

#: Row or name of a check -> why. Such a check may fail at another server; at Quorate it may not.
DESIGN_DIFFERENCES: dict[str, str] = {
    "n1_error_headers": "who sends headers after saying that it has none is told so; nats-server "
    "closes without a word",
    "n1_error_of_arguments": "who cannot be read is told so; nats-server closes without a word",
    "n1_queue_groups_prefer_their_own_node": "a member at the publisher's node comes first, which "
    "saves a link; nats-server 2.15 takes any",
    "n2_consumer_create_two_names": "two names are refused; nats-server takes the one of the "
    "subject",
    "n2_consumer_list_of_no_stream": "a stream that is not there is said to be so; nats-server "
    "shows an empty list",
    "n2_no_such_verb": "what nobody serves is answered 503 at once; nats-server says nothing, and "
    "the client waits",
    "n2_pull_no_wait_when_no_more_may_be_held": "404 at once; nats-server 2.15 lets it wait for "
    "acknowledgements, without an end",
    "n2_restore_of_what_was_delivered": "what was delivered and not acknowledged is held for as "
    "long as it may take; nats-server 2.15 in a cluster delivers it at once",
    "n2_snapshot_of_no_stream": "a stream that is not there is said to be so; nats-server says "
    "nothing",
    "n2_stream_read_while_its_leader_changes": "a request waits for the next leader; nats-server "
    "says nothing",
    "n2_unknown_fields": "they are passed over, for clients that are newer; nats-server 2.15 "
    "refuses them",
}

#: Row -> (what it says, why there is no check).
NOT_CHECKED: dict[str, tuple[str, str]] = {}
