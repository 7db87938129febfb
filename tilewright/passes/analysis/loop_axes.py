"""Where the tensors of a region lie in terms of the loops of its root: what Workload.Operand.axes and Factor.axes say.

Coordinates are Exprs over the loops (loop.0, loop.1, ...). They spread from the root to what it reads and what is computed from
it, through elementwise operations, permutations, slices, pads and reshapes, in both directions. Places, such as the offset of a
slice, are left out: only how coordinates move is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.contraction import Product, product_of
from tilewright.passes.analysis.named_rows import SHOWN, NamedRows
from tilewright.passes.analysis.placement import collapsed, expanded, steps_of
from tilewright.passes.linalg.symbolic import SymbolicShapes, evaluate_affine, kept_axes, mixed, reassociation
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.passes.spaces.workload import Axis, Factor
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Coords = tuple[Expr | None, ...]  # None: not known
_LOOP = "loop."
_SAME_AXES = ("tensor.cast", "tensor.pad", "tensor.concat", "tensor.insert_slice")
_WIDENING = ("arith.extf", "arith.extsi", "arith.extui")


def loop_symbols(op: ir.Operation) -> list[Expr]:
    """The loops of a linalg op that is the root."""
    return [Expr.dim(f"{_LOOP}{d}") for d in range(maps_of(op)[0].n_dims)]


def attention_symbols(view: Attention) -> tuple[list[Expr], list[Expr]]:
    """The loops of the scores, and those of the mixing: the scores' and the value columns, which are one more."""
    named = [Expr.dim(f"{_LOOP}{d}") for d in range(len(view.scores.extents) + 1)]
    return named[:-1], [named[-1] if d is None else named[d] for d in view.loops]


def _innermost(coords: Coords) -> int:
    """The number of the last loop that coordinates move with; -1 where they stand still."""
    return max((d for c in coords for d in axis_of(c).loops), default=-1)


def axis_of(coordinate: Expr | None) -> Axis:
    """How a coordinate moves with the loops of the root."""
    steps = [] if coordinate is None else [(s, n) for s, n in steps_of(coordinate) if s.startswith(_LOOP)]
    return Axis(tuple(int(s[len(_LOOP):]) for s, _ in steps), tuple(n for _, n in steps))


def unit_axis(value: ir.Value, of_argument: Mapping[ir.Value, int | None]) -> int | None:
    """The unit-stride axis of a value that is an argument behind views and lookups of rows; None when it is computed."""
    if value in of_argument:
        return of_argument[value]
    op = owner(value)
    named = NamedRows.of(op)
    if named is not None:
        inner = unit_axis(named.table, of_argument)
        return None if inner is None else named.axes[inner]
    if op is None or op.name not in SHOWN:
        return None
    inner = unit_axis(op.operands[0], of_argument)
    if inner is None or op.name == "tensor.cast":
        return inner
    if op.name == "tensor.expand_shape":
        sizes = ir.RankedTensorType(value.type)
        group = reassociation(op)[inner]
        return next((a for a in reversed(group) if sizes.is_dynamic_dim(a) or sizes.get_dim_size(a) != 1), group[-1])
    kept = kept_axes(op)
    return kept.index(inner) if inner in kept and mixed(op, "static_strides", 3)[inner] == 1 else None


def factors_of(root: ir.Operation, loops: Sequence[Expr], of_argument: Mapping[ir.Value, int | None]) -> tuple[Factor, ...]:
    """Both operands of a contraction; `loops`: what the root's loops are."""
    product, found = product_of(root), []
    arguments = list(of_argument)
    for which, (value, m) in enumerate(zip(root.operands, maps_of(root), strict=False)):
        if which == 2:
            break
        source = value
        while (op := owner(source)) is not None and op.name in ("tensor.cast", "tensor.extract_slice"):
            source = op.operands[0]
        found.append(Factor(
            dtype=_factor_type(value, product, which),
            axes=tuple(axis_of(evaluate_affine(e, loops)) for e in m.results),
            unit_axis=unit_axis(value, of_argument),
            source=arguments.index(source) if source in of_argument else None,
            signed=product is None or all(op.name != "arith.extui" for op in product.casts[which]),
        ))
    return tuple(found)


def _factor_type(value: ir.Value, product: Product | None, which: int) -> DType:
    """That of the tensor where the body only widens it, else what is multiplied."""
    casts = product.casts[which] if product is not None else ()
    if all(op.name in _WIDENING for op in casts):
        return DType(str(ir.RankedTensorType(value.type).element_type))
    return DType(str(casts[-1].results[0].type))


