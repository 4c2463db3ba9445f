"""Machine versions: from which version on a replica behaves differently.

Every replica of a group must compute the same state from the same log, whichever release runs it.
So a change of what `apply` does, or of what a snapshot or a digest holds, takes effect only from
the machine version that brought it. A group begins with version 1 and rises by the command
`UpgradeMachine`, which its leader proposes once every member can run the new version. Code asks
`turn.version` (in `apply`) or `machine.version` and keeps the older behaviour for older versions,
since logs that hold them are replayed for as long as they exist.

| version | since   | what it changed |
|---------|---------|-----------------|
| 1       | 0.1     | everything before versions were negotiated |
| 2       | 0.2     | the first negotiated version; each use of `turn.version` says what it is for |
"""

from __future__ import annotations

from typing import Final

#: The newest version that this release runs.
MACHINE_VERSION: Final = 2
