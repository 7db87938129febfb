"""Binding dimension names to the places of a model's arguments.

Names come from the argument attribute `tw.dims`, from `Dim(at=[...])`, or from the default name of a place: users write
`arg0.1` (axis 1 of argument 0) or `arg2` (a scalar), inside expressions the same dimension is the symbol `arg0_1`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.compiler.dims.dim_equations import Equation, equations
from tilewright.compiler.dims.dim_solver import Solution, place_text, solve
from tilewright.passes.linalg.symbolic import (
    DIMS,
    RANGES,
    SymbolicShapes,
    argument_attributes,
    read_dims,
    read_ranges,
    write_dims,
    write_ranges,
)
from tilewright.passes.mlir import ir, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.program import DimInfo
from tilewright.runtime.shape import Dim, Expr, ShapeRange

DynamicDims = Mapping[str, "Dim | tuple[int, int]"]
_PLACE = re.compile(r"arg(\d+)(?:[._](\d+))?$")
_RESERVED = ("threads", "min", "max", "mod", "floordiv", "ceildiv")


@dataclass(frozen=True)
class BoundDims:
    """The dims of a model, and the equations that neither the names nor the model's structure settle."""

    dims: tuple[DimInfo, ...]
    open: tuple[Equation, ...]


def bind_dims(fn: ir.Operation, dynamic_dims: DynamicDims) -> BoundDims:
    """Write `tw.dims` and `tw.ranges` on the function.

    Raises:
        IngestError: a name fits no dimension, a dimension has no name or range, or sizes contradict each other.
    """
    given = {_checked(n): d if isinstance(d, Dim) else Dim(*d) for n, d in dynamic_dims.items()}
    axes = _places(fn)
    declared = _declared(fn, axes)
    places = [p for p, size in axes.items() if size is None]
    _declare_at(declared, given, places)
    names = sorted(frozenset().union(*(e.symbols for e in declared.values())))
    if clash := [n for n in names if n in places]:
        raise IngestError(f"tw.dims uses {clash[0]!r} as a name; it is the default name of a place: use another")
    _write(fn, {p: Expr.dim(p) if size is None else Expr.of(size) for p, size in axes.items()}, ShapeRange(()))
    shapes = SymbolicShapes(fn)
    facts = equations(fn, shapes)
    solution = solve(names, places, declared, facts)
    ranges = {**dict(read_ranges(fn)), **{n: d for n, d in given.items() if n in names}}
    scalars = {p for p in places if "_" not in p} - _used_as_extents(fn, shapes, facts) - declared.keys()
    rename = _default_names(solution, given, ranges, scalars)
    _match_last(solution, given, ranges, rename, scalars)
    final = {
        p: solution.reduce(Expr.dim(p)).substitute({s: Expr.dim(n) for s, n in rename.items()})
        if size is None
        else Expr.of(size)
        for p, size in axes.items()
        if p not in scalars
    }
    used = frozenset().union(*(e.symbols for e in final.values()), frozenset())
    ordered = [n for n in (*ranges, *sorted(used)) if n in used]
    infos = tuple(_info(n, ranges[n], final) for n in dict.fromkeys(ordered))
    _write(fn, final, ShapeRange(tuple((i.name, i.dim()) for i in infos)))
    substitution = {s: Expr.dim(n) for s, n in rename.items()}
    left = tuple(
        Equation(e.left.substitute(substitution), e.right.substitute(substitution), e.reason) for e in solution.open
    )
    return BoundDims(infos, left)


def _checked(name: str) -> str:
    if _PLACE.match(name):
        return name
    if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
        raise IngestError(f"{name!r} is not a dimension name: use an identifier such as T, or a place such as arg0.1")
    return name


def _symbol(place: str) -> str:
    return place.replace(".", "_")


def _places(fn: ir.Operation) -> dict[str, int | None]:
    """Symbol of every tensor axis -> its static extent or None, and of every scalar that may be a dimension -> None."""
    found: dict[str, int | None] = {}
    for i, argument in enumerate(fn.regions[0].blocks[0].arguments):
        if isinstance(argument.type, ir.RankedTensorType):
            t = ir.RankedTensorType(argument.type)
            found |= {f"arg{i}_{a}": None if t.is_dynamic_dim(a) else t.get_dim_size(a) for a in range(t.rank)}
        elif str(argument.type) in ("index", "i64", "i32"):
            found[f"arg{i}"] = None
    return found


def _by_argument(places: Iterable[str]) -> dict[int, list[str]]:
    """Number of an argument -> its places, in order."""
    found: dict[int, list[str]] = {}
    for place in places:
        found.setdefault(int(place[len("arg"):].partition("_")[0]), []).append(place)
    return found


def _declared(fn: ir.Operation, axes: Mapping[str, int | None]) -> dict[str, Expr]:
    """What the model's own tw.dims say about its places."""
    found: dict[str, Expr] = {}
    places = _by_argument(axes)
    for i, named in enumerate(argument_attributes(fn)):
        if DIMS not in named:
            continue
        own = places.get(i, [])
        dims = read_dims(named[DIMS])
        if len(dims) != len(own):
            raise IngestError(
                f"tw.dims = {named[DIMS]} on argument {i} has {len(dims)} entries; its type has {len(own)} axes"
            )
        for place, dim in zip(own, dims, strict=True):
            size = axes[place]
            if size is None:
                found[place] = dim
            elif dim != Expr.of(size):
                raise IngestError(f"tw.dims says {place_text(place)} is {dim}; its type says {size}")
    return found


