"""Random linalg.generic ops whose extents contradict each other at some shapes, and what NumPy says of each shape.

Every operand has dims of its own, so that nothing but its bound keeps a read inside: `(i, k) -> (2*i + k - 1)`, reversed loops,
quotients and remainders, constants. draw() gives the program, expected() the result, or None where an access leaves a tensor.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.shape import Dim

Array = np.ndarray
Extent = str | int


@dataclass(frozen=True)
class Access:
    """An operand: extents (a dim's name or a number) and one expression over the loops i0, i1, ... for each axis."""

    dims: tuple[Extent, ...]
    places: tuple[str, ...]

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else dims[d] for d in self.dims)

    def type(self) -> str:
        return f"tensor<{''.join(f'{d if isinstance(d, int) else chr(63)}x' for d in self.dims)}i32>"

    def map(self, loops: int) -> str:
        return f"affine_map<({', '.join(f'i{n}' for n in range(loops))}) -> ({', '.join(self.places)})>"

    def attributes(self) -> str:
        return "{tw.dims = [" + ", ".join(str(d) if isinstance(d, int) else f'"{d}"' for d in self.dims) + "]}"


@dataclass(frozen=True)
class Program:
    """out[...] += the sum of the inputs, over all loops; the last input gives the extents of the loops that `out` lacks.

    exact: no axis has two terms in one loop, of which the compiler bounds each by itself.
    """

    text: str
    inputs: tuple[Access, ...]
    out: Access
    loops: tuple[Extent, ...]
    ranges: Mapping[str, Dim]
    exact: bool

    def arguments(self, dims: Mapping[str, int], rng: np.random.Generator) -> list[Array]:
        return [rng.integers(-99, 99, a.shape(dims), np.int32) for a in (*self.inputs, self.out)]

    def expected(self, dims: Mapping[str, int], given: Sequence[Array]) -> Array | None:
        """What the program computes; None where it leaves a tensor."""
        extents = [n if isinstance(n, int) else dims[n] for n in self.loops]
        result = given[-1].copy()
        if 0 in extents:
            return result
        grid = dict(zip([f"i{n}" for n in range(len(extents))], np.ogrid[tuple(slice(0, n) for n in extents)], strict=True))
        total = np.zeros(extents, np.int32)
        for access, array in zip((*self.inputs, self.out), given, strict=True):
            place = _places(access, grid, extents)
            if any((p < 0).any() or (p >= n).any() for p, n in zip(place, array.shape, strict=True)):
                return None
            if access is not self.out:
                total += array[place]
            else:
                np.add.at(result, place, total)
        return result


def _places(access: Access, grid: Mapping[str, Array], extents: Sequence[int]) -> tuple[Array, ...]:
    written = [p.replace("floordiv", "//").replace("mod", "%") for p in access.places]
    return tuple(np.broadcast_to(np.asarray(eval(p, {"__builtins__": {}}, dict(grid))), extents) for p in written)


def draw(rng: random.Random) -> Program:
    """A program of one linalg.generic."""
    outer, inner = rng.randint(1, 2), rng.choice((0, 1, 1, 2))
    count = outer + inner
    loops: tuple[Extent, ...] = tuple(rng.choice((f"L{n}", f"L{n}", rng.randint(1, 6))) for n in range(count))
    ranges = {n: Dim(rng.choice((0, 1, 2)), rng.choice((5, 9))) for n in loops if isinstance(n, str)}
    inputs: list[Access] = []
    exact = True
    for number in range(rng.choice((1, 1, 2))):
        drawn = [_place(rng, count) for _ in range(rng.randint(1, 2))]
        dims: list[Extent] = []
        for axis in range(len(drawn)):
            name = f"E{number}{axis}"
            extent: Extent = rng.choice((name, name, name, rng.randint(1, 24), next(iter(ranges), name)))
            if isinstance(extent, str):
                ranges.setdefault(extent, Dim(rng.choice((0, 1, 4)), rng.choice((12, 24))))
            dims.append(extent)
        inputs.append(Access(tuple(dims), tuple(p for p, _ in drawn)))
        exact = exact and all(sure for _, sure in drawn)
    inputs.append(Access(loops, tuple(f"i{n}" for n in range(count))))
    out = Access(loops[:outer], tuple(f"i{n}" for n in range(outer)))
    if rng.random() < 0.15:  # written through a map that is no permutation
        ranges["O"] = Dim(0, 24)
        out = Access(("O",), (_sum(rng, list(range(count))),))
        return Program(_text(inputs, out, ["reduction"] * count), tuple(inputs), out, loops, ranges, exact)
    kinds = ["parallel"] * outer + ["reduction"] * inner
    return Program(_text(inputs, out, kinds), tuple(inputs), out, loops, ranges, exact)


