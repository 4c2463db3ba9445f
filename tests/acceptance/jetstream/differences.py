"""Where Quorate differs from nats-server on purpose, and the rows without a check."""

from __future__ import annotations

#: Row or name of a check -> why. Such a check may fail at another server; at Quorate it may not.
DESIGN_DIFFERENCES: dict[str, str] = {}

#: Row -> (what it says, why there is no check).
NOT_CHECKED: dict[str, tuple[str, str]] = {}