def _declare_at(declared: dict[str, Expr], given: Mapping[str, Dim], places: list[str]) -> None:
    for name, dim in given.items():
        for place in dim.at or ():
            symbol = _symbol(place)
            if symbol not in places:
                raise IngestError(
                    f"dimension {name} is declared at {place!r}, which is no dynamic axis or integer scalar of "
                    f"@main; those are {', '.join(map(place_text, places)) or 'none'}"
                )
            value = Expr.dim(_symbol(name))
            if declared.setdefault(symbol, value) != value:
                raise IngestError(f"{place} is declared both as {declared[symbol]} and as {name}")


def _used_as_extents(fn: ir.Operation, shapes: SymbolicShapes, facts: list[Equation]) -> set[str]:
    used: set[str] = set()
    for fact in facts:
        used |= fact.left.symbols | fact.right.symbols
    for op in walk(fn):
        for value in op.results:
            if isinstance(value.type, ir.RankedTensorType):
                try:
                    dims = shapes.dims(value)
                except ValueError:
                    continue
                used.update(*(d.symbols for d in dims))
    return used


def _default_names(
    solution: Solution, given: Mapping[str, Dim], ranges: dict[str, Dim], scalars: set[str]
) -> dict[str, str]:
    """Ranges for the dims that are named by a place; returns the (identity) renaming of their symbols."""
    rename: dict[str, str] = {}
    for name, dim in given.items():
        if not _PLACE.match(name) or dim.at:
            continue
        place = _symbol(name)
        if place not in solution.places:
            raise IngestError(
                f"{name} is no dynamic axis or integer scalar of @main\n{_listing(solution, ranges, scalars)}"
            )
        symbol = solution.places[place].symbol
        if symbol is None:
            raise IngestError(
                f"{name} is {solution.places[place]} in this model, not a dimension of its own: leave it out"
            )
        if symbol in ranges and (ranges[symbol].lo, ranges[symbol].hi) != (dim.lo, dim.hi):
            raise IngestError(
                f"{name} and {place_text(symbol)} are one dimension ({', '.join(_at(solution, symbol))}) and have "
                f"different ranges {dim} and {ranges[symbol]}: give one range"
            )
        ranges.setdefault(symbol, dim)
        scalars.discard(place)
        rename.setdefault(symbol, symbol)
    return rename


def _match_last(
    solution: Solution, given: Mapping[str, Dim], ranges: dict[str, Dim], rename: dict[str, str], scalars: set[str]
) -> None:
    """The one name left over names the one dimension left over; anything else is an error that lists all of them."""
    free = frozenset().union(*(e.symbols for p, e in solution.places.items() if p not in scalars), frozenset())
    missing = sorted(s for s in free if s not in ranges)
    over = [n for n in given if n not in ranges and _symbol(n) not in ranges and not _PLACE.match(n)]
    if len(missing) == len(over) == 1 and missing[0] not in solution.names:
        rename[missing[0]] = over[0]
        ranges[over[0]] = given[over[0]]
        return
    unbound = [n for n in ranges if n in given and n not in free]
    if missing or over or unbound:
        said = [f"no range is given for {', '.join(map(place_text, missing))}"] if missing else []
        said += [f"{', '.join(over + unbound)} fits no dimension by itself"] if over or unbound else []
        raise IngestError(f"{'; '.join(said)}. The dimensions of @main are:\n{_listing(solution, ranges, scalars)}")


def _at(solution: Solution, symbol: str) -> list[str]:
    return solution.places_of(Expr.dim(symbol))


def _listing(solution: Solution, ranges: Mapping[str, Dim], scalars: set[str]) -> str:
    """Every dimension with its places and range, and a dynamic_dims to paste."""
    free = sorted(frozenset().union(*(e.symbols for p, e in solution.places.items() if p not in scalars), frozenset()))
    lines, paste = [], []
    for symbol in free:
        known = ranges.get(symbol)
        lines.append(
            f"  {place_text(symbol):12} at {', '.join(_at(solution, symbol)) or '-':32} range {known or 'not given'}"
        )
        paste.append(f'"{place_text(symbol)}": tw.Dim({known.lo if known else 1}, {known.hi if known else 128})')
    return "\n".join([*lines, f"paste and edit: dynamic_dims={{{', '.join(paste)}}}"])


def _info(name: str, dim: Dim, places: Mapping[str, Expr]) -> DimInfo:
    at = tuple(place_text(p) for p, e in places.items() if e.symbol == name)
    if not at:
        held = ", ".join(f"{place_text(p)} = {e}" for p, e in places.items() if name in e.symbols)
        raise IngestError(
            f"dimension {name} cannot be read from an argument ({held}); give an axis or an index argument that is "
            f"{name} itself"
        )
    return DimInfo(name, dim.lo, dim.hi, dim.multiple_of, dim.samples, at)


def _write(fn: ir.Operation, extents: Mapping[str, Expr], ranges: ShapeRange) -> None:
    attributes = []
    places, arguments = _by_argument(extents), list(fn.regions[0].blocks[0].arguments)
    for i, named in enumerate(argument_attributes(fn)):
        own = [extents[p] for p in places.get(i, [])]
        tensor = isinstance(arguments[i].type, ir.RankedTensorType)
        kept = {k: v for k, v in named.items() if k != DIMS}
        attributes.append(ir.DictAttr.get({**kept, DIMS: write_dims(own)} if own or tensor else kept))
    fn.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    if ranges:
        fn.attributes[RANGES] = write_ranges(ranges)
