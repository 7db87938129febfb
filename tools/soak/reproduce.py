"""What a finding leaves behind: models, arguments, the words of the failure; and the same cases again out of that folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tools.soak.cases import Array, Case, as_tuple, bits
from tools.soak.messages import Drawn

_FINDING = "finding.json"


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be. seed: of the run. layouts: element type, shape and strides of each array by its name."""

    outcome: str
    what: str
    under: str
    actor: str
    seed: int
    detail: str
    cases: tuple[Drawn, ...] = ()
    layouts: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}


def keep(folder: Path, finding: Finding, cases: Sequence[Case], args: Sequence[Any] | None = None) -> Path:
    """A new folder in `folder` with everything that is known: the finding, the text of each model, the arguments of each case as
    bytes. args: those of the only case, where they are not its own."""
    place = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
    place.mkdir(parents=True)
    arrays: dict[str, Array] = {}
    for number, case in enumerate(cases):
        (place / f"model-{case.model.number}.mlir").write_text(case.model.program.text)
        given = case.arguments() if args is None else args
        arrays |= {f"case{number}.argument{i}": a for i, a in enumerate(given) if isinstance(a, np.ndarray) and a.dtype != object}
    for name, a in arrays.items():
        (place / name).write_bytes(a.tobytes())
    layouts = {name: (str(a.dtype), a.shape, a.strides) for name, a in arrays.items()}
    whole = msgspec.structs.replace(finding, cases=tuple(case.drawn for case in cases), layouts=layouts)
    (place / _FINDING).write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1))
    return place


def replay(folder: Path) -> list[str]:
    """Compile the models of a finding and call each case with one and two threads; what is wrong."""
    finding = msgspec.json.decode((folder / _FINDING).read_bytes(), type=Finding)
    told = []
    for case in (Case.of(finding.seed, drawn) for drawn in finding.cases):
        fn = case.model.compile()
        one, two = (as_tuple(fn(*case.arguments(), threads=threads)) for threads in (1, 2))
        reason = "other bits with two threads" if bits(one) != bits(two) else case.reason_wrong(one)
        told += [f"{case.drawn}: {reason}"] if reason else []
    return told
