"""Rows between aligned sequences, on the emulator: they alone count as written, so that its check for what nobody wrote is whole.

A call that runs over all rows reads them for nothing. The emulator's caller therefore sets results and temporaries of such
programs as a whole; here it sets those rows alone, to NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

import tilewright as tw
from tilewright.compiler.cli.batches import parts_of
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.ops import Graph
from tilewright.runtime.program.program import Argument
from tilewright.runtime.program.ragged_point import lengths_of

_NAN = 0xFF
Lengths = Mapping[str, Sequence[int]]
Gap = tuple[int, int]  # first byte, bytes


class GapRows:
    """Of a compiled function on the emulator. lengths: of the call that comes next."""

    def __init__(self, graph: Graph, dims: Mapping[str, tw.Dim], fn: tw.CompiledFunction,
                 constants: Mapping[str, npt.NDArray[np.generic]] | None = None) -> None:
        self.fn, self.lengths, self.fresh = fn, dict[str, Sequence[int]](), 0
        self.plan = outline(Compilation(graph, dims, full_target(fn.program.target), CompileOptions(), constants or {})).plan
        fn._caller._fresh = self._fresh  # type: ignore[attr-defined]

    def of(self, lengths: Lengths) -> None:
        """What is called next."""
        self.lengths, self.fresh = dict(lengths), 0

    def _fresh(self, size: int) -> int:
        """The results come first, in order, then the temporaries."""
        outputs, caller = self.fn.program.outputs, self.fn._caller
        address = caller._room(size)  # type: ignore[attr-defined]
        number, self.fresh = self.fresh, self.fresh + 1
        for first, count in (self._of_result(outputs[number], size) if number < len(outputs) else self._of_arena(self.plan)):
            caller.device.copy_in(address + first, np.full(count, _NAN, np.uint8))  # type: ignore[attr-defined]
        return int(address)

    def _of_result(self, argument: Argument, size: int) -> list[Gap]:
        if not argument.ragged:
            return []
        parts = parts_of(argument, self.fn.program, self.lengths)
        stored = sum(own for _, own in parts)
        each = size // stored if stored else 0
        return _gaps([(a * each, b * each) for a, b in parts], 0)

    def _of_arena(self, plan: HostPlan) -> list[Gap]:
        dims, _ = lengths_of(self.fn.program, self.lengths)
        sequences = [dict(zip(self.lengths, own, strict=True)) for own in zip(*self.lengths.values(), strict=True)]
        stored = {o.dim.name: o.dim.stored for o in plan.ragged}
        found = []
        for name, part in plan.parts.items():
            own = [({**dims, **s}, {**dims, **{n: stored[n](v) for n, v in s.items()}}) for s in sequences]
            parts = [(part.evaluate(used), part.evaluate(whole)) for used, whole in own]
            found += _gaps(parts, plan.arena.offsets[name].evaluate(dims))
        return found


def _gaps(parts: Sequence[Gap], start: int) -> list[Gap]:
    """parts: of each sequence its own bytes, and those up to the next one."""
    found = []
    for own, stored in parts:
        if stored > own:
            found.append((start + own, stored - own))
        start += stored
    return found