def _sum(rng: random.Random, loops: Sequence[int]) -> str:
    """A sum of multiples of some of the loops and a number."""
    chosen = rng.sample(loops, rng.randint(1, min(2, len(loops))))
    terms = [f"i{n}" if (by := rng.choice((1, 1, 1, 2, 3, -1, -2))) == 1 else f"i{n} * {by}" for n in chosen]
    alone = len(terms) == 1 and "*" not in terms[0]  # a loop by itself is a whole axis
    return " + ".join([*terms, str(rng.choice((1, 3, -1, 5) if alone else (0, 0, 0, 1, 3, -1, 5, 9)))])


def _place(rng: random.Random, count: int) -> tuple[str, bool]:
    """A place over the loops, and whether no loop is in two terms of it."""
    loops = list(range(count))
    kind = rng.random()
    if kind < 0.6:
        return _sum(rng, loops), True
    if kind < 0.68:
        return str(rng.randint(0, 4)), True
    by = rng.choice((2, 3, 4))
    loop = rng.choice(loops)
    part = f"i{loop} {rng.choice(('floordiv', 'mod'))} {by}"
    rest = [n for n in loops if n != loop]
    if kind < 0.8 or not rest:
        return part, True
    if kind < 0.92:
        return f"{part} + {_sum(rng, rest)}", True
    return f"({part}) * 2 + {_sum(rng, [loop])}", False


def _text(inputs: Sequence[Access], out: Access, kinds: Sequence[str]) -> str:
    operands = [*inputs, out]
    names = [f"%x{n}" for n in range(len(inputs))]
    signature = ", ".join(f"{n}: {a.type()} {a.attributes()}" for n, a in zip([*names, "%o"], operands, strict=True))
    scalars = [f"%s{n}" for n in range(len(operands))]
    lines, total = [], scalars[-1]
    for n, s in enumerate(scalars[:-2]):  # the last input gives extents alone
        lines.append(f"    %t{n} = arith.addi {total}, {s} : i32")
        total = f"%t{n}"
    giver = f"    %g = arith.addi {total}, {scalars[-2]} : i32"
    return (
        f"func.func @main({signature}) -> {out.type()} {{\n"
        f"  %r = linalg.generic {{indexing_maps = [{', '.join(a.map(len(kinds)) for a in operands)}], "
        f"iterator_types = [{', '.join(f'{chr(34)}{k}{chr(34)}' for k in kinds)}]}} "
        f"ins({', '.join(names)} : {', '.join(a.type() for a in inputs)}) outs(%o : {out.type()}) {{\n"
        f"  ^bb0({', '.join(f'{s}: i32' for s in scalars)}):\n" + "\n".join([*lines, giver])
        + f"\n    linalg.yield %g : i32\n  }} -> {out.type()}\n  return %r : {out.type()}\n}}"
    )


def shapes(program: Program, rng: random.Random, count: int) -> list[dict[str, int]]:
    """Random values of every dim, both ends more often than others."""
    found = []
    for _ in range(count):
        found.append({n: rng.choice((d.lo, d.hi, rng.randint(d.lo, d.hi), rng.randint(d.lo, d.hi)))
                      for n, d in program.ranges.items()})
    return found
