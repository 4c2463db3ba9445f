"""Where clusters are: those of `quorate up`, found by folder, and those that people named."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from quorate.errors import QuorateError

#: Where `quorate up` keeps a cluster, unless told otherwise.
FOLDER = ".quorate"
#: In such a folder: where the nodes are.
CLUSTER_FILE = "cluster.json"


class PlaceError(QuorateError):
    """A file that says where a cluster is cannot be used, or there is none; the text says what to
    do.
    """


def local_cluster() -> list[str] | None:
    """The nodes' addresses of what `quorate up` started here, or in a folder above. Raises
    PlaceError.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / FOLDER / CLUSTER_FILE
        if file.is_file():
            return cluster_of(file)
    return None


def cluster_of(file: Path) -> list[str]:
    """Raises PlaceError."""
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))["urls"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlaceError(f"{file} cannot be read: {error}") from error


def named_by(url: str) -> list[str]:
    """Addresses separated by commas, or the folder of a cluster that `quorate up` started. Raises
    PlaceError.
    """
    file = Path(url) / CLUSTER_FILE
    return cluster_of(file) if file.is_file() else url.split(",")


def nearest() -> list[str]:
    """Where a client without addresses goes: to QUORATE_URL, or the local cluster. Raises
    PlaceError.
    """
    url = os.environ.get("QUORATE_URL")
    found = named_by(url) if url else local_cluster()
    if not found:
        raise PlaceError(
            "no cluster found here: start one with `quorate up`, or give addresses, or QUORATE_URL"
        )
    return found


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster, and as whom to go there."""

    url: str
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None


@dataclass(slots=True)
class Contexts:
    """All that this user has named, and which of them is used where none is."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict[str, Context])

    @staticmethod
    def file() -> Path:
        """Names and paths, no passwords."""
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(base) / "quorate" / "contexts.json"

    @classmethod
    def read(cls) -> Contexts:
        """Raises PlaceError."""
        file = cls.file()
        try:
            about: Any = json.loads(file.read_text(encoding="utf-8"))
            rows = cast("dict[str, dict[str, str | None]]", about["contexts"])
            return cls(about.get("current"), {name: _context(row) for name, row in rows.items()})
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlaceError(
                f"{file} cannot be read ({error!r}): repair it, or delete it to begin anew"
            ) from error

    def write(self) -> None:
        file = self.file()
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: asdict(context) for name, context in sorted(self.contexts.items())}
        text = json.dumps({"current": self.current, "contexts": rows}, indent=2, default=str)
        temporary = file.with_suffix(".new")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(file)

    @property
    def names(self) -> str:
        return ", ".join(sorted(self.contexts)) or "none yet"

    def named(self, name: str) -> Context:
        """Raises PlaceError."""
        try:
            return self.contexts[name]
        except KeyError:
            raise PlaceError(
                f"there is no context {name!r} (there are: {self.names}):"
                f" `quorate context add {name} --url HOST:PORT` makes it"
            ) from None


def _context(row: dict[str, str | None]) -> Context:
    paths = {
        name: Path(path) for name in ("password_file", "ca", "cert") if (path := row.get(name))
    }
    url = row["url"]
    if not url:
        raise ValueError("a context has no url")
    return Context(url, row.get("user"), **paths)
