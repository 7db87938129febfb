"""Random linalg programs with dynamic dims: drawn with a random.Random, built with tilewright.compiler.ops.

`draw(rng)` gives a program that is legal at every shape of its ranges, with well-conditioned arithmetic: magnitudes stay
far from overflow, and nothing that jumps (comparisons, casts to integers) is applied to rounded values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.compiler import ops
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.shape import Dim, Expr
from tilewright.runtime.tensor import DType

STATIC = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33)
LARGE = (1, 31, 48, 64, 96, 127, 129, 257, 300)
DTYPES = ("f32",) * 6 + ("f64", "f16", "f16", "bf16", "bf16", "i8", "i32", "i64", "i1")
LIMITS = (30_000, 400_000)  # elements of any tensor of a small and a large program at the largest shape
FLOAT_TOP = {"f16": 2e4, "bf16": 1e12, "f32": 1e12, "f64": 1e12}
RANK = 4
IEEE = frozenset((
    "negate", "relu", "absolute", "add", "subtract", "multiply", "maximum", "minimum", "compare", "max", "min", "transpose",
    "reshape", "slice", "pad", "concat", "gather", "broadcast_to", "reverse", "triangle", "insert_slice", "linalg_broadcast",
    "diagonal",
))  # fmt: skip # exact for infinities and NaN


class RefusedError(Exception):
    """The operator does not apply to this value."""


@dataclass(frozen=True)
class Value:
    """A tensor under construction. top: bound of the magnitude; exact: not rounded since the inputs."""

    tensor: ops.Tensor
    top: float
    exact: bool

    @property
    def dims(self) -> tuple[Expr, ...]:
        return self.tensor.dims

    @property
    def rank(self) -> int:
        return self.tensor.rank

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def is_float(self) -> bool:
        return self.tensor.dtype.is_float

    def like(self, tensor: ops.Tensor, top: float | None = None, exact: bool | None = None) -> Value:
        """The result of an operator on this value; integers are exact."""
        rounded = self.exact if exact is None else exact
        return Value(tensor, self.top if top is None else top, rounded or not tensor.dtype.is_float)


@dataclass(frozen=True)
class Input:
    """An argument. fill: "normal", "positive", "weight", "special", "subnormal" (of f32), "index" (below `below`), or "dim" (its
    value is dims[0])."""

    fill: str
    dtype: DType
    dims: tuple[Expr, ...]
    below: Expr | None = None


@dataclass(frozen=True)
class Program:
    """A model as text, its ranges, how to fill its arguments, which of them are bound as constants, its operators."""

    text: str
    ranges: Mapping[str, Dim]
    inputs: tuple[Input, ...]
    operators: tuple[str, ...]
    dtypes: frozenset[str]
    bound: tuple[int, ...] = ()

    def shapes(self, rng: random.Random, count: int) -> list[dict[str, int]]:
        """Both ends of every range and random values between, distinct."""
        found: dict[tuple[int, ...], dict[str, int]] = {}
        for i in range(4 * count):
            point = {n: self._value(rng, d, i) for n, d in self.ranges.items()}
            found.setdefault(tuple(point.values()), point)
        return list(found.values())[:count]

    @staticmethod
    def _value(rng: random.Random, d: Dim, number: int) -> int:
        legal = range(-(-d.lo // d.multiple_of) * d.multiple_of, d.hi + 1, d.multiple_of)
        return legal[0] if number == 0 else legal[-1] if number == 1 else rng.choice(legal)


@dataclass
class Draft:
    """A program under construction."""

    rng: random.Random
    graph: ops.Graph = field(default_factory=ops.Graph)
    ranges: dict[str, Dim] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    readable: set[str] = field(default_factory=set)
    static: set[int] = field(default_factory=set)
    large: bool = False

    def dim(self) -> Expr:
        """A dim of the program, or a new one."""
        names = sorted(self.readable)
        if names and (len(self.ranges) == 3 or self.rng.random() < 0.4):
            return Expr.dim(self.rng.choice(names))
        name = "BST"[len(self.ranges)]
        lo = self.rng.choice((0, 1, 1, 1, 2, 3, 5))
        step = self.rng.choice((1,) * 6 + (2, 4))
        room = self.rng.choice((200, 300) if self.large else (step, 7, 16, 24, 40))
        self.ranges[name] = Dim(lo, max(lo, step) + room, multiple_of=step)
        self.readable.add(name)
        return Expr.dim(name)

    def extent(self) -> Expr:
        return self.dim() if self.rng.random() < 0.5 else Expr.of(self.rng.choice(LARGE if self.large else STATIC))

    def shape(self, least: int = 0, most: int = RANK) -> list[Expr]:
        rank = self.rng.choice([r for r in (0, 1, 2, 2, 3, 3, 4, 4) if least <= r <= most])
        return [self.extent() for _ in range(rank)]

    def input(self, dims: Sequence[Expr], dtype: DType, fill: str = "normal", below: Expr | None = None) -> Value:
        """A new argument; refused when it is too large."""
        self.check(dims)
        if dims and all(d.constant is not None for d in dims) and fill != "index":
            self.static.add(len(self.inputs))
        self.inputs.append(Input(fill, dtype, tuple(dims), below))
        tensor = self.graph.input(f"x{len(self.inputs) - 1}", list(dims), dtype)
        top = {"normal": 3.0, "positive": 2.0, "weight": 1.0}.get(fill, 9.0) if dtype.is_float else 9.0
        return Value(tensor, 1.0 if dtype is DType.I1 else top, True)

    def scalar_dim(self, hi: int) -> Expr:
        """A new dim that is a scalar argument, 0 to hi."""
        if len(self.ranges) == 3:
            raise RefusedError
        name = "BST"[len(self.ranges)]
        self.ranges[name] = Dim(0, hi)
        self.inputs.append(Input("dim", DType.I64, (Expr.dim(name),)))
        return self.graph.dim(name)

    def corners(self) -> list[dict[str, int]]:
        """All combinations of the ends of the ranges."""
        ends = [(d.lo, d.hi) for d in self.ranges.values()]
        return [dict(zip(self.ranges, point, strict=True)) for point in itertools.product(*ends)]

    def least(self, extent: Expr) -> int:
        return min(extent.evaluate(c) for c in self.corners())

    def most(self, extent: Expr) -> int:
        return max(extent.evaluate(c) for c in self.corners())

    def check(self, dims: Sequence[Expr]) -> None:
        """Refuse negative extents and large tensors."""
        for point in self.corners():
            sizes = [d.evaluate(point) for d in dims]
            if any(s < 0 for s in sizes) or math.prod(sizes) > LIMITS[self.large]:
                raise RefusedError

    def need(self, condition: bool) -> None:
        if not condition:
            raise RefusedError

    def axis(self, x: Value) -> int:
        self.need(x.rank > 0)
        return self.rng.randrange(x.rank)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo everything when the operator is refused."""
        g, e = self.graph, self.graph.emitter
        kept = [(holder, name, getattr(holder, name).copy()) for holder, name in (
            (g, "_arguments"), (g, "_names"), (g, "_dims"), (e, "constants"), (e, "lines"), (e, "sources"), (e, "_indices"),
            (self, "ranges"), (self, "inputs"), (self, "values"), (self, "readable"), (self, "static"))]
        try:
            yield
        except (RefusedError, TilewrightError):
            for holder, name, value in kept:
                setattr(holder, name, value)
            raise RefusedError from None


