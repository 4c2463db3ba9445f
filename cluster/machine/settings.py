"""Whether the settings of a queue can be: the machine takes none that it could not keep.

Declarations are checked by name in `arguments`, with the bounds that people are told. What is in
the log has been through that, unless another version or a bug wrote it; so this asks only for what
keeps the machine sound.
"""

from __future__ import annotations

from cluster.machine.commands import QueueConfig
from cluster.machine.marks import PRIORITY_MAX, TIME_MS_MAX

COUNT_MAX = (1 << 63) - 1
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
RETRY_TYPES = ("disabled", "all", "failed", "returned")

#: Field, smallest value, largest value. None is let through wherever the type allows it.
_BOUNDS = (
    ("max_priority", 0, PRIORITY_MAX),
    ("message_ttl_ms", 0, TIME_MS_MAX),
    ("expires_ms", 1, TIME_MS_MAX),
    ("max_length", 0, COUNT_MAX),
    ("max_length_bytes", 0, COUNT_MAX),
    ("delivery_limit", 0, COUNT_MAX),
    ("delayed_retry_min_ms", 0, TIME_MS_MAX),
    ("delayed_retry_max_ms", 0, TIME_MS_MAX),
    ("consumer_timeout_ms", 0, TIME_MS_MAX),
    ("dedup_window_ms", 0, TIME_MS_MAX),
)


def wrong_settings(config: QueueConfig) -> str | None:
    """A sentence about the first setting that cannot be; None when all can."""
    for name, low, high in _BOUNDS:
        value: int | None = getattr(config, name)
        if value is not None and not low <= value <= high:
            return f"{name} must be from {low} to {high}"
    if config.overflow not in OVERFLOWS:
        return f"overflow must be one of {', '.join(OVERFLOWS)}"
    if config.delayed_retry_type not in RETRY_TYPES:
        return f"delayed_retry_type must be one of {', '.join(RETRY_TYPES)}"
    if config.group_key is not None and (not config.group_key or config.max_priority):
        return "group_key is the name of a header, of a queue without priorities"
    return None
