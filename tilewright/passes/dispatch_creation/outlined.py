"""Reading an outlined module back into Workloads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.canonical_spec import KEY, KIND
from tilewright.passes.analysis.codes import Codes
from tilewright.passes.analysis.contraction import Contraction, is_contraction, product_of
from tilewright.passes.analysis.loop_axes import LoopAxes, attention_symbols, factors_of, has_loops, loop_symbols
from tilewright.passes.analysis.op_kinds import arithmetic, body_names, is_row_reduction, is_transcendental, scatters
from tilewright.passes.analysis.parts import parts_of
from tilewright.passes.analysis.pools import Pools
from tilewright.passes.analysis.product_rows import ProductRows
from tilewright.passes.analysis.whole_rows import WholeRows
from tilewright.passes.analysis.window_reduction import WindowReduction
from tilewright.passes.analysis.windows import argument_windows, argument_zeros
from tilewright.passes.dispatch_creation.region_function import PANEL, UNIT
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import (
    CONSTANT,
    DIMS,
    PREDICATE,
    SEGMENTS,
    WHOLE_TILES,
    SymbolicShapes,
    argument_attributes,
    integer,
    read_dims,
)
from tilewright.passes.mlir import functions, ir, operations, owner, walk
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.workload import Axes, Factor, Kind, Loop, Operand, Window, Workload
from tilewright.runtime.errors import PassError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_OF_PRODUCTS = (Kind.CONTRACTION, Kind.PRODUCT_ROWS)


def workloads_of(module: ir.Module) -> dict[str, Workload]:
    """The Workload of each outlined function, by the function's name."""
    return {
        (name := ir.StringAttr(fn.attributes["sym_name"]).value): workload_of(fn, name)
        for fn in functions(module)
        if KEY in fn.attributes
    }


def predicated(workload: Workload) -> Workload:
    """The same workload with kernels that take the address of a byte and do nothing where it is 0. GPU only."""
    return replace(workload, ir=predicated_ir(workload.ir))


def predicated_ir(text: str) -> str:
    """The IR of a workload whose kernels go by a byte, in the current context."""
    return _marked(text, PREDICATE)


def segmented(workload: Workload, segments: Segments) -> Workload:
    """The same workload with kernels that serve all sequences of a batch in one launch. GPU only; in the current context."""
    module = ir.Module.parse(workload.ir)
    next(functions(module)).attributes[SEGMENTS] = ir.StringAttr.get(str(segments))
    key = hashlib.sha256(f"{workload.key} {segments}".encode()).hexdigest()
    return replace(workload, key=key, ir=str(module), segments=str(segments))


def in_whole_tiles(workload: Workload) -> Workload:
    """The same workload with kernels that have code of their own, without masks, for tiles that no edge cuts. GPU only; in the
    current context."""
    key = hashlib.sha256(f"{workload.key} {WHOLE_TILES}".encode()).hexdigest()
    return replace(workload, key=key, ir=_marked(workload.ir, WHOLE_TILES))


def _marked(text: str, attribute: str) -> str:
    """The IR of a workload whose function has a unit attribute more."""
    module = ir.Module.parse(text)
    next(functions(module)).attributes[attribute] = ir.UnitAttr.get()
    return str(module)


