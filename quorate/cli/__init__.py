"""The command `quorate`: every error is one clear line, and the exit status says which kind.

0 done · 1 refused or failed · 2 wrong usage or settings · 3 corrupt input · 4 nobody answered, or
the outcome is unknown · 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from quorate.lifetime import end_with_starter

EXIT_USAGE = 2


def main() -> NoReturn:
    """Run the command line of this process."""
    end_with_starter()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """One command; returns the exit status. With --watch: again and again, until Ctrl-C."""
    from quorate.cli.output import EXIT_INTERRUPTED, complain, viewing

    try:
        status = _once(arguments)
        # What was wrong with the command itself stays wrong.
        while viewing.watch is not None and status != EXIT_USAGE:
            time.sleep(viewing.watch)
            viewing.begin(f"every {viewing.watch:g} s: quorate {' '.join(arguments)}")
            status = _once(arguments)
    except KeyboardInterrupt:
        if viewing.watch is not None:
            return 0
        complain("interrupted")
        return EXIT_INTERRUPTED
    return status


def _once(arguments: list[str]) -> int:
    import typer

    from quorate.cli.app import command_line
    from quorate.cli.output import EXIT_INTERRUPTED, explain

    try:
        result = command_line()(arguments, prog_name="quorate", standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        return 0
    except Exception as error:  # what is no error of ours is raised again
        status = explain(error)
        if status is None:
            raise
        return status
    return result if isinstance(result, int) else 0
