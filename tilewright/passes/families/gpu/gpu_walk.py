"""Walks over states on a GPU: a thread has a place, whose states are in its registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.passes.analysis.state_walk import StateWalk
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.state_walker import Body, StateWalker, columns_of, contract, halve_rates
from tilewright.passes.mlir import ir


@dataclass(frozen=True)
class ThreadWalk:
    """members: the results that follow from the states."""

    walk: StateWalk
    members: tuple[int, ...]

    @staticmethod
    def of(frame: KernelFrame) -> ThreadWalk | None:
        """None where the region is no walk."""
        walk = StateWalk.of(frame.ops(), frame.shapes)
        if walk is None:
            return None
        members = tuple(n for n, v in enumerate(frame.results) if v in walk.places)
        return ThreadWalk(walk, members) if members else None

    def axes(self, value: ir.Value) -> dict[str, tuple[int, ...]]:
        """The axes of a result that the parts of a unit run along."""
        place = self.walk.places[value]
        return {f"d{a}": (place.index(a),) for a in self.walk.rows}

    def emit(self, kernel: GpuKernel, unit: Unit) -> None:
        """The walk of a thread."""
        contract(self.walk)
        where = [unit.first(f"d{a}") for a in range(self.walk.rank)]
        StateWalker(kernel, self.walk, self.members, _Registers(self.walk, kernel), halved=halve_rates(self.walk)).emit(where)


@dataclass
class _Registers:
    """The room of a walk: code for each column, which knows its values by name."""

    walk: StateWalk
    frame: KernelFrame
    values: dict[tuple[int, int], ir.Value] = field(default_factory=dict)

    def each(self, body: Body, carried: Sequence[ir.Value] = ()) -> list[ir.Value]:
        count = 1
        for n in columns_of(self.walk, self.frame):
            count *= n
        found = list(carried)
        for column in range(count):
            found = list(body(Index(column), *found) or ())
        return found

    def get(self, number: int, column: Index) -> ir.Value:
        return self.values[number, column.const or 0]

    def put(self, number: int, column: Index, value: ir.Value) -> None:
        self.values[number, column.const or 0] = value

    def _states(self) -> list[tuple[int, int]]:
        return [key for key in self.values if key[0] < len(self.walk.running.op.results)]

    def carried(self) -> list[ir.Value]:
        return [self.values[key] for key in self._states()]

    def take(self, values: Sequence[ir.Value]) -> None:
        self.values.update(zip(self._states(), values, strict=True))
