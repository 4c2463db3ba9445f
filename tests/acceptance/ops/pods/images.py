"""The image of this repository, built without a Docker engine and without Docker Hub: its base is
made of Debian packages. What was built is kept by its content, outside of the repository.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import resource
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.ops.pods.tools import ToolFailed, run_now

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quorate-images"
STORE = CACHE / "store"
DOCKERFILE = Path("helm/image/Dockerfile")
#: All that goes into an image, as .dockerignore says.
SOURCES = (
    *("pyproject.toml", "constraints.txt", "hatch_build.py", "README.md", "LICENSE"),
    *("cluster", "node", "quorate", "chaos"),
)
SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv"
#: What nothing that runs reads.
TRIMMED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
#: A build that is interrupted leaves neither mounts nor processes.
ENCLOSED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
)
#: Images of each target, the newest ones.
KEPT_MAX = 4
#: How the installer reaches its registry, where that has an authority of its own.
PIP_SETTINGS = Path("/etc/pip.conf")
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
#: Where the build sees them: packages write to their own place.
AUTHORITIES_INSIDE = "/run/pip-authorities.crt"


def settings_of_runtime() -> str:
    """containers.conf."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"""[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


class Images:
    """One store for all runs; they take turns."""

    def __init__(self) -> None:
        STORE.mkdir(parents=True, exist_ok=True)
        conf = CACHE / "containers.conf"
        conf.write_text(settings_of_runtime(), encoding="utf-8")
        self._environment = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self._place = (
            "--storage-driver=overlay",
            f"--root={STORE / 'root'}",
            f"--runroot={STORE / 'run'}",
        )

    def built(self, source: Path, target: str = "broker") -> str:
        """The name of the image of this tree."""
        with _alone():
            base = self._base()
            key = _key_of(source, base, target)
            name = f"localhost/quorate-{target}:{key}"
            if not self._has(name):
                run_now(
                    *ENCLOSED,
                    "buildah",
                    *self._place,
                    *("bud", "--isolation=chroot", "--pull-never", "--layers", *_registry()),
                    *("--build-arg", f"BASE={base}", "--target", target, "--tag", name),
                    *("--ignorefile", str(source / ".dockerignore")),
                    *("--file", str(source / DOCKERFILE), str(source)),
                    environment=self._environment,
                )
                self._forget_old(target)
            return name

    def size_bytes(self, name: str) -> int:
        return int(self._podman("image", "inspect", "--format", "{{.Size}}", name))

    def base_bytes(self) -> int:
        with _alone():
            return self.size_bytes(self._base())

    def _forget_old(self, target: str) -> None:
        """Every change of the source makes an image."""
        form = ("--format", "{{.Repository}}:{{.Tag}}", "--sort", "created")
        kept = self._podman("images", *form, "--filter", f"reference=localhost/quorate-{target}")
        for old in kept.split()[KEPT_MAX:]:
            with contextlib.suppress(ToolFailed):  # in use
                self._podman("rmi", old)

    def _base(self) -> str:
        recipe = repr((SUITE, BASE_PACKAGES, TRIMMED))
        name = f"localhost/quorate-base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
        if self._has(name):
            return name
        rootfs, archive = CACHE / "rootfs", CACHE / "rootfs.tar"
        shutil.rmtree(rootfs, ignore_errors=True)
        try:
            run_now(
                *("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}"),
                *(SUITE, str(rootfs)),
            )
            for each in TRIMMED:
                for path in (rootfs / each).iterdir():
                    linked = path.is_symlink()
                    shutil.rmtree(path) if path.is_dir() and not linked else path.unlink()
            run_now("tar", "-C", str(rootfs), "-c", "-f", str(archive), ".")
            self._podman("import", str(archive), name)
        finally:
            shutil.rmtree(rootfs, ignore_errors=True)
            archive.unlink(missing_ok=True)
        return name

    def _has(self, name: str) -> bool:
        try:
            self._podman("image", "inspect", name)
        except ToolFailed as error:
            if "no such image" in str(error).lower() or "image not known" in str(error).lower():
                return False
            raise
        return True

    def _podman(self, *arguments: str) -> str:
        return run_now(*ENCLOSED, "podman", *self._place, *arguments, environment=self._environment)


def _registry() -> list[str]:
    """Volumes of a build."""
    if not PIP_SETTINGS.exists():
        return []
    settings = CACHE / "pip.conf"
    text = PIP_SETTINGS.read_text(encoding="utf-8")
    settings.write_text(text.replace(AUTHORITIES, AUTHORITIES_INSIDE), encoding="utf-8")
    return [
        f"--volume={settings}:{PIP_SETTINGS}:ro",
        *([f"--volume={AUTHORITIES}:{AUTHORITIES_INSIDE}:ro"] if AUTHORITIES in text else []),
    ]


def _key_of(source: Path, base: str, target: str) -> str:
    digest = hashlib.sha256(f"{base} {target}".encode())
    for path in sorted([source / DOCKERFILE, source / ".dockerignore", *_files(source)]):
        digest.update(f"\0{path.relative_to(source)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(source: Path) -> Iterator[Path]:
    for name in SOURCES:
        path = source / name
        if path.is_file():
            yield path
        for each in path.rglob("*") if path.is_dir() else ():
            if each.is_file() and "__pycache__" not in each.parts:
                yield each


@contextmanager
def _alone() -> Generator[None]:
    with (CACHE / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
