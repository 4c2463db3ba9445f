"""Streams: messages that stay, and consumers that are cursors over them.

`stream` puts the parts together and is what the group's machine and the doors see. Below it:

- `appending`: whether a message is taken, and under which sequence. `publishers`: what that needs
  to know of those who publish, and of the ids of messages.
- `following`: what is taken of other streams that this one mirrors or sources.
- `retained`: where each message lies, by sequence, in segments of equal length; `subjects`: which
  sequences a subject has, and which subjects a consumer's filter means; `finding`: the next message
  that it means.
- `leaving`: limits, age, purge; the counts of what left.
- `consumers`: one of them, what it was given and has to acknowledge; `table`: all of them by name,
  and which messages nobody wants any more.
- `settings`, `errors`: the configuration, and why something is refused, in NATS's numbers.

A batch for one subject is a range in every one of them; nothing costs more because more is kept.
"""
