"""Inputs and outputs of an ExportedProgram: names, nesting, dims of the inputs with their ranges."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.torch.sizes import DataDependentSizeError, Sizes
from tilewright.compiler.ops.graph import Graph
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.structure import NONE, Structure
from tilewright.runtime.shape import Dim, Expr

UNBOUNDED = 1 << 16  # the largest value of a dim whose program states no bound


@dataclass(frozen=True)
class ProgramDims:
    """names: the dim of every symbol of the inputs' shapes. ranges: dim -> its range. derived: what symbols are that are no dims
    by themselves, such as 2*h."""

    names: Mapping[sympy.Symbol, str]
    ranges: Mapping[str, Dim]
    derived: Mapping[sympy.Symbol, Expr] = field(default_factory=dict)


def program_dims(program: ExportedProgram, given: Sequence[Mapping[int, Expr]], wanted: Mapping[str, Dim]) -> ProgramDims:
    """Names the symbols of a program's inputs.

    Args:
        given: for every leaf of the inputs: axis -> the size that the user gave it: a dim, or a form of one such as 2*h.
        wanted: ranges that take the place of the program's own, by name or by place, "input_ids.1".

    A dim without a name is called after the first input that has it, `input_ids_1`. A program that was traced for sizes from 2
    on is right for 1, too: 2 is where torch.export lets every dim begin that has no other bound.
    """
    names: dict[sympy.Symbol, str] = {}
    derived: dict[sympy.Symbol, Expr] = {}
    inputs = user_placeholders(program)
    sizes = [(number, axis, size) for number, node in enumerate(inputs) for axis, size in enumerate(_sizes(node))]
    for number, axis, size in sizes:
        symbols = sorted(size.free_symbols, key=str)
        if len(symbols) == 1 and number < len(given) and axis in given[number]:
            wished = given[number][axis]
            names.setdefault(symbols[0], next(iter(wished.symbols)))
            if wished.symbol is None and isinstance(size, sympy.Symbol):
                derived[size] = wished
    extra = _solved(sizes, given, names, derived, wanted)
    unnamed = {size for _, _, size in sizes if isinstance(size, sympy.Symbol)} - names.keys() - derived.keys()
    if unnamed and names:
        derived.update(_by_equations(program, unnamed, names, wanted))
    for number, axis, size in sizes:
        if isinstance(size, sympy.Symbol) and size not in names and size not in derived:
            names[size] = _free(f"{inputs[number].name}_{axis}", {*names.values(), *(n.name for n in inputs)})
    for _, _, size in sizes:
        for symbol in sorted(size.free_symbols - derived.keys(), key=str):
            names.setdefault(symbol, _free(str(symbol), names.values()))
    places = {f"{argument}.{axis}": size for number, axis, size in sizes for argument in (inputs[number].name, f"arg{number}")}
    asked = {size: wanted[place] for place, size in places.items() if place in wanted}
    ranges = {name: wanted.get(name) or asked.get(symbol) or _range(program, symbol) for symbol, name in names.items()}
    return ProgramDims(names, {**ranges, **extra}, derived)


def _solved(
    sizes: Sequence[tuple[int, int, Any]], given: Sequence[Mapping[int, Expr]], names: Mapping[sympy.Symbol, str],
    derived: dict[sympy.Symbol, Expr], wanted: Mapping[str, Dim]
) -> dict[str, Dim]:  # fmt: skip
    """Dims of the user that torch.export has replaced, as the past of a cache by mask - step: the symbol that it kept, which the
    user has not named, is derived from them. Their ranges."""
    found: dict[str, Dim] = {}
    for number, axis, size in sizes:
        wished = given[number].get(axis) if number < len(given) else None
        name = wished.symbol if wished is not None else None
        if name is None or name not in wanted or name in names.values() or not isinstance(size, sympy.Add):
            continue
        own = [s for s in size.args if isinstance(s, sympy.Symbol) and s not in names and s not in derived]
        rest = _linear(size - own[0], names) if len(own) == 1 else None
        if rest is not None:
            derived[own[0]] = Expr.dim(name) - rest
            found[name] = wanted[name]
    return found


def _by_equations(
    program: ExportedProgram, unnamed: Iterable[sympy.Symbol], names: Mapping[sympy.Symbol, str], wanted: Mapping[str, Dim]
) -> dict[sympy.Symbol, Expr]:
    """Sizes without a name that the model's own conditions tie to dims, as that of a mask to past + step."""
    own = {symbol: f"size {symbol}" for symbol in unnamed}  # the name of no dim
    sizes = Sizes({**names, **own}, Graph(ranges={n: (wanted[n].lo, wanted[n].hi) for n in names.values() if n in wanted}))
    at_most = _at_most_zero(program, sizes)
    zeros = sorted(d for d in at_most if -d in at_most)
    found: dict[sympy.Symbol, Expr] = {}
    for symbol, name in own.items():
        for zero in zeros:
            factor = dict(zero.terms).get(Expr.dim(name).terms[0][0], 0)
            rest = zero - Expr.dim(name) * factor
            if abs(factor) == 1 and rest.symbols <= set(names.values()):
                found.setdefault(symbol, rest * -factor)
    return found


