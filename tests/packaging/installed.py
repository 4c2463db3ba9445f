"""A wheel of this checkout, and an environment in which it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Names that a user's own files may have, and a checkout's packages do.
NAMESAKES = ("cluster", "node", "chaos")


def run(
    *command: str | Path, cwd: Path = ROOT, status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """`status`: what it ends with; None: anything."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert status in (None, done.returncode), f"{command}: {done.returncode}\n{done.stderr}"
    return done


def environment() -> dict[str, str]:
    """Nothing in it leads back to the checkout. A Spark session of other tests names its Python."""
    leading = ("PYTHONPATH", "PYTHONSAFEPATH", "PYSPARK_", "SPARK_")
    return {k: v for k, v in os.environ.items() if not k.startswith(leading)}


def build(source: Path, out: Path, target: str) -> Path:
    """By the backend that is installed here: it needs no network."""
    before = set(out.glob("*"))
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (made,) = set(out.glob("*")) - before
    return made


@dataclass(frozen=True)
class Installed:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def quorate(self) -> Path:
        return self.folder / "bin" / "quorate"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found


def install(wheel: Path, folder: Path) -> Installed:
    """What it depends on comes from the environment of the tests, which has it already."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    made = Installed(folder)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made.python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    others = [each for each in sys.path if Path(each).name == "site-packages"]
    # The editable install of the checkout is a .pth file there, which has no effect from here.
    (made.packages / "others.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    return made


def hostile(folder: Path, names: Sequence[str] = NAMESAKES) -> Path:
    """A current folder whose files must not be taken for ours."""
    for name in names:
        text = f"raise SystemExit('{name}.py of the current folder was imported')\n"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder
