"""Ragged dims of a model: which dim counts their sequences, the model for one sequence, arguments as packed rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from tilewright.compiler.dims.places import NAME
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, argument_attributes, read_dims, reassociation, write_dims
from tilewright.passes.mlir import ir, replace_all_uses, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.program import Argument, DimInfo
from tilewright.runtime.ragged_dim import factors_of, offsets_name, total, total_name
from tilewright.runtime.shape import Atom, Expr
from tilewright.runtime.tensor import DType


def with_outer_dims(dims: Sequence[DimInfo]) -> tuple[DimInfo, ...]:
    """The dims, each ragged one with the name of the dim that it is over.

    Raises:
        IngestError: a ragged dim is over no dim of the model, or over another ragged one; or two are over different dims.
    """
    plain = [d for d in dims if not d.over]
    found = []
    for dim in dims:
        outer = [d.name for d in plain if dim.over in (d.name, *d.at)]
        if dim.over and not outer:
            raise IngestError(f"dim {dim.name} is ragged over {dim.over!r}, which is no dimension of the model; name one of "
                              f"{', '.join(d.name for d in plain) or 'none'}, which counts the sequences")
        found.append(_with_range(replace(dim, over=outer[0]), dims) if dim.over else dim)
    if len(several := sorted({d.over for d in found if d.over})) > 1:
        raise IngestError(f"the ragged dims are over {' and '.join(several)}; wanted one dim that counts the sequences of all")
    return tuple(found)


def _with_range(dim: DimInfo, dims: Sequence[DimInfo]) -> DimInfo:
    """A ragged dim with the range of its lengths, where these follow from the numbers of the sequences."""
    if not dim.length:
        return dim
    count = next(d.hi for d in dims if d.name == dim.over)
    lo, hi = Expr.parse(dim.length).bounds({dim.over: (0, max(0, count - 1))})
    if not 0 <= lo <= hi < math.inf:
        raise IngestError(f"dim {dim.name}: of={dim.length!r} is from {lo} to {hi} for {dim.over} below {count}; wanted "
                          "lengths from 0 on: change the expression")
    return replace(dim, lo=max(dim.lo, int(lo)), hi=min(dim.hi, int(hi)))


def packed_dims(dims: Sequence[DimInfo], arguments: Sequence[Argument]) -> tuple[DimInfo, ...]:
    """What a ragged program reads from its arguments: the number of sequences, the sum of the lengths of each ragged dim, and
    those of products of them.

    Args:
        arguments: packed inputs and results.
    """
    ranges = {d.name: d for d in dims}
    found = []
    for dim in dims:
        if dim.over:
            found.append(_sum_of((dim.name,), ranges))
        else:
            found.append(replace(dim, at=(), multiple_of=1) if any(d.over == dim.name for d in dims) else dim)
    products = {a.dims[0]: None for a in arguments if a.block and a.dims}
    return *found, *(_sum_of(factors_of(name), ranges) for name in products if len(factors_of(name)) > 1)


def _sum_of(names: Sequence[str], ranges: Mapping[str, DimInfo]) -> DimInfo:
    """The sum over all sequences of the product of some lengths."""
    own = [ranges[n] for n in names]
    outer = ranges[own[0].over]
    each = ((d.stored(d.lo), d.stored(d.hi), d.stored_step) for d in own)
    lo, hi, multiple = (math.prod(values) for values in zip(*each, strict=True))
    return DimInfo(total_name(*names), outer.lo * lo, outer.hi * hi, multiple)


def sums_arguments(dims: Sequence[DimInfo], inputs: Sequence[Argument]) -> tuple[Argument, ...]:
    """The inputs for the sums that are the extent of no packed input."""
    given = {a.dims[0] for a in inputs if a.ragged and a.dims}
    return tuple(Argument(d.name, DType.I64, None) for d in dims if factors_of(d.name) and d.name not in given)


def packed_argument(argument: Argument, dims: Sequence[DimInfo]) -> Argument:
    """An argument or result as a ragged program has it: the rows of all sequences along axis 0.

    Raises:
        IngestError: its sequences are no rows of one array.
    """
    ragged = {d.name: d.over for d in dims if d.over}
    outer = next(iter(ragged.values()))
    if argument.dims is None:
        if any(argument.name in d.at for d in dims if d.name in (*ragged, outer)):
            raise IngestError(f"argument {argument.name} is a scalar that a ragged dim or its outer dim is read from; read them "
                              "from the axes of an array")
        return argument
    axes = [Expr.parse(d) for d in argument.dims]
    used = frozenset().union(*(e.symbols for e in axes), frozenset())
    own = sorted(used & ragged.keys())
    if not own and outer not in used:
        return argument
    if len(own) == 1 and axes[0] == Expr.dim(outer) * Expr.dim(own[0]) and not _depends(axes[1:], own[0], outer):
        return replace(argument, dims=(total_name(own[0]), *map(str, axes[1:])), ragged=own[0])
    counts = [a for a, e in enumerate(axes) if outer in e.symbols]
    if len(counts) > 1 or any(axes[a].symbol != outer for a in counts):
        raise _no_rows(argument, f"{outer} is an axis of its own")
    rest = [e for a, e in enumerate(axes) if a not in counts]
    while rest and rest[0].constant == 1:
        rest.pop(0)
    if not own:
        if any(e.constant != 1 for e in axes[: counts[0]]):
            raise _no_rows(argument, f"{outer} is its first axis")
        return argument
    if len(own) > 1 or rest[0].symbol != own[0] or any(own[0] in e.symbols for e in rest[1:]):
        return _block(argument, rest, ragged)
    return replace(argument, dims=(total_name(own[0]), *map(str, rest[1:])), ragged=own[0])


def _block(argument: Argument, axes: Sequence[Expr], ragged: Mapping[str, str]) -> Argument:
    """An argument whose sequences are no rows: all elements of one, then those of the next."""
    own = [e.symbol for e in axes if e.symbol in ragged]
    if any(e.constant is None and e.symbol not in ragged for e in axes):
        raise _no_rows(argument, "each axis of a sequence is a ragged dim or has one extent for all")
    rest = math.prod(e.constant for e in axes if e.constant is not None)
    names = [n for n in own if n is not None]
    dims = (total_name(*names), *([str(rest)] if rest != 1 else []))
    return replace(argument, dims=dims, ragged=names[0], block=tuple(map(str, axes)))


def _depends(axes: Sequence[Expr], own: str, outer: str) -> bool:
    """Does any of the extents depend on the sequences?"""
    return any(e.symbols & {own, outer} for e in axes)


def _no_rows(argument: Argument, wanted: str) -> IngestError:
    return IngestError(f"{argument.name}: {argument.dtype.value}[{', '.join(argument.dims or ())}] cannot be rows of sequences "
                       f"one after the other; wanted an array where {wanted}: transpose it in the model")


def offsets_arguments(dims: Sequence[DimInfo]) -> tuple[Argument, ...]:
    """The inputs that say where sequences begin."""
    return tuple(Argument(offsets_name(d.name), DType.I64, (str(Expr.dim(d.over) + 1),)) for d in dims if d.over)


def one_sequence(fn: ir.Operation, dims: Sequence[DimInfo]) -> None:
    """The model of one sequence alone: the outer dim is 1, and types of constants and of reshapes say so. Offsets become
    arguments, which nothing reads yet."""
    outer: Mapping[str, int] = {d.over: 1 for d in dims if d.over}
    attributes = []
    block = fn.regions[0].blocks[0]
    for value, named in zip(block.arguments, argument_attributes(fn), strict=True):
        own = {DIMS: write_dims([e.substitute(outer) for e in read_dims(named[DIMS])])} if DIMS in named else {}
        attributes.append(ir.DictAttr.get({**named, **own}))
        if CONSTANT in named:
            _static(value, [e.constant for e in read_dims({**named, **own}[DIMS])])
    for argument in offsets_arguments(dims):
        kind = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], ir.IntegerType.get_signless(64))
        block.add_argument(kind, ir.Location.unknown())
        extent = write_dims([Expr.parse(d) for d in argument.dims or ()])
        attributes.append(ir.DictAttr.get({DIMS: extent, NAME: ir.StringAttr.get(argument.name)}))
    fn.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    views = Reshaper(fn)
    for op in walk(fn):
        if op.name == "tensor.expand_shape":
            with ir.InsertionPoint(op), op.location:
                made = views.expand(op.operands[0], reassociation(op), views.shapes.dims(op.results[0]))
                replace_all_uses(op.results[0], views.as_type(made, op.results[0].type))
    results = ir.FunctionType(ir.TypeAttr(fn.attributes["function_type"]).value).results
    fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], list(results)))


def _static(value: ir.Value, extents: Sequence[int | None]) -> None:
    """An argument becomes one of static extents, and what reads it reads a cast of it."""
    kind = ir.RankedTensorType(value.type)
    if kind.has_static_shape:
        return
    assert None not in extents
    with ir.InsertionPoint.at_block_begin(value.owner), ir.Location.unknown():
        value.set_type(ir.RankedTensorType.get([e for e in extents if e is not None], kind.element_type))
        cast = ir.Operation.create("tensor.cast", [kind], [value])
    value.replace_all_uses_except(cast.results[0], cast)


def rows_of(expr: Expr, outer: str, ragged: Mapping[str, int], sums: Collection[str] = ()) -> Expr:
    """The sum over all sequences of what `expr` is for one; at least that where lengths are multiplied and their sum is no dim.

    Args:
        ragged: the longest length of each ragged dim. sums: the sums of products that are dims.
    """
    found = Expr.of(0)
    for factors, coefficient in expr.terms:
        own = [a for a in factors if _factor(a).symbols & ragged.keys()]
        term = Expr.of(coefficient)
        for atom in factors:
            if atom not in own:
                term = term * _factor(atom)
        if all(a.op == "dim" for a in own) and (whole := total_name(*(a.name for a in own))) in sums:
            found = found + term * Expr.dim(whole)
            continue
        first = next((a for a in own if a.op == "dim"), None)
        term = term * (Expr.dim(outer) if first is None else total(first.name))
        if first is not None:
            own.remove(first)
        for atom in own:
            most = _factor(atom).bounds({n: (0, hi) for n, hi in ragged.items()})[1]
            term = term * int(most)
        found = found + term
    return found


def _factor(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))
