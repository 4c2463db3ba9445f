"""Small files and folders beside the tables, on whatever file system these are."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from chaos.postmortem.reading.inputs import is_remote


class Folder(Protocol):
    def names(self) -> list[str]:
        """Of all that is right in it; none when there is no such folder."""
        ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None:
        """Whole, or not at all."""
        ...

    def remove(self, name: str) -> None:
        """With all that is in it."""
        ...


def folder_at(spark: Any, path: str) -> Folder:
    if is_remote(path):
        return RemoteFolder(spark, path)
    return LocalFolder(Path(path.removeprefix("file://").removeprefix("file:")))


class LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path)) if self._path.is_dir() else []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        new = self._path / f".{name}.{os.getpid()}.new"
        new.write_bytes(data)
        new.replace(self._path / name)

    def remove(self, name: str) -> None:
        path = self._path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class RemoteFolder:
    """Through Spark's Java process."""

    def __init__(self, spark: Any, path: str) -> None:
        self._at = spark._jvm.org.apache.hadoop.fs.Path
        self._path = path
        self._system = self._at(path).getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self) -> list[str]:
        its = self._at(self._path)
        if not self._system.exists(its):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(its))

    def read(self, name: str) -> bytes:
        file = self._system.open(self._its(name))
        try:
            return bytes(file.readAllBytes())
        finally:
            file.close()

    def write(self, name: str, data: bytes) -> None:
        new = self._its(f".{name}.new")
        file = self._system.create(new, True)
        file.write(bytearray(data))
        file.close()
        self._system.delete(self._its(name), False)  # else it cannot be renamed to that
        self._system.rename(new, self._its(name))

    def remove(self, name: str) -> None:
        self._system.delete(self._its(name), True)

    def _its(self, name: str) -> Any:
        return self._at(f"{self._path}/{name}")
