"""Fingerprint of the compiler: any change of its sources or of the packages that generate code changes every cache key."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch-mlir", "llvmlite")
_SOURCES = ("compiler", "passes", "runtime")
_TALKS = ("msgspec", "numpy", "ray")  # packages whose versions decide what processes of a farm understand of each other


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


@cache
def farm_fingerprint() -> str:
    """Of what all processes of a farm have to have alike: the compiler, how searches measure, and what they talk with."""
    digest = hashlib.sha256(fingerprint().encode())
    home = Path(__file__).resolve().parents[2]
    for path in sorted((home / "search").rglob("*.py")):
        digest.update(str(path.relative_to(home)).encode())
        digest.update(path.read_bytes())
    for package in _TALKS:
        try:
            digest.update(f"{package}={version(package)}".encode())
        except PackageNotFoundError:
            digest.update(f"{package}=none".encode())
    return digest.hexdigest()
