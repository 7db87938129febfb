"""Binding dimension names to the places of a model's arguments.

Names come from the argument attribute `tw.dims`, from `Dim(at=[...])`, or from a place: who gives a range to `input_ids.1`
(or `arg0.1`) gets the dimension `input_ids_1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.compiler.dims.dim_equations import Equation, equations
from tilewright.compiler.dims.dim_solver import Solution, solve
from tilewright.compiler.dims.places import Places, is_dim_name
from tilewright.compiler.dims.ragged_dims import with_outer_dims
from tilewright.passes.linalg.symbolic import (
    CONSTANT,
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
from tilewright.runtime.ragged_dim import Ragged
from tilewright.runtime.shape import Dim, DimLike, Expr, ShapeRange
from tilewright.runtime.wording import Wording, ranges_to_paste

DynamicDims = Mapping[str, DimLike]


@dataclass(frozen=True)
class BoundDims:
    """The dims of a model, and the equations that neither the names nor the model's structure settle."""

    dims: tuple[DimInfo, ...]
    open: tuple[Equation, ...]


def bind_dims(fn: ir.Operation, dynamic_dims: DynamicDims, defaults: Mapping[str, Dim] | None = None) -> BoundDims:
    """Write `tw.dims` and `tw.ranges` on the function.

    Args:
        defaults: ranges of the names in the model's `tw.dims` that `dynamic_dims` does not mention.
    Raises:
        IngestError: a name fits no dimension, a dimension has no name or range, or sizes contradict each other.
    """
    places = Places.of(fn)
    _check_attributes(fn, places)
    declared = _declared(fn, places)
    own = frozenset().union(*(e.symbols for e in declared.values()), frozenset())
    given = _Given.of(dict(ShapeRange.of(dynamic_dims)), places, own)
    _declare_at(declared, given, places)
    names = sorted(frozenset().union(*(e.symbols for e in declared.values()), frozenset()))
    if clash := [n for n in names if n in places.extents]:
        raise IngestError(f"tw.dims uses {clash[0]!r} as a name; it is the default name of a place: use another")
    extents = places.extents
    _write(fn, {p: Expr.dim(p) if size is None else Expr.of(size) for p, size in extents.items()}, ShapeRange(()))
    shapes = SymbolicShapes(fn)
    facts = equations(fn, shapes)
    solution = solve(names, places, declared, facts)
    fallback = {n: d for n, d in {**dict(read_ranges(fn)), **(defaults or {})}.items() if n in names}
    ranges = {**fallback, **{n: d for n, d in given.named.items() if n in names}}
    scalars = {p for p in places.dynamic if "_" not in p} - _used_as_extents(fn, shapes, facts) - declared.keys()
    _range_places(solution, given, ranges, scalars)
    rename = {s: places.dim_name(s) for s in ranges if s in extents}
    _match_last(solution, given, ranges, rename, scalars)
    ranges = {rename.get(n, n): d for n, d in ranges.items()}
    final = {
        p: solution.reduce(Expr.dim(p)).substitute({s: Expr.dim(n) for s, n in rename.items()})
        if size is None
        else Expr.of(size)
        for p, size in extents.items()
        if p not in scalars
    }
    used = frozenset().union(*(e.symbols for e in final.values()), frozenset())
    ordered = [n for n in (*ranges, *sorted(used)) if n in used]
    infos = with_outer_dims(tuple(_info(n, ranges[n], final, places) for n in dict.fromkeys(ordered)))
    _write(fn, final, ShapeRange(tuple((i.name, i.dim()) for i in infos)))
    substitution = {s: Expr.dim(n) for s, n in rename.items()}
    left = tuple(
        Equation(e.left.substitute(substitution), e.right.substitute(substitution), e.reason) for e in solution.open
    )
    return BoundDims(infos, left)


