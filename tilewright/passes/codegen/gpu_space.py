"""CollapsedLoops: some loops as one linear coordinate of a GPU kernel."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index, delinearize
from tilewright.runtime.shape import Expr

Point = dict[int, Index]  # coordinate of each loop


class CollapsedLoops:
    """Some loops as one linear coordinate, the last one fastest."""

    def __init__(self, kernel: GpuKernel, loops: Sequence[int], extents: Sequence[Expr]) -> None:
        """loops: numbers of the loops, slowest first; extents: of all loops by number."""
        self.kernel, self.loops = kernel, tuple(loops)
        self.exprs = [extents[d] for d in loops]
        total = Expr.of(1)
        for e in self.exprs:
            total = total * e
        self.size = total
        self.extent = kernel.evaluator.emit(total)
        self._extents = [kernel.evaluator.emit(e) for e in self.exprs]

    def may_be_multiple(self, n: int) -> bool:
        """Can the innermost extent be a multiple of n, and if so, is it worth a guard?"""
        inner = self.exprs[-1] if self.exprs else Expr.of(1)
        return inner.divisible_by(n) or inner.constant is None

    def assume_multiple(self, n: int) -> CollapsedLoops:
        """The same space whose innermost extent is taken for a multiple of n; `guard` makes it one."""
        found = CollapsedLoops.__new__(CollapsedLoops)
        found.__dict__.update(self.__dict__)
        found._extents = [*self._extents[:-1], self._extents[-1].known_multiple(n)] if self.loops else []
        found.extent = self.extent.known_multiple(n)
        return found

    def guard(self, n: int) -> None:
        """Makes the innermost extent a multiple of n, by a guard where it is not known."""
        if self.exprs and n > 1:
            self.kernel.multiple(self.exprs[-1], n)

    def extents_of(self) -> dict[int, Index]:
        """The extent of each loop."""
        return dict(zip(self.loops, self._extents, strict=True))

    def point(self, linear: Index) -> Point:
        """Coordinates of the loops. A ramp must not cross the end of the innermost loop: its first lane and that loop's extent
        are multiples of its lanes."""
        if len(self.loops) <= 1:
            return dict(zip(self.loops, [linear], strict=False))
        *outer, inner = delinearize(linear.base, self._extents)
        last = Index.ramp(inner, linear.lanes) if linear.is_vector else inner
        return dict(zip(self.loops, [*outer, last], strict=True))
