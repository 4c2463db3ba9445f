"""Who we say that we are."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PRODUCT = "Quorate"


def _own_version() -> str:
    try:
        return version("quorate")
    except PackageNotFoundError:  # run from its sources
        return "0"


PRODUCT_VERSION = _own_version()
