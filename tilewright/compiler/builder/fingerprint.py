"""Fingerprint of the compiler: any change of its sources or of the packages that generate code changes every cache key."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch-mlir", "llvmlite")
_SOURCES = ("compiler", "passes", "runtime")


@cache
def fingerprint() -> str:
    """sha256 over our sources and the versions of the packages that take part."""
    digest = hashlib.sha256()
    home = Path(__file__).resolve().parents[2]
    for package in _SOURCES:
        for path in sorted((home / package).rglob("*.py")):
            digest.update(str(path.relative_to(home)).encode())
            digest.update(path.read_bytes())
    for package in _PACKAGES:
        try:
            digest.update(f"{package}={version(package)}".encode())
        except PackageNotFoundError:
            digest.update(f"{package}=none".encode())
    return digest.hexdigest()
