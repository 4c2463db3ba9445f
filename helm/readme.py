"""Writes the chart's README.md: the text of readme.head.md, and a table of values.yaml's comments.

`python helm/readme.py` writes it, `python helm/readme.py --check` says whether it is stale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import yaml

CHART = Path(__file__).parent / "quorate"
README = CHART / "README.md"
SHORT_MAX = 60  # characters of a default that is shown in the table

HEAD = Path(__file__).parent / "readme.head.md"


def documented() -> list[tuple[str, Any, str]]:
    """Each key that has a comment, its default and the comment."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found: list[tuple[str, Any, str]] = []
    path: list[str] = []
    comment: list[str] = []
    lines = (CHART / "values.yaml").read_text().splitlines()
    for line in lines:
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
            continue
        key, colon, _ = text.partition(":")
        if not text or not colon or key.startswith(("-", "{")):
            comment = []
            continue
        path = [*path[: (len(line) - len(line.lstrip())) // 2], key]
        if comment:
            value = values
            for part in path:
                value = value[part]
            found.append((".".join(path), value, " ".join(comment)))
        comment = []
    return found


def undocumented() -> list[str]:
    """Keys at the end of a path that no comment stands above, nor above what they are in."""
    told = [name for name, _, _ in documented()]

    def leaves(value: Any, path: str) -> list[str]:
        if path in told or not isinstance(value, dict) or not value:
            return [path]
        return [
            leaf
            for key, inner in cast("dict[str, Any]", value).items()
            for leaf in leaves(inner, f"{path}.{key}"[not path :])
        ]

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return [leaf for leaf in leaves(values, "") if leaf not in told]


def text() -> str:
    rows: list[str] = []
    for name, default, meaning in documented():
        shown = json.dumps(default)
        if len(shown) > SHORT_MAX:
            shown = "see values.yaml"
        else:
            shown = f"`{shown}`"
        rows.append(f"| `{name}` | {shown} | {meaning.replace('|', chr(92) + '|')} |\n")
    return HEAD.read_text() + "".join(rows)


def main() -> int:
    made = text()
    if "--check" in sys.argv[1:]:
        if not README.exists() or README.read_text() != made:
            sys.stderr.write(f"{README} is stale: python helm/readme.py\n")
            return 1
        return 0
    README.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
