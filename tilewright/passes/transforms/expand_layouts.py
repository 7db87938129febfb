"""expand-layouts: linalg.pack and linalg.unpack become pads, reshapes, transposes and slices, which the passes read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import main_of, replace
from tilewright.passes.linalg.symbolic import mixed
from tilewright.passes.mlir import arith, ir, linalg, tensor, walk
from tilewright.runtime.errors import PassError

Size: TypeAlias = int | ir.Value
LAYOUT_OPS = ("linalg.pack", "linalg.unpack")


@dataclass(frozen=True)
class ExpandLayouts(Pass):
    """pack: pad to whole tiles, split each tiled axis in two, move the tiles to the end; unpack: the way back.

    A pack without a padding value states that its tiles are whole: the split then asserts it.
    """

    name: ClassVar[str] = "expand-layouts"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            for op in walk(fn):
                if op.name in LAYOUT_OPS:
                    if not isinstance(op.results[0].type, ir.RankedTensorType):
                        raise PassError(f"{op.name} at {op.location}: wanted tensors")
                    with ir.InsertionPoint(op), op.location:
                        replace(op, [_pack(op) if op.name == "linalg.pack" else _unpack(op)])
                    op.erase()


def _pack(op: ir.Operation) -> ir.Value:
    source, tiles, order = op.operands[0], _tiles(op), _order(op)
    extents = [_extent(source, axis) for axis in range(len(order))]
    counts = [_ceildiv(extents[a], tiles[a]) if a in tiles else extents[a] for a in range(len(extents))]
    padding = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[2]
    if padding:
        whole = [_times(counts[a], tiles[a]) if a in tiles else extents[a] for a in range(len(extents))]
        source = _padded(source, [_minus(w, e) for w, e in zip(whole, extents, strict=True)], op.operands[2])
    target: list[Size] = []
    groups: list[list[int]] = []
    for axis, count in enumerate(counts):
        parts = [count, tiles[axis]] if axis in tiles else [count]
        groups.append(list(range(len(target), len(target) + len(parts))))
        target += parts
    value = _expand(source, groups, target)
    moved = [*(groups[a][0] for a in order), *(groups[a][1] for a in tiles)]
    return _cast(_transpose(value, moved, target), op.results[0].type)


def _unpack(op: ir.Operation) -> ir.Value:
    source, into, tiles, order = op.operands[0], op.operands[1], _tiles(op), _order(op)
    rank = len(order)
    moved: list[int] = []
    groups: list[list[int]] = []
    for axis in range(rank):
        parts = [order.index(axis), *([rank + list(tiles).index(axis)] if axis in tiles else [])]
        groups.append(list(range(len(moved), len(moved) + len(parts))))
        moved += parts
    sizes = [_extent(source, axis) for axis in range(len(moved))]
    value = _transpose(source, moved, sizes)
    if any(len(g) > 1 for g in groups):
        element = ir.RankedTensorType(value.type).element_type
        whole = [_product([_static(value, a) for a in g]) for g in groups]
        value = tensor.CollapseShapeOp(_type(whole, element), value, _reassociation(groups)).result
    wanted = [_extent(into, axis) for axis in range(rank)]
    static = [_number(w) for w in wanted]
    kind = _type(static, ir.RankedTensorType(value.type).element_type)
    absent = ir.ShapedType.get_dynamic_size()
    sliced = tensor.ExtractSliceOp(kind, value, [], [w for w in wanted if not isinstance(w, int)], [], [0] * rank,
                                   [absent if s is None else s for s in static], [1] * rank)
    return _cast(sliced.result, op.results[0].type)


def _tiles(op: ir.Operation) -> dict[int, Size]:
    """Tiled axis -> extent of its tiles, in the order in which the tiles stand."""
    dynamic = list(op.operands)
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])) if op.name == "linalg.pack" else None
    sizes: list[Size] = list(mixed(op, "static_inner_tiles", 3)) if segments is not None else _unpack_tiles(op, dynamic[2:])
    return dict(zip(ir.DenseI64ArrayAttr(op.attributes["inner_dims_pos"]), sizes, strict=True))


def _unpack_tiles(op: ir.Operation, dynamic: Sequence[ir.Value]) -> list[Size]:
    left, absent = iter(dynamic), ir.ShapedType.get_dynamic_size()
    return [next(left) if s == absent else s for s in ir.DenseI64ArrayAttr(op.attributes["static_inner_tiles"])]


def _order(op: ir.Operation) -> list[int]:
    """Position of an outer axis of the packed tensor -> axis of the plain one."""
    plain = op.operands[0] if op.name == "linalg.pack" else op.operands[1]
    order = list(ir.DenseI64ArrayAttr(op.attributes["outer_dims_perm"])) if "outer_dims_perm" in op.attributes else []
    return order or list(range(ir.RankedTensorType(plain.type).rank))


def _extent(value: ir.Value, axis: int) -> Size:
    number = _static(value, axis)
    return tensor.DimOp(value, _index(axis)).result if number is None else number


def _static(value: ir.Value, axis: int) -> int | None:
    t = ir.RankedTensorType(value.type)
    return None if t.is_dynamic_dim(axis) else t.get_dim_size(axis)


def _number(size: Size) -> int | None:
    return size if isinstance(size, int) else None


def _product(extents: Sequence[int | None]) -> int | None:
    total = 1
    for e in extents:
        if e is None:
            return None
        total *= e
    return total


def _index(size: Size) -> ir.Value:
    return arith.constant(ir.IndexType.get(), size) if isinstance(size, int) else size


def _ceildiv(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return arith.CeilDivSIOp(_index(a), _index(b)).result


def _times(a: Size, b: Size) -> Size:
    return a * b if isinstance(a, int) and isinstance(b, int) else arith.MulIOp(_index(a), _index(b)).result


def _minus(a: Size, b: Size) -> Size:
    return a - b if isinstance(a, int) and isinstance(b, int) else arith.SubIOp(_index(a), _index(b)).result


def _type(extents: Sequence[int | None], element: ir.Type) -> ir.RankedTensorType:
    absent = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([absent if e is None else e for e in extents], element)


def _padded(source: ir.Value, high: Sequence[Size], value: ir.Value) -> ir.Value:
    if all(h == 0 for h in high if isinstance(h, int)) and all(isinstance(h, int) for h in high):
        return source
    rank, absent = len(high), ir.ShapedType.get_dynamic_size()
    known = [_static(source, a) for a in range(rank)]
    extents = [None if k is None or not isinstance(h, int) else k + h for k, h in zip(known, high, strict=True)]
    element = ir.RankedTensorType(source.type).element_type
    made = tensor.PadOp(_type(extents, element), source, [], [h for h in high if not isinstance(h, int)], [0] * rank,
                        [h if isinstance(h, int) else absent for h in high])
    block = ir.Block.create_at_start(made.regions[0], [ir.IndexType.get()] * rank)
    with ir.InsertionPoint(block):
        tensor.YieldOp(value)
    return made.result


def _expand(source: ir.Value, groups: Sequence[Sequence[int]], target: Sequence[Size]) -> ir.Value:
    if all(len(g) == 1 for g in groups):
        return source
    element, absent = ir.RankedTensorType(source.type).element_type, ir.ShapedType.get_dynamic_size()
    static = [_number(s) for s in target]
    source = _cast(source, _type([_product([static[a] for a in g]) for g in groups], element))
    return tensor.ExpandShapeOp(_type(static, element), source, _reassociation(groups),
                                [s for s in target if not isinstance(s, int)],
                                [absent if s is None else s for s in static]).result


def _transpose(value: ir.Value, order: Sequence[int], extents: Sequence[Size]) -> ir.Value:
    """Axis i of the result is axis order[i]; `extents` of `value`."""
    if list(order) == sorted(order):
        return value
    into = tensor.EmptyOp([extents[a] for a in order], ir.RankedTensorType(value.type).element_type).result
    return linalg.transpose(value, outs=[into], permutation=list(order)).results[0]


def _reassociation(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, a) for a in g]) for g in groups])


def _cast(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else tensor.CastOp(kind, value).result
