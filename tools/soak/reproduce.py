"""What a failure leaves behind: model, arguments, the words of the failure; and the same case again out of that folder."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.soak.cases import Case, Model, as_tuple, bits

CASE, TEXT, ARGUMENTS = "case.json", "model.mlir", "arguments.npz"


def keep(folder: Path, facts: Mapping[str, Any], case: Case | None, args: Sequence[Any] = ()) -> Path:
    """A new folder in `folder` with everything that is known of a failure."""
    place = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
    place.mkdir(parents=True)
    shown = dict(facts)
    if case is not None:
        shown |= {"seed": case.model.seed, "number": case.model.number, "dims": dict(case.dims), "salt": case.salt}
        shown["ranges"] = {n: str(d) for n, d in case.model.program.ranges.items()}
        (place / TEXT).write_text(case.model.program.text)
    arrays = {f"a{i}": a for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype != object}
    if arrays:
        shown["layouts"] = {n: [str(a.dtype), list(a.shape), list(a.strides)] for n, a in arrays.items()}
        np.savez(place / ARGUMENTS, **{n: np.frombuffer(a.tobytes(), np.uint8) for n, a in arrays.items()})  # type: ignore[arg-type]
    (place / CASE).write_text(json.dumps(shown, indent=1, default=str))
    return place


def replay(folder: Path) -> str | None:
    """Compile the case of a folder and call it with one and two threads; what is wrong, or None.

    Raises:
        KeyError: the failure has no model, such as one of a tuner.
    """
    facts = json.loads((folder / CASE).read_text())
    case = Case(Model(facts["seed"], facts["number"]), facts["dims"], facts["salt"])
    fn = case.model.compile()
    one, two = (as_tuple(fn(*case.arguments(), threads=threads)) for threads in (1, 2))
    if bits(one) != bits(two):
        return "other bits with two threads"
    return case.reason_wrong(one)