class LoopAxes:
    """Coordinates of the tensors of a region; those that the root itself reads and writes come first."""

    def __init__(self, ops: Sequence[ir.Operation], shapes: SymbolicShapes) -> None:
        self.ops, self.shapes = list(ops), shapes
        self.coords: dict[ir.Value, Coords] = {}

    def seed(self, op: ir.Operation, loops: Sequence[Expr | None]) -> None:
        """The operands and results of a linalg op whose loops are `loops`. A row that it reads along several of them, such as the
        places that rows and columns have in common, lies along the innermost one."""
        values = [*op.operands, *op.results]
        maps = maps_of(op)
        found: dict[ir.Value, Coords] = {}
        for value, m in zip(values, [*maps, *maps[len(maps) - len(op.results):]], strict=True):
            if isinstance(value.type, ir.RankedTensorType):
                coords = tuple(_at(e, loops) for e in m.results)
                if value not in found or (len(coords) == 1 and _innermost(coords) > _innermost(found[value])):
                    found[value] = coords
        for value, coords in found.items():
            self.coords.setdefault(value, coords)

    def seed_root(self, root: ir.Operation) -> None:
        self.seed(root, loop_symbols(root))

    def seed_attention(self, view: Attention) -> None:
        for contraction, loops in zip((view.scores, view.mixed), attention_symbols(view), strict=True):
            self.seed(contraction.op, loops)

    def seed_result(self, value: ir.Value) -> None:
        """The loops are the axes of this value."""
        rank = ir.RankedTensorType(value.type).rank
        self.coords[value] = tuple(Expr.dim(f"{_LOOP}{a}") for a in range(rank))

    def spread(self) -> None:
        """To every tensor that coordinates reach."""
        before = -1
        while len(self.coords) > before:
            before = len(self.coords)
            for op in self.ops:
                self._forward(op)
            for op in reversed(self.ops):
                self._backward(op)

    def axes(self, value: ir.Value) -> tuple[Axis, ...]:
        """Empty where no coordinates reach it."""
        return tuple(map(axis_of, self.coords.get(value, ())))

    # -- one operation

    def _forward(self, op: ir.Operation) -> None:
        source = self.coords.get(op.operands[0]) if len(op.operands) else None
        if has_loops(op):
            self._through_loops(op)
        elif source is None:
            return
        elif op.name in _SAME_AXES:
            self.coords.setdefault(op.results[0], source)
        elif op.name == "tensor.extract_slice":
            strides = mixed(op, "static_strides", 3)
            self.coords.setdefault(op.results[0], tuple(source[a] if strides[a] == 1 else None for a in kept_axes(op)))
        elif op.name in ("tensor.collapse_shape", "tensor.expand_shape"):
            whole = op.name == "tensor.collapse_shape"
            self._reshape(op.results[0], whole, reassociation(op), source, op.operands[0] if whole else op.results[0])

    def _backward(self, op: ir.Operation) -> None:
        result = self.coords.get(op.results[0]) if len(op.results) else None
        if has_loops(op):
            self._through_loops(op)
        elif result is None:
            return
        elif op.name in _SAME_AXES:
            for value in op.operands:
                if isinstance(value.type, ir.RankedTensorType):
                    self.coords.setdefault(value, result)
        elif op.name == "tensor.extract_slice":
            axes: list[Expr | None] = [None] * ir.RankedTensorType(op.operands[0].type).rank
            strides = mixed(op, "static_strides", 3)
            for a, c in zip(kept_axes(op), result, strict=True):
                stride = strides[a]
                axes[a] = c * stride if c is not None and isinstance(stride, int) else None
            self.coords.setdefault(op.operands[0], tuple(axes))
        elif op.name in ("tensor.collapse_shape", "tensor.expand_shape"):
            whole = op.name == "tensor.expand_shape"
            self._reshape(op.operands[0], whole, reassociation(op), result, op.results[0] if whole else op.operands[0])

    def _reshape(self, value: ir.Value, whole: bool, groups: Sequence[Sequence[int]], coords: Coords, finer: ir.Value) -> None:
        """`value` has an axis for each group of `finer` (whole), or is `finer`."""
        if any(c is None for c in coords):
            return
        known = [c for c in coords if c is not None]
        extents = self.shapes.dims(finer)
        if whole:
            self.coords.setdefault(value, tuple(collapsed([extents[a] for a in g], [known[a] for a in g]) for g in groups))
        else:
            self.coords.setdefault(value, tuple(x for g, c in zip(groups, known, strict=True)
                                                for x in expanded(c, [extents[a] for a in g])))

    def _through_loops(self, op: ir.Operation) -> None:
        """The loops of an op from those of its tensors whose coordinates are known, and with them its other tensors."""
        values, maps = [*op.operands, *op.results], maps_of(op)
        loops: list[Expr | None] = [None] * maps[0].n_dims
        for value, m in zip(values, [*maps, *maps[len(maps) - len(op.results):]], strict=True):
            for e, c in zip(m.results, self.coords.get(value, ()), strict=False):
                at = position(e)
                if at is not None and loops[at] is None:
                    loops[at] = c
        if any(c is not None for c in loops):
            self.seed(op, loops)


def has_loops(op: ir.Operation) -> bool:
    return op.name.startswith("linalg.") and op.name != "linalg.fill" and len(op.regions) > 0


def _at(e: ir.AffineExpr, loops: Sequence[Expr | None]) -> Expr | None:
    """A coordinate; None where a loop that it depends on is not known."""
    marked = [Expr.dim("unknown") if c is None else c for c in loops]
    found = evaluate_affine(e, marked)
    return None if "unknown" in found.symbols else found
