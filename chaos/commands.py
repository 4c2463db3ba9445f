"""`python -m chaos`: live runs, one or many, and what is measured on live nodes.

Exit status: 0 all is valid; 1 a promise was broken; 2 it is not known, or the harness failed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shlex
import signal
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from chaos.live.tools import advice
from chaos.plan import SECONDS, NoSuchPlan, Plan, mix_of, workloads_of
from chaos.quiet import quiet
from chaos.report.tables import REPORT_WIDTH

RUNS = Path("var/chaos")
SEED_MAX = 10**6
#: Commands that have a module of their own.
ELSEWHERE = {
    "power": ("chaos.scenes.power", "all nodes lose their power at once, again and again"),
    "members": (
        "chaos.scenes.members",
        "nodes come and go, and groups move, under load and faults",
    ),
    "incident": (
        "chaos.incident",
        "a leader is killed, a follower stands still, and the post-mortem of it",
    ),
    "selftest": ("chaos.builds.selftest", "the suite against builds that are broken on purpose"),
}
#: Those that start no nodes, or break nothing for which this machine must allow it.
QUIET = {"show", "incident", "-h", "--help"}
UNKNOWN = 2


def main(arguments: Sequence[str]) -> int:
    # Whatever tells us to end, what was made on this machine goes: nodes, network and disks. A
    # script's shell has what it starts in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    quiet()
    if arguments and arguments[0] not in QUIET and (todo := advice()) is not None:
        Console(stderr=True).print(todo, markup=False, soft_wrap=True)
    try:
        if arguments and arguments[0] in ELSEWHERE:
            return int(import_module(ELSEWHERE[arguments[0]][0]).main(list(arguments[1:])))
        given = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace, Console], int] = given.run
        return run(given, _console())
    except NoSuchPlan as error:
        Console(stderr=True).print(str(error), markup=False)
    except (KeyboardInterrupt, asyncio.CancelledError):
        Console(stderr=True).print("ended before its time")
    return UNKNOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="load and faults on three nodes, then verdicts")
    run.add_argument("--minutes", type=float, help="many runs, of all mixes, within this time")
    run.add_argument("--seed", type=int, help="of the run, or the first one; drawn when not given")
    run.add_argument(
        "--mix", default="everything", help="of one run: a mix, or faults: kill:all,wipe"
    )
    run.add_argument("--seconds", type=float, default=SECONDS, help="of load and faults, one run")
    run.add_argument("--only", help="workloads: w1,w3-amqp; all, if not given")
    run.add_argument(
        "--pace",
        type=pace,
        default=1.0,
        help="how often publishers publish: 0.25, a quarter as often",
    )
    run.add_argument("--network", choices=("namespaces", "proxy"))
    run.add_argument("--disks", choices=("ext4", "xfs", "folders"))
    run.add_argument("--build", help="what is broken on purpose in all nodes of one run")
    run.add_argument("--out", type=Path, default=RUNS, help="where folders of runs are made")
    run.add_argument(
        "--keep", action="store_true", help="all that nodes logged, for a post-mortem, if valid too"
    )
    run.set_defaults(run=_run)
    show = commands.add_parser("show", help="a run's report again, and its picture anew")
    show.add_argument("folder", type=Path)
    show.set_defaults(run=_show)
    for name, (_, text) in ELSEWHERE.items():
        commands.add_parser(name, help=text)
    return parser


def pace(text: str) -> float:
    """Its name is in argparse's message."""
    found = float(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text} is no pace: it is more than 0, and 1 is the usual one"
        )
    return found


def _run(given: argparse.Namespace, console: Console) -> int:
    from chaos.campaign import Campaign, exit_status
    from chaos.report.tables import show_campaign, show_run
    from chaos.run import ARCHIVE, run_one

    seed = random.randrange(SEED_MAX) if given.seed is None else given.seed
    plan = Plan(
        seed,
        given.mix,
        given.seconds,
        workloads_of(given.only),
        given.network,
        given.disks,
        given.build,
        given.pace,
    )
    mix_of(plan.mix)
    if given.minutes is not None:
        console.print(f"seeds from {seed} on, {given.minutes:g} minutes, {given.out}")
        campaign = Campaign(given.minutes, plan, given.out, console, keep=given.keep)
        try:
            asyncio.run(campaign.go())
        finally:
            show_campaign(console, campaign.outcomes, campaign.not_reached())
        return exit_status(campaign.outcomes)
    with console.status("") as status:
        folder = given.out / f"{seed}-{plan.title}"
        outcome = asyncio.run(run_one(plan, folder, status.update, keep=given.keep))
    show_run(console, outcome)
    console.print(f"{folder}/timeline.png", soft_wrap=True)
    if given.keep and (folder / "nodes").exists():
        words = ["quorate", "postmortem", folder / "nodes", "--archive", folder / ARCHIVE]
        words += ["--history", folder / "history.jsonl"]
        console.print(shlex.join(map(str, words)), markup=False, soft_wrap=True)
    return exit_status([outcome])


def _show(given: argparse.Namespace, console: Console) -> int:
    from chaos.report.write import draw_again

    folder: Path = given.folder
    draw_again(folder)
    console.print((folder / "report.txt").read_text(encoding="utf-8"), markup=False, end="")
    console.print(f"{folder}/timeline.png", soft_wrap=True)
    return 0


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=REPORT_WIDTH)