def workload_of(fn: ir.Operation, name: str) -> Workload:
    shapes = SymbolicShapes(fn)
    kind = Kind(ir.StringAttr(fn.attributes[KIND]).value)
    attention = Attention.of(operations(fn.regions[0].blocks[0])[:-1], shapes) if kind is Kind.ATTENTION else None
    reached = _axes(fn, kind, shapes, attention)
    coded = _codes(fn, kind)
    units: dict[ir.Value, int | None] = {}
    inputs, dims, scalars = [], [], []
    for value, named in zip(fn.regions[0].blocks[0].arguments, argument_attributes(fn), strict=True):
        if isinstance(value.type, ir.RankedTensorType):
            inputs.append(replace(_operand(value.type, named, reached.axes(value)), codes=coded.get(value, "")))
            units[value] = inputs[-1].unit_axis
        elif DIMS in named:
            dims.append(str(read_dims(named[DIMS])[0]))
        else:
            scalars.append(DType(str(value.type)))
    body = operations(fn.regions[0].blocks[0])
    results = [{n.name: n.attr for n in ir.DictAttr(a)} for a in fn.attributes["res_attrs"]]
    outputs = [_operand(v.type, named, reached.axes(v)) for v, named in zip(body[-1].operands, results, strict=True)]
    inner = [op.name for op in walk(fn)]
    return Workload(
        key=ir.StringAttr(fn.attributes[KEY]).value,
        name=name,
        kind=kind,
        ir=_standalone(fn, name),
        dims=tuple(dims),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        loops=loops_of(fn, kind, shapes, attention),
        flops=_flops(body, shapes),
        bytes=_bytes([*inputs, *outputs]),
        scalars=tuple(scalars),
        windows=_windows(fn, kind, shapes),
        factors=_factors(fn, kind, attention, units),
        transcendentals=sum(map(is_transcendental, inner)),
        accumulator=_accumulator(fn, kind),
        part_rows=next((p.size for op in body if (p := parts_of(op)) is not None), 0) if kind is Kind.ROWS else 0,
        reductions=sum(iterator_kinds(op).count("reduction") for op in body if has_loops(op)),
        kept=_kept(fn, shapes) if kind is Kind.PRODUCT_ROWS else None,
    )


def root_of(fn: ir.Operation, kind: Kind) -> ir.Operation:
    """The operation that drives the loop nest of a region; for POINTWISE the producer of the first result."""
    body = operations(fn.regions[0].blocks[0])
    linalg_ops = [op for op in body if op.name.startswith("linalg.") and op.name != "linalg.fill"]
    if kind in (*_OF_PRODUCTS, Kind.ATTENTION):
        return next(op for op in linalg_ops if is_contraction(op))
    if kind is Kind.ROWS:
        rows = [op for op in linalg_ops if is_row_reduction(op) and "reduction" in iterator_kinds(op)]
        return [*rows, *(op for op in linalg_ops if parts_of(op) is not None)][0]
    if kind is Kind.GENERIC:
        return next(op for op in linalg_ops if "reduction" in iterator_kinds(op) or scatters(op))
    made = owner(body[-1].operands[0])
    if made is None:
        raise PassError("a region returns one of its arguments")
    return made


def loops_of(fn: ir.Operation, kind: Kind, shapes: SymbolicShapes, attention: Attention | None) -> tuple[Loop, ...]:
    """Loops of the root with their roles, in the root's order; of attention those of the scores, then the value columns."""
    if attention is not None:
        return tuple(Loop(role, extent) for role, extent in attention.roles())
    root = root_of(fn, kind)
    if kind is Kind.POINTWISE:
        return tuple(Loop("p", e) for e in shapes.dims(root.results[0]))
    extents = loop_extents(root, shapes)
    if kind in _OF_PRODUCTS:
        roles = Contraction.of(root, shapes).roles()
    else:
        names = {"parallel": "row", "reduction": "col"} if kind is Kind.ROWS else {"parallel": "p", "reduction": "r"}
        parts = parts_of(root) if kind is Kind.ROWS else None
        roles = [names[k] if parts is None else "row" if d in parts.rows else "col" for d, k in enumerate(iterator_kinds(root))]
    return tuple(Loop(role, extent) for role, extent in zip(roles, extents, strict=True))


def _codes(fn: ir.Operation, kind: Kind) -> dict[ir.Value, str]:
    """Argument -> format, of weights in few bits that the root of a contraction multiplies."""
    if kind not in _OF_PRODUCTS:
        return {}
    made = [owner(v) for v in list(root_of(fn, kind).operands)[:2]]
    found = {codes.op.operands[codes.codes]: codes.text for op in made if (codes := Codes.of(op)) is not None}
    for pools in (p for op in made if (p := Pools.of(op)) is not None):
        found |= {pools.op.operands[book.index]: pools.text for book in pools.books}
        for rows in (r for v in list(root_of(fn, kind).operands)[:2] if (r := WholeRows.behind(v)) is not None):
            bits = rows.bits if isinstance(rows.bits, int) else SymbolicShapes(fn).expr(rows.bits)
            found[rows.op.operands[rows.codes]] = f"a{bits}{';zeros' if rows.zero_place is None else ''}"
    return found


