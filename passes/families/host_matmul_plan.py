"""Plan of a host matmul: which loop runs along the vectors, which are rows, which are work units; where results land."""

from __future__ import annotations

from dataclasses import dataclass

from passes.contraction import OUT, Contraction, product_of
from passes.host_kernel import HostKernel
from passes.mlir import ir, operations, owner, position
from passes.placement import Place, axis_name, place
from passes.symbolic import kept_axes, mixed
from runtime.shape import Expr

_FEW_OPS = 8  # arithmetic of an epilogue that is unrolled over the register block


@dataclass(frozen=True)
class Plan:
    """column: the loop along the vectors; wide: the operand that varies with it and is reused by all rows.

    rows: parallel loops that `wide` does not depend on, as one linear space; shared: the other parallel loops, one work unit
    each. tile: columns per panel of an operand that is prepacked [column / tile][k][column mod tile], else 0. in_place:
    `wide` is contiguous along the columns; transposed: contiguous along the last k loop instead.
    """

    view: Contraction
    column: int
    wide: int
    rows: tuple[int, ...]
    shared: tuple[int, ...]
    tile: int
    in_place: bool
    transposed: bool
    places: tuple[Place, ...]
    heavy: bool

    @staticmethod
    def of(kernel: HostKernel) -> Plan:
        """ValueError when the region is no contraction with elementwise ops around it."""
        ops = kernel.ops()
        roots = [op for op in ops if product_of(op) is not None]
        if len(roots) != 1:
            named = ", ".join(f"{op.name} at {op.location}" for op in roots) or "none"
            raise ValueError(f"wanted a region with one contraction, got {named}")
        view = Contraction.of(roots[0], kernel.shapes)
        after = ops[ops.index(roots[0]) + 1 :]
        places = place(kernel.shapes, roots[0].results[0], after, kernel.results)
        return Plan.along(kernel, view, _column(kernel, view, places[0]), tuple(places), _heavy(after))

    @staticmethod
    def along(kernel: HostKernel, view: Contraction, column: int, places: tuple[Place, ...] = (), heavy: bool = False) -> Plan:
        """The plan with a given loop along the vectors."""
        wide = _wide(view, column)
        used = view.loops_of(wide)
        rows = tuple(d for d in view.parallel if d not in used and d != column)
        shared = tuple(d for d in view.parallel if d in used and d != column)
        tile = _tile(view, wide, column)
        unit = unit_axis(kernel, view.operand(wide))
        along = view.linear_axis(wide, column) if not tile else None
        in_place = bool(tile) or (unit is not None and along == unit)
        last = view.linear_axis(wide, view.k[-1]) if view.k else None
        transposed = not in_place and unit is not None and last == unit
        return Plan(view, column, wide, rows, shared, tile, in_place, transposed, places, heavy)

    @property
    def narrow(self) -> int:
        return 1 - self.wide

    @property
    def row_count(self) -> Expr:
        return self.view.size(self.rows)

    @property
    def depth(self) -> Expr:
        return self.view.size(self.view.k)


def _column(kernel: HostKernel, view: Contraction, first: Place) -> int:
    """The loop along the unit-stride axis of the first result; axes of one element are passed over."""
    memory = kernel.outputs[0]
    axes = sorted(range(len(first)), key=lambda a: (memory.strides[a].const == 1, a), reverse=True)
    names = {axis_name(axis): position(e) for axis, e in enumerate(view.maps[OUT].results)}
    loops = [names[symbol] for a in axes for symbol in sorted(first[a].symbols, reverse=True) if symbol in names]
    found = [d for d in loops if d is not None]
    long = [d for d in found if view.extents[d] != Expr.of(1)]
    if not found:
        raise ValueError(f"{view.op.name} at {view.op.location}: no loop runs along an axis of the result")
    return (long or found)[0]


def _wide(view: Contraction, column: int) -> int:
    """The operand that varies along the columns; of two, the one with fewer other parallel loops."""
    varying = [which for which in (0, 1) if column in view.loops_of(which)]
    return min(varying, key=lambda which: len(view.loops_of(which) & set(view.parallel)))


def _tile(view: Contraction, wide: int, column: int) -> int:
    """t when the operand's map has the results `column floordiv t` and, last, `column mod t`, and no other use of it."""
    results = list(view.maps[wide].results)
    if not results or not isinstance(results[-1], ir.AffineModExpr):
        return 0
    sizes = set()
    for kind in (ir.AffineModExpr, ir.AffineFloorDivExpr):
        matching = [kind(e) for e in results if isinstance(e, kind) and position(kind(e).lhs) == column]
        if len(matching) != 1 or not isinstance(matching[0].rhs, ir.AffineConstantExpr):
            return 0
        sizes.add(int(ir.AffineConstantExpr(matching[0].rhs).value))
    uses = sum(f"d{column}" in str(e).replace("(", " ").split() for e in results)
    return sizes.pop() if len(sizes) == 1 and uses == 2 else 0


def unit_axis(kernel: HostKernel, value: ir.Value) -> int | None:
    """The unit-stride axis of a value that is an argument behind casts and slices; None when it is computed."""
    if value in kernel.evaluator.memories:
        strides = kernel.evaluator.memories[value].strides
        return next((a for a in reversed(range(len(strides))) if strides[a].const == 1), None)
    op = owner(value)
    if op is None or op.name not in ("tensor.cast", "tensor.extract_slice"):
        return None
    inner = unit_axis(kernel, op.operands[0])
    if inner is None or op.name == "tensor.cast":
        return inner
    kept = kept_axes(op)
    return kept.index(inner) if inner in kept and mixed(op, "static_strides", 3)[inner] == 1 else None


def _heavy(ops: list[ir.Operation]) -> bool:
    """Is the arithmetic after the contraction too much to unroll over a register block?"""
    names = [o.name for op in ops if len(op.regions) for o in operations(op.regions[0].blocks[0])]
    return any(n.startswith("math.") for n in names) or sum(n.startswith("arith.") for n in names) > _FEW_OPS

