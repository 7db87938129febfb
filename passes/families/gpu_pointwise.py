"""Family `gpu_pointwise`: a thread evaluates a few result elements on demand, reductions as inline loops.

A result whose map is no permutation of parallel loops (a scatter) runs its loops in order in one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from passes.emit import all_of, when
from passes.families.gpu_transpose import crossing_of, tiled
from passes.families.scatter import scatters, serial
from passes.gpu_kernel import GpuKernel, Grid
from passes.gpu_memory import GpuMemory
from passes.index import Index, delinearize
from passes.mlir import ir
from passes.spaces.gpu_pointwise import GpuPointwiseConfig
from runtime.shape import Expr


def emit(kernel: GpuKernel, config: GpuPointwiseConfig) -> None:
    """The whole kernel; results of equal extents share their threads."""

    def body() -> Grid:
        crossing = crossing_of(kernel) if config.tile else None
        if crossing is None:
            return elementwise(kernel, config.vec, config.chunks)
        return tiled(kernel, crossing, config.tile)

    kernel.launch(config.threads, body)


def elementwise(kernel: GpuKernel, vec: int, chunks: int = 1) -> Grid:
    """Emits all results of the region, `chunks` vectors of `vec` elements a thread."""
    groups: dict[tuple[Expr, ...], list[int]] = {}
    alone = []
    for number, value in enumerate(kernel.results):
        if scatters(value):
            alone.append(number)
        else:
            groups.setdefault(kernel.shapes.dims(value), []).append(number)
    parts = [_Part(kernel, dims, members, vec) for dims, members in groups.items()]
    total = Expr.of(len(alone))
    for part in parts:
        total = total + part.units
    kernel.bound(total)
    first = kernel.block_id() * (kernel.threads * chunks) + kernel.thread()
    for i in range(chunks):
        unit, start = first + i * kernel.threads, Expr.of(0)
        for part in parts:
            low, high = kernel.evaluator.emit(start), kernel.evaluator.emit(start + part.units)
            inside = all_of([low.le(unit) if start != Expr.of(0) else True, unit.lt(high)])
            when(inside, lambda part=part, at=unit - low: part.emit(at))  # type: ignore[misc]
            start = start + part.units
        for number in alone:
            here = unit.eq(kernel.evaluator.emit(start))
            when(here, lambda number=number: serial(kernel, number))  # type: ignore[misc]
            start = start + 1
    return total.ceildiv(kernel.threads * chunks), Expr.of(1), Expr.of(1)


class _Part:
    """Results of the same extents, cut into vectors along the unit-stride axis of the first."""

    def __init__(self, kernel: GpuKernel, dims: tuple[Expr, ...], members: Sequence[int], vec: int) -> None:
        self.kernel, self.dims, self.members = kernel, dims, members
        strides = kernel.outputs[members[0]].strides
        axes = range(len(dims))
        self.axis = next((a for a in reversed(axes) if strides[a].const == 1 and dims[a] != Expr.of(1)), len(dims) - 1)
        length = dims[self.axis] if dims else Expr.of(1)
        self.vec = vec if length.constant is None else gcd(vec, length.constant)
        if self.vec > 1:
            kernel.multiple(length, self.vec)
        self.vectors = length.ceildiv(self.vec) if length.constant is None else Expr.of(length.constant // self.vec)
        self.outer = [a for a in axes if a != self.axis]
        self.units = self.vectors
        for a in self.outer:
            self.units = self.units * dims[a]

    def emit(self, unit: Index) -> None:
        """The vectors number `unit` of the results."""
        ev = self.kernel.evaluator
        *where, chunk = delinearize(unit, [*(ev.emit(self.dims[a]) for a in self.outer), ev.emit(self.vectors)])
        coords = [Index(0)] * len(self.dims)
        for a, x in zip(self.outer, where, strict=True):
            coords[a] = x
        if self.dims:
            coords[self.axis] = Index.ramp(chunk * self.vec, self.vec)
        with ev.kept():
            made: list[tuple[GpuMemory, ir.Value]] = []
            for number in self.members:
                memory = self.kernel.outputs[number]
                assert isinstance(memory, GpuMemory)
                made.append((memory, ev.element(self.kernel.results[number], coords)))
            for memory, value in made:
                memory.store(value, coords)