@dataclass(frozen=True)
class _Given:
    """The caller's dims: those under a name of their own, and those under a place, as written -> its symbol."""

    named: Mapping[str, Dim]
    placed: Mapping[str, Dim]

    @staticmethod
    def of(dims: Mapping[str, Dim], places: Places, own: frozenset[str]) -> _Given:
        """own: the names in the model's `tw.dims`, which count before places."""
        placed = {n: d for n, d in dims.items() if n not in own and not d.at and places.is_place(n)}
        for name in (n for n in dims if n not in placed):
            if not is_dim_name(name):
                raise IngestError(f"{name!r} is not a dimension name and no place of the arguments {', '.join(places.names)}; "
                                  f"use an identifier such as T, or a place such as {(*places.names, 'arg0')[0]}.0")
        return _Given({n: d for n, d in dims.items() if n not in placed}, placed)


def _by_argument(places: Iterable[str]) -> dict[int, list[str]]:
    """Number of an argument -> its places, in order."""
    found: dict[int, list[str]] = {}
    for place in places:
        found.setdefault(int(place[len("arg"):].partition("_")[0]), []).append(place)
    return found


def _check_attributes(fn: ir.Operation, places: Places) -> None:
    """IngestError where the model's own `tw.dims` or `tw.ranges` have another form."""
    for name, named in zip(places.names, argument_attributes(fn), strict=True):
        if DIMS in named and not (isinstance(named[DIMS], ir.ArrayAttr)
                                  and all(isinstance(a, ir.StringAttr | ir.IntegerAttr) for a in ir.ArrayAttr(named[DIMS]))):
            raise IngestError(f"tw.dims = {named[DIMS]} on argument {name}: wanted a name, size or expression for each axis; "
                              'write it as ["T", 768]')
    ranges = fn.attributes[RANGES] if RANGES in fn.attributes else ir.DictAttr.get({})
    if not (isinstance(ranges, ir.DictAttr) and all(_is_range(n.attr) for n in ir.DictAttr(ranges))):
        raise IngestError(f"{RANGES} = {ranges}: wanted [lo, hi, multiple] for each dim; write it as {{T = [1, 128, 1]}}")


def _is_range(attribute: ir.Attribute) -> bool:
    if not isinstance(attribute, ir.ArrayAttr):
        return False
    numbers = list(ir.ArrayAttr(attribute))
    return len(numbers) == 3 and all(isinstance(a, ir.IntegerAttr) for a in numbers)


def _declared(fn: ir.Operation, places: Places) -> dict[str, Expr]:
    """What the model's own tw.dims say about its places."""
    found: dict[str, Expr] = {}
    own_places = _by_argument(places.extents)
    for i, named in enumerate(argument_attributes(fn)):
        if DIMS not in named:
            continue
        own = own_places.get(i, [])
        dims = read_dims(named[DIMS])
        if len(dims) != len(own):
            raise IngestError(f"tw.dims = {named[DIMS]} on argument {places.names[i]} has {len(dims)} entries; its type has "
                              f"{len(own)} axes")
        for place, dim in zip(own, dims, strict=True):
            size = places.extents[place]
            if size is None:
                found[place] = dim
            elif dim != Expr.of(size):
                raise IngestError(f"tw.dims says {places.text(place)} is {dim}; its type says {size}")
    return found


def _declare_at(declared: dict[str, Expr], given: _Given, places: Places) -> None:
    for name, dim in given.named.items():
        for place in dim.at or ():
            symbol = places.find(place)
            if symbol is None or places.extents[symbol] is not None:
                raise IngestError(
                    f"dimension {name} is declared at {place!r}, which is no dynamic axis or integer scalar of "
                    f"@main; name one of {', '.join(map(places.text, places.dynamic)) or 'none'}"
                )
            value = Expr.dim(name)
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


