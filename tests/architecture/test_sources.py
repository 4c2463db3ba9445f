from __future__ import annotations

import ast
import re

from tests.architecture.sources import modules

# What makes a replica differ from another, or a run from its replay.
UNSEEDED = re.compile(
    r"^(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep)"
    r"|datetime\.(now|utcnow|today)|datetime\.datetime\.(now|utcnow|today)"
    r"|random\.(random|randint|randrange|choice|choices|shuffle|sample|uniform|getrandbits|randbytes|seed)"
    r"|os\.urandom|uuid\.uuid[14]|secrets\..*)$"
)
# The production side of the seams: the only modules of `cluster` that touch the world.
SHELL = ("cluster.log.disk", "cluster.raft.links", "cluster.raft.link_auth")


def test_the_cluster_meets_time_chance_and_files_only_through_its_seams():
    wrong = [
        f"{module.path}:{line}: {name}()"
        for module in modules()
        if module.within("cluster") and not module.within(*SHELL)
        for line, name in module.calls()
        if name == "open" or (UNSEEDED.match(name) and module.binds(name.split(".")[0]))
    ]

    assert wrong == []


def test_the_machine_asks_for_nothing_that_differs_between_processes():
    # hash() of text differs with PYTHONHASHSEED, id() with the memory.
    wrong = [
        f"{module.path}:{line}: {name}()"
        for module in modules()
        if module.within("cluster.machine")
        for line, name in module.calls()
        if name in {"hash", "id", "open", "print", "input", "globals", "vars"}
    ]

    assert wrong == []


def test_threads_are_only_for_the_disk_for_passwords_and_to_watch_the_loop():
    wrong = [
        f"{module.path}:{line}: {name}"
        for module in modules()
        if module.within("cluster", "node")
        and not module.within(
            "cluster.log.disk", "node.access.password_checks", "node.operating.watchdog"
        )
        for line, name in module.imports()
        if name.split(".")[0] in {"threading", "concurrent", "multiprocessing"}
    ]

    assert wrong == []


def test_nothing_is_left_to_be_done_later():
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    wrong = [
        f"{module.path}:{number}: {text.strip()}"
        for module in modules()
        for number, text in enumerate(module.text.splitlines(), 1)
        if marker.search(text)
    ]

    assert wrong == []


def test_every_module_says_what_it_is_for():
    silent = [
        str(module.path)
        for module in modules()
        if module.text.strip() and not ast.get_docstring(module.tree)
    ]

    assert silent == []
