"""Family `gpu_pointwise`: a thread evaluates a few result elements on demand, reductions as inline loops.

Of a running reduction a thread walks along the axis that runs, at one place of all others (gpu_walk.py).
A result whose map is no permutation of parallel loops (a scatter) runs its loops in order in one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.passes.analysis.elementwise import refuse_rows_over_operands
from tilewright.passes.codegen.emit import all_of, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.codegen.units import Unit, Units, launched
from tilewright.passes.families.gpu.gpu_transpose import crossing_axes, crossing_of, tile_crossing, tiled
from tilewright.passes.families.gpu.gpu_walk import ThreadWalk
from tilewright.passes.families.scatter import scatters, serial
from tilewright.passes.mlir import ir, operations
from tilewright.passes.spaces.gpu.gpu_pointwise import GpuPointwiseConfig
from tilewright.runtime.shape import Expr


def emit(kernel: GpuKernel, config: GpuPointwiseConfig) -> None:
    """The whole kernel; results of equal extents share their threads."""
    refuse_rows_over_operands(kernel.fn)

    def body() -> Grid:
        crossing = crossing_of(kernel) if config.tile else None
        if crossing is None:
            return elementwise(kernel, kernel.loops, config.vec)
        return tiled(kernel, crossing, config.tile)

    kernel.launch(config.threads, body)


def tile(frame: KernelFrame, config: GpuPointwiseConfig, tiler: Tiler) -> None:
    """Units of a square tile where operands are read across the results, else of a vector, for some in each thread."""
    crossing = crossing_axes(frame) if config.tile else None
    if crossing is None:
        tile_elements(frame, tiler, config.vec, config.threads * config.chunks)
    else:
        tile_crossing(frame, tiler, crossing, config.tile)


def tile_elements(frame: KernelFrame, tiler: Tiler, vec: int, block: int) -> None:
    """Units of a vector of each result of equal extents, `block` of them in a block of threads."""
    returned = list(operations(frame.block)[-1].operands)
    for group in _groups(frame, vec):
        tiler.loop(group.counts, lambda place, group=group: group.parts(place),  # type: ignore[misc]
                   {returned[n]: group.axes(returned[n]) for n in group.members}, block)


def elementwise(kernel: GpuKernel, loops: Sequence[Units], vec: int) -> Grid:
    """Emits all results of the region, the units of a block in turn."""
    blocks, chunks = launched(loops), loops[0].block // kernel.threads
    total = sum((units.total for units in loops), start=Expr.of(0))
    groups = _groups(kernel, vec)
    for group in groups:
        if group.vec > 1:
            kernel.multiple(group.dims[group.axis], group.vec)
    kernel.bound(total)
    first = kernel.block_id() * loops[0].block + kernel.thread()
    for i in range(chunks):
        number, start = first + i * kernel.threads, Expr.of(0)
        for group, units in zip(groups, loops, strict=True):
            low, high = kernel.evaluator.emit(start), kernel.evaluator.emit(start + units.total)
            inside = all_of([low.le(number) if start != Expr.of(0) else True, number.lt(high)])
            when(inside, lambda group=group, units=units, at=number - low:  # type: ignore[misc]
                 group.emit(kernel, units.numbers(kernel.evaluator)(at)))
            start = start + units.total
    return blocks, Expr.of(1), Expr.of(1)


@dataclass(frozen=True)
class _PointwiseGroup:
    """Results of the same extents, cut into vectors of `vec` along an axis; a scatter is alone, and so is what a walk gives."""

    members: tuple[int, ...]
    dims: tuple[Expr, ...]
    axis: int
    vec: int
    scattered: bool = False
    walk: ThreadWalk | None = None

    @property
    def _cut(self) -> list[int]:
        """Axes in the order of the loop, that of the vectors last."""
        if self.walk is not None:
            return self.walk.walk.rows
        return [] if self.scattered else [*(a for a in range(len(self.dims)) if a != self.axis), self.axis][: len(self.dims)]

    def axes(self, value: ir.Value) -> dict[str, tuple[int, ...]]:
        """The axes of a member that the parts of a unit run along."""
        return {f"d{a}": (a,) for a in self._cut} if self.walk is None else self.walk.axes(value)

    @property
    def counts(self) -> list[Expr]:
        return [self.dims[a].ceildiv(self.vec) if a == self.axis else self.dims[a] for a in self._cut] or [Expr.of(1)]

    def parts(self, place: list[Index]) -> dict[str, Part]:
        """Of a tile. Extents are multiples of the vectors, by guards."""
        return {f"d{a}": Part(x * self.vec, size=self.vec) if a == self.axis else Part(x)
                for a, x in zip(self._cut, place, strict=False)}

    def emit(self, kernel: GpuKernel, unit: Unit) -> None:
        """The vectors of a unit."""
        if self.scattered:
            serial(kernel, self.members[0])
            return
        if self.walk is not None:
            self.walk.emit(kernel, unit)
            return
        ev = kernel.evaluator
        coords = [unit.first(f"d{a}") for a in range(len(self.dims))]
        if self.dims:
            coords[self.axis] = Index.ramp(coords[self.axis], self.vec)
        with ev.kept():
            made: list[tuple[GpuMemory, ir.Value]] = []
            for number in self.members:
                memory = kernel.outputs[number]
                assert isinstance(memory, GpuMemory)
                made.append((memory, ev.element(kernel.results[number], coords)))
            for memory, value in made:
                memory.store(value, coords)


def _groups(frame: KernelFrame, vec: int) -> list[_PointwiseGroup]:
    found: dict[tuple[Expr, ...], list[int]] = {}
    alone, walk = [], ThreadWalk.of(frame)
    if walk is not None:
        dims = frame.shapes.dims(walk.walk.running.op.results[0])
        alone.append(_PointwiseGroup(walk.members, dims, walk.walk.axis, 1, walk=walk))
    for number, value in enumerate(frame.results):
        if walk is not None and number in walk.members:
            continue
        if scatters(value):
            alone.append(_PointwiseGroup((number,), frame.shapes.dims(value), 0, 1, scattered=True))
        else:
            found.setdefault(frame.shapes.dims(value), []).append(number)
    groups = []
    for dims, members in found.items():
        unit = frame.result_slot(members[0]).unit
        axis = len(dims) - 1 if unit is None or dims[unit] == Expr.of(1) else unit
        length = dims[axis].constant if dims else 1
        groups.append(_PointwiseGroup(tuple(members), dims, axis, vec if length is None else gcd(vec, length)))
    return [*groups, *alone]