def _range_places(solution: Solution, given: _Given, ranges: dict[str, Dim], scalars: set[str]) -> None:
    """Add the ranges that are given to places, under the symbols that the places stand for."""
    settled: dict[str, Dim] = {n: d for n, d in given.named.items() if n in ranges}
    for name, dim in given.placed.items():
        place = solution.known.find(name)
        if place is None or place not in solution.places:
            size = solution.known.extents.get(place or "")
            why = "" if size is None else f": its extent is always {size}, so leave it out"
            raise IngestError(
                f"{name} is no dynamic axis or integer scalar of @main{why}. The dimensions are:\n"
                + _listing(solution, ranges, scalars)
            )
        symbol = solution.places[place].symbol
        if symbol is None:
            raise IngestError(
                f"{name} is {solution.shown(solution.places[place])} in this model, not a dimension of its own: leave it out"
            )
        known = settled.setdefault(symbol, dim)
        if (known.lo, known.hi) != (dim.lo, dim.hi):
            raise IngestError(
                f"{name} and {solution.known.text(symbol)} are one dimension ({', '.join(_at(solution, symbol))}) and have "
                f"different ranges {dim} and {known}: give one range"
            )
        ranges[symbol] = known
        scalars.discard(place)


def _match_last(
    solution: Solution, given: _Given, ranges: dict[str, Dim], rename: dict[str, str], scalars: set[str]
) -> None:
    """The one name left over names the one dimension left over; anything else is an error that lists all of them."""
    free = frozenset().union(*(e.symbols for p, e in solution.places.items() if p not in scalars), frozenset())
    missing = sorted(s for s in free if s not in ranges)
    over = [n for n in given.named if n not in ranges]
    if len(missing) == len(over) == 1 and missing[0] not in solution.names:
        rename[missing[0]] = over[0]
        ranges[over[0]] = given.named[over[0]]
        return
    unbound = [n for n in ranges if n in given.named and n not in free]
    if missing or over or unbound:
        said = [f"no range is given for {', '.join(map(solution.known.text, missing))}"] if missing else []
        said += [f"{', '.join(over + unbound)} fits no dimension by itself"] if over or unbound else []
        raise IngestError(f"{'; '.join(said)}. The dimensions of @main are:\n" + _listing(solution, ranges, scalars))


def _at(solution: Solution, symbol: str) -> list[str]:
    return solution.places_of(Expr.dim(symbol))


def _listing(solution: Solution, ranges: Mapping[str, Dim], scalars: set[str]) -> Wording:
    """Every dimension with its places and range, and ranges to paste."""
    free = sorted(frozenset().union(*(e.symbols for p, e in solution.places.items() if p not in scalars), frozenset()))
    lines, paste, written = [], [], solution.known.text
    for symbol in free:
        known = ranges.get(symbol)
        lines.append(
            f"  {written(symbol):12} at {', '.join(_at(solution, symbol)) or '-':32} range {known or 'not given'}"
        )
        paste.append((written(symbol), known.lo if known else 1, known.hi if known else 128))
    return "\n".join([*lines, "paste and edit: "]) + ranges_to_paste(paste)


def _info(name: str, dim: Dim, extents: Mapping[str, Expr], places: Places) -> DimInfo:
    at = tuple(places.text(p) for p, e in extents.items() if e.symbol == name)
    if not at and not any(e.linear is not None and name in e.symbols for e in extents.values()):
        held = ", ".join(f"{places.text(p)} = {e}" for p, e in extents.items() if name in e.symbols)
        raise IngestError(
            f"dimension {name} cannot be read from an argument ({held}); give an axis or an index argument that is "
            f"{name} itself, or a multiple of it"
        )
    return DimInfo(name, dim.lo, dim.hi, dim.multiple_of, dim.samples, at,
                   *((dim.over, dim.length, dim.align) if isinstance(dim, Ragged) else ()))


def _write(fn: ir.Operation, extents: Mapping[str, Expr], ranges: ShapeRange) -> None:
    attributes = []
    places, arguments = _by_argument(extents), list(fn.regions[0].blocks[0].arguments)
    for i, named in enumerate(argument_attributes(fn)):
        own = [extents[p] for p in places.get(i, [])]
        tensor = isinstance(arguments[i].type, ir.RankedTensorType)
        kept = {k: v for k, v in named.items() if k not in (DIMS, CONSTANT)}  # bound is what this compile binds, later
        attributes.append(ir.DictAttr.get({**kept, DIMS: write_dims(own)} if own or tensor else kept))
    fn.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    if ranges:
        fn.attributes[RANGES] = write_ranges(ranges)
