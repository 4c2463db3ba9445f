"""The pure core: everything that replicas must agree on, as deterministic state machines.

A group of queues is a `QueueMachine` (`machine`), the catalog a `CatalogMachine` (`catalog`); both
offer what `interface.Machine` says. Each of these parts owns its state, and knows only those above
it in this list:

| part             | module        | owns |
|------------------|---------------|------|
| `QueueIdentity`  | `identity`    | id, name, configuration, the machine's version, the recorder |
| `Deadline`       | `timetable`   | when something is due in the queue by itself |
| `Messages`       | `messages`    | `Store` (bodies), marks, `ReadyMessages`, delayed messages |
| `Disposal`       | `disposal`    | the dead-letter outbox, counts of what was removed |
| `MessageExpiry`  | `expiry`      | nothing: it judges by the times in store and marks |
| `Checkout`       | `checkout`    | `Consumers` and what they hold, fencing tokens |
| `QueueLifetime`  | `lifetime`    | when the queue was last used, or reported as expired |
| `Surgery`        | `surgery`     | nothing: it takes out or delays single messages that wait |
| `Subscriptions`  | `subscribing` | nothing: it registers consumers; `Checkout`, `QueueLifetime` |
| `QueueLimits`    | `limits`      | room that transactions have reserved |
| `QueueAdmission` | `admission`   | `Publishers`, `DedupIds`, `Uploads` of large bodies |
| `Queue`          | `queue`       | all of these; their snapshot, their order in `advance` |
| `SessionTable`   | `sessions`    | sessions, their nodes, when suspected ones end |
| `Transactions`   | `transactions`| decisions, reservations, what was answered |
| `Timetable`      | `timetable`   | which queue is due first |
| `QueueMachine`   | `machine`     | the queues, and the parts of the group |

A command walks through them in this order (`QueueMachine.apply`):

1. Time goes on to the command's stamp; reservations whose time is over are given back, or in doubt.
2. The command is done by the part that owns what it changes: `Queue.apply` passes it to one part.
   An `Enqueue` goes through `QueueAdmission` (is it known, is there room) into `Messages`; a
   `Settle` through `Checkout` (does the consumer hold that) out of them.
3. Sessions whose time is over end; what their consumers held is returned.
4. Each queue that was touched or is due advances, the lowest id first: the active consumer is
   elected, delays end, expired messages leave, `Checkout` hands out, expired ones leave again,
   messages over the limit are dropped, deadlines are met, and the next one is written down. Dead
   letters touch their target, which then advances in the same command.
5. The reply and the effects, in the order in which they arose, are the answer.

A stream is another queue type (`stream`): a class with the methods of `kinds.QueueKind`, which is
all that the group asks of a queue.
"""

from __future__ import annotations

from cluster.machine.effects import Applied
from cluster.machine.interface import ConsumerView, Machine, QueueView, Row
from cluster.machine.machine import QueueMachine
from cluster.machine.snapshot import UnsupportedSnapshot
from cluster.machine.versions import MACHINE_VERSION

__all__ = [
    "MACHINE_VERSION",
    "Applied",
    "ConsumerView",
    "Machine",
    "QueueMachine",
    "QueueView",
    "Row",
    "UnsupportedSnapshot",
]