Operator = Callable[[Draft, Value], Value]
Operators = Mapping[str, Mapping[str, Operator]]


def draw(rng: random.Random, operators: Operators, longest: int = 5, first: str | None = None,
         dtypes: Sequence[str] = DTYPES) -> Program:
    """A program of 1 to `longest` operators; each is drawn from a random group (the first from `first`) until it applies.

    dtypes: element types that the first input is drawn from.
    """
    draft = Draft(rng, large=rng.random() < 0.1)
    dtype = DType(rng.choice(dtypes))
    fill = rng.choice(("normal", "normal", "positive"))
    if dtype.is_float and rng.random() < 0.08:
        fill = "special"
        operators = {g: found for g, t in operators.items() if (found := {n: o for n, o in t.items() if n in IEEE})}
    while not draft.values:
        try:
            with draft.attempt():
                draft.values.append(draft.input(draft.shape(), dtype, fill))
        except RefusedError:
            continue
    used: list[str] = []
    for number in range(rng.randint(1, longest)):
        some = {first: operators[first]} if first in operators and number == 0 else operators
        name = apply_one(draft, some)
        used += [name] if name else []
    outputs = [draft.values[-1]]
    if rng.random() < 0.25:
        outputs.append(rng.choice(draft.values))
    draft.graph.output(*(v.tensor for v in outputs))
    kinds = frozenset(line.rpartition("x")[2].rstrip(">") for line in _element_types(draft.graph.module_text()))
    ranges = {n: draft.ranges[n] for n in draft.graph.dims}
    bound = tuple(sorted(i for i in draft.static if i and rng.random() < 0.4))
    return Program(draft.graph.module_text(), ranges, tuple(draft.inputs), tuple(used), kinds, bound)


def delicate() -> Program:
    """A fixed program whose bits tell how sums were rounded, and whether subnormal numbers were kept."""
    g, f32 = ops.Graph(), DType.F32
    extents = ([Expr.dim("B"), Expr.of(64)], [Expr.of(64), Expr.of(48)], [Expr.dim("B"), Expr.of(48)])
    x, w, small = (g.input(f"x{i}", dims) for i, dims in enumerate(extents))
    g.output(ops.softmax(ops.matmul(x, w)), small * 1.5)
    inputs = tuple(Input(fill, f32, tuple(dims)) for fill, dims in zip(("normal", "weight", "subnormal"), extents, strict=True))
    return Program(g.module_text(), {"B": Dim(1, 90)}, inputs, ("matmul", "softmax", "multiply"), frozenset({"f32"}))


def apply_one(draft: Draft, operators: Operators) -> str | None:
    """Apply one operator to the latest value; its name, or None when thirty did not apply."""
    groups = list(operators.values())
    x = draft.values[-1]
    for _ in range(30):
        group = draft.rng.choice(groups)
        name = draft.rng.choice(list(group))
        try:
            with draft.attempt():
                made = group[name](draft, x)
                draft.check(made.dims)
                draft.need(not made.is_float or made.top <= FLOAT_TOP.get(made.dtype.value, 0))
                draft.values.append(made)
                return name
        except RefusedError:
            continue
    return None


def _element_types(text: str) -> list[str]:
    return [part.partition(">")[0] for part in text.split("tensor<")[1:]]
