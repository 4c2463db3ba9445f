"""What a pod's volumes are on this machine: folders of files for configuration and secrets, folders
for emptyDir, and for claims a disk of its own, which outlives the pod.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.ops.pods.identity import Identity, resource_field
from tests.acceptance.ops.pods.manifest import Manifest, Spec, Unsupported, part, quantity
from tests.acceptance.ops.pods.tools import ToolFailed, must

#: A disk is a sparse file: no more than this, whatever is asked for.
DISK_BYTES_MAX = 2 << 30


class Volumes:
    """Of all pods. `missing` tells what the machine could not do."""

    def __init__(self, folder: Path, files: Path = Path("/run/volumes")) -> None:
        self._claims = folder / "claims"
        self._folder = files  # gone with the sandbox
        self._claims.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(exist_ok=True)
        self.missing: dict[str, str] = {}
        self._mounted: dict[str, Path] = {}

    async def of_pod(
        self, spec: Spec, claims: list[Spec], identity: Identity, manifest: Manifest
    ) -> dict[str, Path]:
        """By name, each ready to be mounted into a container."""
        group = part(spec, "securityContext").get("fsGroup")
        found: dict[str, Path] = {}
        for volume in spec.get("volumes") or ():
            folder = self._folder / identity.uid / volume["name"]
            folder.mkdir(parents=True)
            self._fill(folder, volume, spec, identity, manifest)
            _give(folder, group)
            found[volume["name"]] = folder
        for claim in claims:
            name = claim["metadata"]["name"]
            asked = quantity(claim["spec"]["resources"]["requests"]["storage"])
            found[name] = await self._claim(f"{name}-{identity.name}", asked)
            _give(found[name], group)
        return found

    def forget(self, identity: Identity) -> None:
        shutil.rmtree(self._folder / identity.uid, ignore_errors=True)

    def _fill(
        self, folder: Path, volume: Spec, spec: Spec, identity: Identity, manifest: Manifest
    ) -> None:
        if "emptyDir" in volume:
            folder.chmod(0o777)
            return
        kind = next((each for each in ("projected", "configMap", "secret") if each in volume), "")
        sources: Sequence[Spec] = volume[kind]["sources"] if kind == "projected" else [volume]
        mode = int(part(volume, kind).get("defaultMode", 0o644))
        for each in sources:
            for path, content, its_mode in _files(each, spec, identity, manifest):
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(mode if its_mode is None else its_mode)

    async def _claim(self, name: str, asked: float) -> Path:
        """The same disk for the same name, for as long as the sandbox lives."""
        if name in self._mounted:
            return self._mounted[name]
        image, folder = self._claims / f"{name}.img", self._claims / name
        folder.mkdir()
        try:
            with image.open("wb") as file:
                file.truncate(int(min(asked, DISK_BYTES_MAX)))
            await must("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            await must("mount", "-o", "loop,noatime", str(image), str(folder))
        except ToolFailed as error:
            image.unlink(missing_ok=True)
            self.missing["claims as disks"] = f"they are folders: {error}"
        self._mounted[name] = folder
        return folder


def _files(
    source: Spec, spec: Spec, identity: Identity, manifest: Manifest
) -> Iterator[tuple[str, bytes, int | None]]:
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if key in source:
            asked: Mapping[str, Any] = source[key]
            name = asked.get("secretName") or asked["name"]
            optional = bool(asked.get("optional"))  # of its keys, too
            data = manifest.data_of(kind, name, optional=optional)
            every: list[Spec] = [{"key": each, "path": each} for each in data]
            items: Sequence[Spec] = asked.get("items") or every
            for item in items:
                if item["key"] in data or not optional:
                    yield item["path"], data[item["key"]], item.get("mode")
            return
    if "downwardAPI" in source:
        for item in source["downwardAPI"].get("items") or ():
            if "fieldRef" in item:
                text = identity.field(item["fieldRef"]["fieldPath"])
            else:
                asked = item["resourceFieldRef"]
                named = [c for c in spec["containers"] if c["name"] == asked["containerName"]]
                text = resource_field(named[0], asked)
            yield item["path"], text.encode(), item.get("mode")
        return
    raise Unsupported(f"a volume of {', '.join(key for key in source if key != 'name')}")


def _give(folder: Path, group: int | None) -> None:
    """fsGroup: the group's members may write, and what they make is the group's."""
    if group is None:
        return
    for at, folders, files in os.walk(folder):
        for path in [at, *(os.path.join(at, each) for each in [*folders, *files])]:
            before = os.lstat(path)
            if before.st_gid != group:  # OnRootMismatch, per file
                os.chown(path, -1, group)
                mode = before.st_mode & 0o7777
                more = 0o2070 if os.path.isdir(path) else (mode & 0o700) >> 3
                os.chmod(path, mode | more)
