"""Version: one artifact that a function runs, and what has to be equal between those that it goes through."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tilewright.runtime.call.caller import Caller
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.load.devices import AnyDevice
from tilewright.runtime.program.artifact import Bundle
from tilewright.runtime.program.program import Program


class Version(NamedTuple):
    """What a function runs. kept: what its native entry refers to; empty before that is made ready."""

    program: Program
    device: AnyDevice
    bundle: Bundle
    caller: Caller
    kept: tuple[object, ...] = ()


def refuse_other_signature(old: Program, new: Program, path: Path | str) -> None:
    """ArtifactError where callers of the old program would be surprised by the new one."""
    parts = {
        "target": (old.target.partition(":")[0], new.target.partition(":")[0]),
        "arguments": (old.inputs, new.inputs),
        "results": (old.outputs, new.outputs),
        "dims": (str(old.ranges()), str(new.ranges())),
        "ragged dims": (old.ragged, new.ragged),
        "structure of the arguments": (old.input_structure, new.input_structure),
        "structure of the results": (old.output_structure, new.output_structure),
        "donated arguments": (old.donated, new.donated),
        "calls outside the ranges": (old.out_of_range, new.out_of_range),
        "precision": (old.precision, new.precision),
        "order of sums (deterministic)": (old.asked.deterministic, new.asked.deterministic),
    }
    for what, (before, after) in parts.items():
        if before != after:
            raise ArtifactError(f"{path} is no version of this function: wanted its {what} {before!r}, got {after!r}; load it as "
                                "a function of its own")
