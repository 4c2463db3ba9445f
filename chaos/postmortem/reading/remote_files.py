"""File systems that Spark is set up for (s3a:, hdfs: and whatever else Hadoop knows), asked through
its Java process; other paths are plain files.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from chaos.postmortem.engine import is_local
from chaos.postmortem.reading.inputs import BadInput, Found, LocalFiles, is_remote

_GONE: Final = "java.io.FileNotFoundException"


def files_of(spark: Any) -> AnyFiles | LocalFiles:
    """What this session can read: Sail has none of Hadoop's file systems."""
    return LocalFiles() if is_local() else AnyFiles(spark)


class AnyFiles:
    """For `inputs.discover`."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._settings = spark._jsc.hadoopConfiguration()
        self._local = LocalFiles()

    def find(self, path: str) -> Found | Iterable[Found] | None:
        if not is_remote(path):
            return self._local.find(path)
        try:
            system, its = self._at(path)
            if not system.exists(its):
                return None
            status = system.getFileStatus(its)
            if status.isFile():
                return _found(status)
            return list(_listed(system.listFiles(its, True)))
        except Py4JJavaError as error:
            raise BadInput(f"cannot read {path}: {_said(error)}") from error

    def beside(self, path: str) -> Iterable[Found]:
        if not is_remote(path):
            return self._local.beside(path)
        system, its = self._at(path)
        return _listed(system.listFiles(its.getParent(), False))

    def head(self, path: str, count: int) -> bytes:
        if not is_remote(path):
            return self._local.head(path, count)
        try:
            system, its = self._at(path)
            file = system.open(its)
            try:
                return bytes(file.readNBytes(count))
            finally:
                file.close()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _GONE:
                raise FileNotFoundError(path) from error
            raise BadInput(f"cannot read {path}: {_said(error)}") from error

    def _at(self, path: str) -> tuple[Any, Any]:
        its = self._jvm.org.apache.hadoop.fs.Path(path)
        return its.getFileSystem(self._settings), its


def _listed(statuses: Any) -> Iterator[Found]:
    while statuses.hasNext():
        yield _found(statuses.next())


def _found(status: Any) -> Found:
    changed_ns = status.getModificationTime() * 1_000_000
    return Found(status.getPath().toString(), status.getLen(), changed_ns)


def _said(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).splitlines()[0]
