"""The session: of Spark, or of Sail, which needs no Java. What is missing is said clearly."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
NO_JAVA: Final = (
    f"Spark needs Java {JAVA_MIN}: install it (on Debian: apt-get install openjdk-17-jre-headless)"
    " or name it in JAVA_HOME"
)
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Plans here are many and wide; what it would infer of them takes longer than it saves.
    "spark.sql.constraintPropagation.enabled": "false",
    # Where in our code each expression was made: two calls to Java and a walk of both stacks.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "true",  # else `raftlog` is refused
}
#: Those that Sail has too; the Python side asks for the second one.
SAIL_SETTINGS: Final = (
    "spark.sql.session.timeZone",
    "spark.python.sql.dataFrameDebugging.enabled",
)
#: One Java process does all, and nobody else is to reach it.
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
#: Below, planning and compiling queries takes longer than running them.
SMALL_BYTES: Final = 256 << 20
#: Of what is read, by task of a shuffle; Spark joins those that turn out to be small.
TASK_BYTES: Final = 32 << 20
NO_PACKAGES: Final = (
    "what a post-mortem needs is not installed: install Quorate from where it came, with its"
    " extra `postmortem`:"
    " pip install -e '.[postmortem]' in a clone, else"
    " pip install './quorate-VERSION-py3-none-any.whl[postmortem]'"
)


Engine = Literal["sail", "spark"]


class NotHere(Exception):
    """What the engine needs is missing; the text says what to install."""


def missing(engine: Engine = "spark") -> str | None:
    """What to install before a session can start; None: nothing."""
    needed = ["pandas", "pyarrow", "pyspark", *(["grpc", "pysail"] if engine == "sail" else [])]
    if any(find_spec(name) is None for name in needed):
        return NO_PACKAGES
    if engine == "sail":
        return None
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return NO_JAVA
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return None if found and int(found[1]) >= JAVA_MIN else NO_JAVA


def submitted() -> bool:
    """Whether spark-submit runs this."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start(
    master: str | None = None,
    *,
    engine: Engine = "spark",
    noise: Path | None = None,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with `raftlog` registered. NotHere: what must be installed first.

    Under spark-submit the session that it made is taken, with its settings. `noise`: where all
    that Spark has to say goes; None: to standard error. Sail has none of these.
    """
    lacks = missing(engine)
    if lacks is not None:
        raise NotHere(lacks)
    if engine == "sail":
        return _start_sail()
    # Workers are otherwise started with the `python3` of PATH, which need not have pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from chaos.postmortem.reading.raftlog import RaftLog

    conf = SparkConf().setAppName("quorate post-mortem").setAll(list(SETTINGS.items()))
    if master is not None or not submitted():
        conf.setMaster(master or f"local[{os.cpu_count() or 2}]")
        if (master or "local").startswith("local"):
            conf.setAll(list(LOCAL_SETTINGS.items()))
    conf.setAll(list((options or {}).items()))
    if noise is not None and not submitted():
        noise.parent.mkdir(parents=True, exist_ok=True)
        with noise.open("wb") as file:
            # The Java process has it from its start; what it says before logging is set up too.
            SparkContext(conf=conf, gateway=launch_gateway(conf, popen_kwargs={"stderr": file}))
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.dataSource.register(RaftLog)
    return spark


def _start_sail() -> SparkSession:
    from chaos.postmortem.engine import warm_up

    warm_up()
    # Its server logs to standard error, every step; and to clear huge pages, which its allocator
    # asks for, took a third of the time and half of the memory of a small post-mortem.
    os.environ.setdefault("RUST_LOG", "error")
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    from chaos.postmortem.reading.raftlog import RaftLog

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    assert server.listening_address is not None
    host, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    for name in SAIL_SETTINGS:
        spark.conf.set(name, SETTINGS[name])
    spark.dataSource.register(RaftLog)
    vars(spark)["sail"] = server  # which ends with the session
    return spark


def fit(spark: SparkSession, size: int) -> None:
    """Plan for so many bytes of logs."""
    from chaos.postmortem.engine import cores, is_local

    if is_local():
        return
    small = size < SMALL_BYTES
    cores_ = cores(spark)
    planned = {
        "spark.sql.codegen.wholeStage": "false" if small else "true",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
        "spark.sql.adaptive.enabled": "false" if small else "true",
        "spark.sql.shuffle.partitions": cores_ if small else max(4 * cores_, size // TASK_BYTES),
    }
    for name, value in planned.items():
        spark.conf.set(name, str(value))
