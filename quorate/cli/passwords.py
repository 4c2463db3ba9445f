"""New passwords: asked for without echo, or read; never arguments, which others can see."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from quorate.cli.output import CommandError, why


def new_password(user: str, file: Path | None) -> str:
    """From the file, else from the terminal, else the first line of standard input."""
    if file is not None and str(file) != "-":
        try:
            password = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise CommandError(f"{file} cannot be read: {why(error)}", 2) from error
    elif file is None and sys.stdin.isatty():
        password = getpass.getpass(f"New password of {user}: ")
        if getpass.getpass("Once more: ") != password:
            raise CommandError("these were two different passwords: nothing was changed", 2)
    else:
        password = sys.stdin.readline().strip()
    if not password:
        raise CommandError(
            "no password came: type one, or give it with --new-password-file FILE"
            " or on standard input",
            2,
        )
    return password
