"""Files of what systems prepared: a run that finds them measures at once, without exports and compiles in between."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tools.bench.operator_spec import Array, Operator
from tools.bench.peers import OURS, Saving, System

_BENCH = Path(__file__).resolve().parents[1]
_SOURCES = ("operator_spec.py", "operators.py", "models.py", "ours.py", "zoo/*.py", "zoo/*.jsonl")  # what models are made by
_PACKAGES = ("numpy", "onnx", "torch", "transformers")


class Prepared:
    """A folder of such files for one system at one thread count. A file's name follows from the operator and from all that it
    is made by, so that none is taken for what it is not.

    Args:
        log: the tuning log that ours goes by.
    """

    def __init__(self, folder: Path, name: str, threads: int, log: str | None = None) -> None:
        self._folder, self._made_by = folder, _maker(name, threads, log)

    def prepare(self, system: System, operator: Operator, constants: Mapping[str, Array]) -> None:
        """Load what an earlier process prepared; else prepare it, and keep it if the system can."""
        if not isinstance(system, Saving):
            system.prepare(operator, constants)
            return
        place = self.place(operator)
        if place.exists():
            system.load(operator, str(place))
            return
        system.prepare(operator, constants)
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f"{place.name}.{os.getpid()}")
        system.save(str(aside))
        aside.replace(place)

    def place(self, operator: Operator) -> Path:
        """The file of an operator, whether or not it is there."""
        digest = hashlib.sha256(self._made_by + repr(operator).encode())
        if "mlir" in operator.params:
            digest.update(Path(str(operator.params["mlir"])).read_bytes())
        return self._folder / f"{operator.name}-{digest.hexdigest()[:24]}"


def _maker(name: str, threads: int, log: str | None) -> bytes:
    """What a system makes files by: the bench, packages and, of ours, the compiler and the log."""
    digest = hashlib.sha256(f"{name} {threads}".encode())
    for path in sorted(p for pattern in _SOURCES for p in _BENCH.glob(pattern)):
        digest.update(path.read_bytes())
    digest.update(repr(_versions(_PACKAGES)).encode())
    if name == OURS:
        from tilewright.compiler.builder.fingerprint import fingerprint

        digest.update(fingerprint().encode())
        if log:
            digest.update(Path(log).read_bytes())
    return digest.digest()


def _versions(packages: Sequence[str]) -> list[str]:
    found = []
    for package in packages:
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("none")
    return found
