"""docs/configuration.md, made from the settings themselves.

`python -m node.settings.settings_docs > docs/configuration.md` writes it; a test keeps it up to
date.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from pydantic import ByteSize

from node.settings import settings

HEAD = """\
# Configuration

A node takes each setting from the first of: a flag, the environment, a TOML file
(`--config FILE`), the default.

| | example |
|---|---|
| flag | `--log.retain-hours 24` |
| environment | `QUORATE_LOG__RETAIN_HOURS=24` (a dot becomes two underscores) |
| file | `[log]` and under it `retain_hours = 24` |

A setting that cannot be used stops the start with exit status 2, naming the key and what it may
be. Sizes are bytes, or have a unit: `64KiB`, `16MiB`, `1GiB`.
"""


def configuration_markdown() -> str:
    """The whole document."""
    lines = [HEAD]
    section = None
    for key, field in settings.fields().items():
        name = key.rpartition(".")[0]
        if name != section:
            section = name
            kind = settings.Settings.model_fields[name].annotation if name else settings.Settings
            about = (getattr(kind, "__doc__", None) or "").strip()
            title = f"`[{name}]`" if name else "The node"
            lines += [f"## {title}", "", about if name else "", ""]
            if not name:
                del lines[-2:]
            lines += ["| key | default | may be | meaning |", "|---|---|---|---|"]
        default = _shown(field.get_default(call_default_factory=True, validated_data={}))
        may_be = settings.allowed(field).replace("|", "\\|")
        lines.append(f"| `{key}` | {default} | {may_be} | {field.description} |")
        if _is_last(key):
            lines.append("")
    return "\n".join(lines)


def _is_last(key: str) -> bool:
    keys = list(settings.fields())
    at = keys.index(key)
    return at + 1 == len(keys) or keys[at + 1].rpartition(".")[0] != key.rpartition(".")[0]


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, ByteSize) and value:
        return f"`{value.human_readable().replace('.0', '')}`"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in cast("list[Any]", value)) or "none"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(configuration_markdown())