def _at_most_zero(program: ExportedProgram, sizes: Sizes) -> set[Expr]:
    """Sizes and their differences that are 0 or less wherever a program is right."""
    given = (d for n in user_placeholders(program) for d in getattr(n.meta.get("val"), "shape", ()))
    shapes = next((d.node.shape_env for d in given if isinstance(d, torch.SymInt)), None)
    found: set[Expr] = set()
    if shapes is None:
        return found
    for condition in (shapes.replace(guard.expr) for guard in shapes.guards):
        for part in condition.args if isinstance(condition, sympy.And) else [condition]:
            if isinstance(part, (sympy.Eq, sympy.Le, sympy.Ge)):
                try:
                    difference = sizes.expr(part.lhs) - sizes.expr(part.rhs)
                except (IngestError, DataDependentSizeError):
                    continue  # of floats, or of sizes that are no dims
                found |= {difference} if isinstance(part, (sympy.Eq, sympy.Le)) else set()
                found |= {-difference} if isinstance(part, (sympy.Eq, sympy.Ge)) else set()
    return found


def _linear(size: Any, names: Mapping[sympy.Symbol, str]) -> Expr | None:
    """A sum of multiples of named symbols."""
    terms = [t.as_coeff_Mul() for t in sympy.Add.make_args(size)]
    if not all(c.is_Integer and (s == 1 or s in names) for c, s in terms):
        return None
    return sum((Expr.dim(names[s]) * int(c) if s != 1 else Expr.of(int(c)) for c, s in terms), Expr.of(0))


def user_placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    """The nodes of the user's inputs, one for each leaf: of a number or None that the program was exported with, too."""
    found = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    return [found[s.arg.name] for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]


def is_input(node: torch.fx.Node) -> bool:
    """Is this leaf given at every call: a tensor, or an integer that is not the same for all of them?"""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or (isinstance(value, torch.SymInt) and not value.node.expr.is_number)


def _sizes(node: torch.fx.Node) -> list[Any]:
    """The extents of an input as sympy expressions; that of an integer is its value."""
    value = node.meta.get("val")
    extents = value.shape if isinstance(value, torch.Tensor) else [value] if isinstance(value, torch.SymInt) else []
    return [sympy.sympify(d.node.expr if isinstance(d, torch.SymInt) else int(d)) for d in extents]


def _free(name: str, taken: Any) -> str:
    """An identifier that no other dim has."""
    name = re.sub(r"\W", "_", name)
    while keyword.iskeyword(name) or name in taken or re.fullmatch(r"arg\d+(_\d+)?", name):
        name += "_"
    return name


def _range(program: ExportedProgram, symbol: sympy.Symbol) -> Dim:
    bounds = program.range_constraints.get(symbol)
    lo = 1 if bounds is None or not bounds.lower.is_Integer or bounds.lower <= 2 else int(bounds.lower)
    hi = max(UNBOUNDED, lo) if bounds is None or not bounds.upper.is_Integer else int(bounds.upper)
    return Dim(lo, hi)


def structure(spec: pytree.TreeSpec, leaves: Iterator[Structure]) -> Structure:
    """The nesting that a pytree describes around these leaves."""
    if spec.is_leaf():
        return next(leaves)
    if spec.type is type(None):
        return NONE
    items = [structure(child, leaves) for child in spec.children()]
    keys = spec.context if isinstance(spec.context, (list, tuple)) else ()
    if is_dataclass(spec.type) and len(keys) == 2 and all(isinstance(names, list) for names in keys):
        keys = keys[0]  # the fields that hold something, then those that are None
    if len(keys) == len(items) and all(isinstance(k, (str, int)) for k in keys) and spec.type not in (tuple, list):
        return Structure.mapping(dict(zip(map(str, keys), items, strict=True)))
    return Structure.sequence(items, "list" if spec.type is list else "tuple")
