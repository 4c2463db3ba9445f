"""`python -m tests.acceptance.ops.pods`: the chart's StatefulSet as real containers on this
machine, started, rolled, killed and deleted under load, as a cluster would do it.

Exit status: 0 all scenes passed; 1 one did not; 2 it could not be tried.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.acceptance.ops.chart.tools import ToolMissing
from tests.acceptance.ops.pods import sandbox
from tests.acceptance.ops.pods.images import SOURCES, Images
from tests.acceptance.ops.pods.judging import Seen
from tests.acceptance.ops.pods.manifest import Manifest, Unsupported, render
from tests.acceptance.ops.pods.report import show
from tests.acceptance.ops.pods.scenes import SCENES
from tests.acceptance.ops.pods.stage import opened
from tests.acceptance.ops.pods.tools import ToolFailed
from tests.acceptance.upgrade import releases

ROOT = Path(__file__).resolve().parents[4]
NAMESPACE, RELEASE = "shop", "quorate"
MANIFEST = "manifest.yaml"
#: The image of this release.
LATER = "later-image"
#: Clients come from elsewhere, as the only user that a new cluster has.
VALUES = {"extraConfig.auth.loopback_users": "{}"}
COULD_NOT = 2


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    console = Console(width=130 if not sys.stdout.isatty() else None)
    if given.inside:
        return asyncio.run(_inside(given, console))
    if (why := sandbox.why_not()) is not None:
        console.print(f"pods cannot be tried: {why}", markup=False)
        return COULD_NOT
    try:
        _prepare(given, console)
    except (ToolFailed, ToolMissing, Unsupported, releases.Unavailable) as error:
        console.print(f"pods cannot be tried: {error}", markup=False)
        return COULD_NOT
    return sandbox.enter(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.ops.pods", description=__doc__
    )
    parser.add_argument("--only", default="", help=f"scenes after start: {','.join(SCENES)}")
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree whose image it is")
    parser.add_argument(
        "--earlier", help="a commit: pods begin as its chart and image, see upgrade"
    )
    parser.add_argument("--out", type=Path, default=Path("var/pods"), help="what was in it goes")
    parser.add_argument("--set", action="append", default=[], help="name=value, for helm")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


def _prepare(given: argparse.Namespace, console: Console) -> None:
    began_s = time.monotonic()
    images = Images()
    name = later = images.built(given.source)
    source = given.source
    if given.earlier:
        source = releases.frozen(given.earlier, [*SOURCES, ".dockerignore", "helm"])
        name = images.built(source)
    took_s = time.monotonic() - began_s
    size, base = images.size_bytes(name), images.base_bytes()
    console.print(
        f"image {name}: {size / 1e6:.0f} MB, {base / 1e6:.0f} MB of them the base;"
        f" there after {took_s:.1f} s",
        highlight=False,
    )
    repository, _, tag = name.rpartition(":")
    values = {**VALUES, "image.repository": repository, "image.tag": tag}
    values |= dict(each.split("=", 1) for each in given.set)
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    rendered = render(source / "helm/quorate", RELEASE, NAMESPACE, values)
    (given.out / MANIFEST).write_text(rendered, encoding="utf-8")
    (given.out / LATER).write_text(later, encoding="utf-8")


async def _inside(given: argparse.Namespace, console: Console) -> int:
    sandbox.furnish()
    out = given.out.resolve()
    manifest = Manifest.read((out / MANIFEST).read_text(encoding="utf-8"), NAMESPACE)
    usual = [name for name in SCENES if name != "upgrade" or given.earlier]
    wanted = [name for name in given.only.split(",") if name] or usual
    if unknown := sorted(set(wanted) - set(SCENES)):
        console.print(f"no such scenes: {', '.join(unknown)}; there are {', '.join(SCENES)}")
        return COULD_NOT
    # Nothing happens to pods that have not been started.
    wanted = [name for name in SCENES if name in {"start", *wanted}]
    all_seen: list[Seen] = []

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    async with opened(out, manifest, given.inside, say) as stage:
        stage.later_image = (out / LATER).read_text(encoding="utf-8")
        for name in wanted:
            say(f"--- {name}")
            try:
                all_seen.append(await SCENES[name](stage))
            except Exception as error:  # noqa: BLE001 -- what cannot be done is a failed scene; the others need its pods
                (out / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
                all_seen.append(Seen(name, wrong=[f"{type(error).__name__}: {error}"]))
                break
    show(console, all_seen, stage.missing)
    failed = [seen.scene for seen in all_seen if not seen.passed]
    if failed:
        say(f"failed: {', '.join(failed)}; histories and logs are in {out}")
    for image in (out / "claims").glob("*.img"):
        image.unlink()
    return 1 if failed or len(all_seen) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
