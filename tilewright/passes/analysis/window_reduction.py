"""WindowReduction: a region that is one reduction over windows of an image, with elementwise ops around it.

Pooling and convolutions of each channel by itself are the same thing here: every element of the result joins what a body makes of
the places of a window by one associative operation, and a place in the padding changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import LHS, OUT, RHS, Contraction, product_of
from tilewright.passes.analysis.fused_contraction import fast_loop
from tilewright.passes.analysis.op_kinds import scatters
from tilewright.passes.analysis.placement import Place, place
from tilewright.passes.analysis.row_program import row_joins
from tilewright.passes.analysis.windows import padded_places, windows_of
from tilewright.passes.linalg.structured import CASTS, inits, inputs, is_zero, iterator_kinds, loop_extents, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.passes.spaces.host.host_window import NEAR_FACTORS
from tilewright.passes.spaces.workload import Window
from tilewright.runtime.shape import Expr

_EXTREMA = ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.maxsi", "arith.minsi", "arith.maxui",
            "arith.minui")
_SUMS = ("arith.addf", "arith.addi")


@dataclass(frozen=True)
class WindowReduction:
    """root: the reduction; image: the number of the operand that its windows pass over; pad: the tensor.pad that is that
    operand's value, None without one. extents: of the loops. windows: of the image, in the order of its axes. places: of the
    region's results."""

    root: ir.Operation
    image: int
    pad: ir.Operation | None
    extents: tuple[Expr, ...]
    windows: tuple[Window, ...]
    places: tuple[Place, ...]

    @staticmethod
    def of(ops: Sequence[ir.Operation], results: Sequence[ir.Value], shapes: SymbolicShapes) -> WindowReduction:
        """Of a region's operations and results. ValueError when it is something else."""
        roots = [op for op in ops if op.name.startswith("linalg.") and "reduction" in iterator_kinds(op)]
        if len(roots) != 1:
            raise ValueError(f"wanted a region with one reduction, got {len(roots)}")
        root = roots[0]
        where = f"{root.name} at {root.location}"
        if len(root.results) != 1 or scatters(root) or not _joins_elements(root):
            raise ValueError(f"{where}: its body is not one element, or one product, that an associative operation joins")
        for image, value in enumerate(inputs(root)):
            pad, dims = _pad_of(root, value), shapes.dims(value)
            windows = windows_of(root, image, padded_places(pad) if pad is not None else [(0, 0)] * len(dims), dims)
            if windows:
                places = place(shapes, root.results[0], ops[list(ops).index(root) + 1 :], results)
                return WindowReduction(root, image, pad, tuple(loop_extents(root, shapes)), windows, tuple(places))
        raise ValueError(f"{where}: no operand is read through windows")

    @property
    def source(self) -> ir.Value:
        """The image without its padding."""
        return self.root.operands[self.image] if self.pad is None else self.pad.operands[0]

    def window_at(self, loop: int) -> Window | None:
        """The window whose place or tap is the loop."""
        return next((w for w in self.windows if loop in (w.row, w.tap)), None)

    def fast_loop(self, is_unit: Callable[[int], bool]) -> int | None:
        """The loop along the unit-stride axis of the first result."""
        return fast_loop(self.places[0], maps_of(self.root)[-1], self.extents, is_unit)


def rows_for_filters(root: ir.Operation, shapes: SymbolicShapes) -> bool:
    """Is this a convolution whose results lie along a window's row of pixels, with few filters in a group of channels?"""
    view = Contraction.of(root, shapes)
    for image in (LHS, RHS):
        dims = shapes.dims(view.operand(image))
        windows = windows_of(root, image, [(0, 0)] * len(dims), dims)
        if any(w.row == position(view.maps[OUT].results[-1]) for w in windows):
            taps = {w.tap for w in windows}
            factors = view.size([*(view.n, view.m)[image], *(d for d in view.k if d not in taps)]).constant
            return factors is not None and factors <= NEAR_FACTORS
    return False


def _joins_elements(root: ir.Operation) -> bool:
    """Does the body join the image's element itself, up to casts, or a product with it?"""
    try:
        join = row_joins(root)[0]
    except ValueError:
        return False
    if product_of(root) is not None:
        return True
    value = join.op.operands[join.side]
    while (cast := owner(value)) is not None and cast.name in CASTS:
        value = cast.operands[0]
    block = root.regions[0].blocks[0]
    return len(inputs(root)) > 0 and value == block.arguments[0]


def _pad_of(root: ir.Operation, value: ir.Value) -> ir.Operation | None:
    """The padding of the image. ValueError where joining its value changes a result."""
    op = owner(uncast(value))
    if op is None or op.name != "tensor.pad":
        return None
    filled = operations(op.regions[0].blocks[0])[-1].operands[0]
    join, start = row_joins(root)[0], owner(inits(root)[0])
    neutral = join.op.name in _SUMS and is_zero(filled)
    if join.op.name in _EXTREMA and start is not None and start.name == "linalg.fill":
        neutral = _constant(filled) is not None and _constant(filled) == _constant(start.operands[0])
    if not neutral:
        raise ValueError(f"{root.name} at {root.location}: its image is padded with another value than the reduction starts from")
    return op


def _constant(value: ir.Value) -> ir.Attribute | None:
    op = owner(value)
    return op.attributes["value"] if op is not None and op.name == "arith.constant" else None
