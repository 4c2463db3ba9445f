"""What live runs need of this machine, and what to install for it: said before they start."""

from __future__ import annotations

import os
import shutil

#: Programs that faults need, and the Debian packages that have them.
PACKAGES = {
    "ip": "iproute2",
    "ss": "iproute2",
    "nft": "nftables",
    "iptables-restore": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "strace": "strace",
}


def advice() -> str | None:
    """One line: what to do so that every fault can be had here. None: nothing."""
    wanted = sorted({PACKAGES[tool] for tool in PACKAGES if shutil.which(tool) is None})
    install = f"apt-get install {' '.join(wanted)}" if wanted else ""
    root = "run this as root" if os.geteuid() else ""
    todo = " and ".join(each for each in (install, root) if each)
    return f"To have every kind of fault, first: {todo}" if todo else None
