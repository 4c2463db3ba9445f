"""The installed package works wherever it is used, whatever lies there."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.upgrade.golden import FILES, GOLDEN, HISTORIES
from tests.packaging.installed import ROOT, Installed, environment, hostile, run
from tests.testkit.draws import one_of_long

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(600)]

#: All modules, but those for which an extra is not installed here.
IMPORT_ALL = """
import importlib, pkgutil, quorate
count = 0
for module in pkgutil.walk_packages(quorate.__path__, "quorate."):
    if module.name.endswith("__main__"):
        continue
    try:
        found = importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in {"pandas", "pyarrow", "pyspark", "numpy", "py4j"}:
            raise
    else:
        assert found.__file__.startswith(PACKAGES), found.__file__
        count += 1
print(count)
"""


def test_every_module_is_imported_from_there(installed: Installed, folder: Path):
    code = f"PACKAGES = {str(installed.packages)!r}\n{IMPORT_ALL}"

    # As `python -c` has the current folder in front.
    done = run(installed.python, "-c", code, cwd=folder)

    assert int(done.stdout) > 300


@pytest.mark.live
def test_a_cluster_starts_and_takes_and_gives_messages(installed: Installed, folder: Path):
    # That is no folder to say `python -m quorate` in; but nodes take no code from it.
    hostile(folder, ["quorate"])
    up = subprocess.Popen(
        [installed.quorate, "up", "--dir", "nodes", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, up.communicate()[1]
        (folder / "quorate.py").unlink()
        urls = ",".join(json.loads(line)["urls"])
        published = run(
            *(installed.quorate, "publish", "orders", "--count", "1000", "--url", urls),
            cwd=folder,
        )
        # Told by a process that the node starts.
        told = run(
            *(installed.quorate, "message", "1", "--queue", "orders", "--url", urls, "--json"),
            cwd=folder,
        )
        # The same command, as a module: now the current folder is in front of its path.
        consumed = run(
            *(installed.python, "-m", "quorate", "consume", "orders", "--count", "1000"),
            *("--url", urls),
            cwd=folder,
        )
    finally:
        up.send_signal(signal.SIGINT)
        _, words = up.communicate()

    assert up.returncode == 0, words
    assert "confirmed 1,000 messages" in published.stderr
    assert json.loads(told.stdout)["events"][0]["event"] == "published"
    assert "missing 0," in consumed.stderr
    assert run(installed.quorate, "log", "dump", "nodes/node-1", cwd=folder).stdout


def test_old_logs_snapshots_and_backups_are_read(
    installed: Installed, hook: ModuleType, tmp_path: Path
):
    """The tests of the golden files, with the names that a wheel has."""
    text = (ROOT / "tests" / "acceptance" / "upgrade" / "test_golden.py").read_text(
        encoding="utf-8"
    )
    imported = "from tests.acceptance.upgrade.golden import FILES, GOLDEN, HISTORIES\n"
    assert text.count(imported) == 1
    given = f"FILES, GOLDEN, HISTORIES = {FILES!r}, Path({str(GOLDEN)!r}), {HISTORIES!r}\n"
    place = tmp_path / "golden"
    place.mkdir()
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "test_golden.py").write_text(
        hook.rewritten(text, "test_golden.py", set()).replace(imported, given),
        encoding="utf-8",
    )

    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", place)
    done = run(installed.python, "-P", *command, cwd=tmp_path)

    assert "9 passed" in done.stdout


@one_of_long("an installed post-mortem")
@pytest.mark.spark
def test_the_post_mortem_reads_an_old_log(installed: Installed, tmp_path: Path):
    folder = hostile(tmp_path)
    run("tar", "xJf", GOLDEN / "0.2" / FILES, cwd=folder)

    done = run(
        *(installed.quorate, "postmortem", "log", "--out", "report", "--json"),
        *("--spark", "spark.driver.memory=1g"),
        cwd=folder,
        status=3,  # of three nodes one was given
    )

    said = json.loads(done.stdout)
    assert {each["code"] for each in said["checks"] if each["count"]} == {
        "member_not_given",
        "leader_lost",
    }
    assert said["numbers"]["published"] == "6,226"
    assert said["verdict"] in (folder / "report" / "report.html").read_text(encoding="utf-8")


def test_without_spark_the_post_mortem_says_what_to_install(installed: Installed, tmp_path: Path):
    done = run(
        *(installed.python, "-c"),
        "import importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda name: None if name == 'pyspark' else real(name);"
        "from quorate.postmortem.session import missing; print(missing())",
        cwd=tmp_path,
    )

    assert "[postmortem]" in done.stdout
    assert "pip install quorate" not in done.stdout  # that is somebody else's


@pytest.mark.toolchain
def test_a_clean_environment_builds_and_installs_it_from_the_sdist(
    built: tuple[Path, Path], tmp_path: Path
):
    """As a user does it, with the tested versions from a package index."""
    folder = hostile(tmp_path)
    run("python3", "-m", "venv", folder / "venv")
    clean = Installed(folder / "venv")
    pip = (clean.python, "-P", "-m", "pip", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")

    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", built[1])
    (wheel,) = (folder / "wheel").glob("*.whl")
    run(*pip, "install", "--quiet", *constraints, wheel)

    run(*pip, "check")
    owned = run(*pip, "show", "--files", "quorate").stdout.partition("Files:\n")[2].split()
    tops = {file.partition("/")[0] for file in owned}
    assert tops - {"..", "quorate"} == {wheel.name.replace("-py3-none-any.whl", ".dist-info")}
    done = run(
        *(clean.python, "-c"),
        "from quorate.postmortem.session import missing; print(missing())",
        cwd=folder,
    )
    assert "[postmortem]" in done.stdout
    assert "quorate" in run(clean.quorate, "--version", cwd=folder).stdout