def _operand(type_: ir.Type, named: dict[str, ir.Attribute], axes: Axes) -> Operand:
    unit = integer(named[UNIT]) if UNIT in named else None
    return Operand(DType(str(ir.RankedTensorType(type_).element_type)), read_dims(named[DIMS]), unit, CONSTANT in named,
                   integer(named[PANEL]) if PANEL in named else 0, argument_zeros(named), axes)


def _axes(fn: ir.Operation, kind: Kind, shapes: SymbolicShapes, attention: Attention | None) -> LoopAxes:
    """Of every tensor that the loops of the root reach."""
    found = LoopAxes(operations(fn.regions[0].blocks[0])[:-1], shapes)
    if attention is not None:
        found.seed_attention(attention)
    elif kind is Kind.POINTWISE:
        found.seed_result(root_of(fn, kind).results[0])
    else:
        found.seed_root(root_of(fn, kind))
    found.spread()
    return found


def _factors(fn: ir.Operation, kind: Kind, attention: Attention | None,
             units: Mapping[ir.Value, int | None]) -> tuple[Factor, ...]:
    if kind in _OF_PRODUCTS:
        root = root_of(fn, kind)
        return factors_of(root, loop_symbols(root), units)
    if attention is not None:
        scores, mixed = attention_symbols(attention)
        return (*factors_of(attention.scores.op, scores, units), *factors_of(attention.mixed.op, mixed, units))
    return ()


def _accumulator(fn: ir.Operation, kind: Kind) -> DType | None:
    product = product_of(root_of(fn, kind)) if kind in _OF_PRODUCTS else None
    return None if product is None else DType(str(product.accumulator))


def _kept(fn: ir.Operation, shapes: SymbolicShapes) -> DType | None:
    """The type of the rows that a product keeps; None where no kernel keeps them, which its family says when it is built."""
    body = operations(fn.regions[0].blocks[0])
    try:
        return DType(str(ProductRows.of(body[:-1], list(body[-1].operands), shapes).element))
    except ValueError:
        return None


def _windows(fn: ir.Operation, kind: Kind, shapes: SymbolicShapes) -> tuple[Window, ...]:
    """Of the first operand of a contraction that has some; of a reduction over windows of an image."""
    if kind is Kind.GENERIC:
        body = operations(fn.regions[0].blocks[0])
        try:
            return WindowReduction.of(body[:-1], list(body[-1].operands), shapes).windows
        except ValueError:
            return ()
    if kind is not Kind.CONTRACTION:
        return ()
    root = root_of(fn, kind)
    every = (argument_windows(fn, root, which, shapes) for which in range(len(root.operands) - 1))
    return next((found for found in every if found), ())


def _flops(body: Sequence[ir.Operation], shapes: SymbolicShapes) -> Expr:
    """Scalar operations of each linalg op, its body once per point of its loop nest."""
    total = Expr.of(0)
    for op in body:
        if op.name.startswith("linalg.") and op.name != "linalg.fill" and len(body_names(op)):
            points = Expr.of(arithmetic(op))
            for extent in loop_extents(op, shapes):
                points = points * extent
            total = total + points
    return total


def _bytes(operands: Sequence[Operand]) -> Expr:
    total = Expr.of(0)
    for operand in operands:
        size = Expr.of(operand.dtype.bytes)
        for extent in operand.dims:
            size = size * extent
        total = total + size
    return total


def _standalone(fn: ir.Operation, name: str) -> str:
    """A module of its own whose one function is called `workload`."""
    module = ir.Module.create(loc=ir.Location.unknown(fn.context))
    with ir.InsertionPoint(module.body):
        copy = fn.clone().operation
    copy.attributes["sym_name"] = ir.StringAttr.get("workload", fn.context)
    for attribute in (KEY, "sym_visibility"):
        if attribute in copy.attributes:
            del copy.attributes[attribute]
    return str(module)
