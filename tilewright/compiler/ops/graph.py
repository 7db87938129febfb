"""Graph: a model under construction; Tensor: one of its values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.emitter import Emitter, tensor_type
from tilewright.compiler.ops.promotion import Promotion, result_type
from tilewright.runtime.counters import Counted, at_most
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError, perhaps
from tilewright.runtime.extent_bounds import bounds
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Size = Union[int, str, Expr]
Axes = Union[int, Sequence[int], None]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor value of a graph. Arithmetic operators work per element and broadcast like NumPy's."""

    graph: Graph = field(repr=False)
    ssa: str
    dtype: DType
    dims: tuple[Expr, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def type(self) -> str:
        """The MLIR type."""
        return tensor_type(self.dtype, self.dims)

    def on(self, *axes: int) -> Aligned:
        """This tensor as an operand whose axis i runs along axis `axes[i]` of the result; ShapeError where the counts differ."""
        if len(axes) != self.rank:
            raise ShapeError(f"on{axes}: wanted an axis of the result for each axis of {shown(self.dims)}")
        return Aligned(self, axes)

    def __add__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("add", operator.add, self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("add", operator.add, other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("subtract", operator.sub, self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("subtract", operator.sub, other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("multiply", operator.mul, self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("multiply", operator.mul, other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("divide", operator.truediv, self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.graph.pointwise("divide", operator.truediv, other, self)

    def __neg__(self) -> Tensor:
        return self.graph.pointwise("negate", operator.neg, self)


@dataclass(frozen=True)
class Aligned:
    """A tensor with the result axis of each of its axes."""

    tensor: Tensor
    axes: tuple[int, ...]


Number = Union[int, float, Expr]
Operand = Union[Tensor, Aligned, Number]


@dataclass
class Graph:
    """Builds one function `main` on tensors with symbolic sizes; operators append to it.

    `module_text()` is what tw.compile takes: linalg on tensors, arguments with `tw.dims` and `tw.name`.
    promotion: what operators do with operands of different element types.
    ranges: least and greatest value of dims, where they are known already; extents are simplified by them. A dim that is not
        named may be anything from 0 on.
    counters: of the loops whose bodies are being built, outer ones first.
    """

    promotion: Promotion = Promotion.TORCH
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    counters: tuple[Counted, ...] = ()
    emitter: Emitter = field(default_factory=Emitter, repr=False)
    _arguments: list[str] = field(default_factory=list, repr=False)
    _names: list[str] = field(default_factory=list)
    _dims: list[str] = field(default_factory=list)
    _outputs: list[Tensor] = field(default_factory=list, repr=False)
    _constants: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    _output_names: list[str] = field(default_factory=list, repr=False)

    @property
    def constants(self) -> Mapping[str, np.ndarray]:
        """Arrays given to `constant`, by the argument ("arg3") that each is bound to when the graph is compiled."""
        return self._constants

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of all dims, in the order in which they first occur."""
        return tuple(self._dims)

    def input(self, name: str, dims: Sequence[Size], dtype: str | DType = "f32") -> Tensor:
        """A tensor argument. Each extent is an integer, a dim's name or an expression of dims such as "2*T + 1"."""
        kind = element_type(f"input {name}", dtype)
        sizes = tuple(size(f"input {name}", d) for d in dims)
        shown = ", ".join(f'"{d}"' if (c := d.constant) is None else str(c) for d in sizes)
        argument = self._argument(name, tensor_type(kind, sizes), shown, kind.is_unsigned)
        for axis, d in enumerate(sizes):
            if d.constant is None and d not in self.emitter.sources:
                at = self.emitter.constant(axis, "index")
                self.emitter.sources[d] = f"tensor.dim {argument}, {at} : {tensor_type(kind, sizes)}"
            self._dims += sorted(d.symbols - set(self._dims))
        return Tensor(self, argument, kind, sizes)

    def constant(self, value: Any, name: str | None = None) -> Tensor:
        """A tensor whose elements are known now, such as a weight: an array of a supported element type, kept by reference.

        It is stored with the compiled function and never printed; an array of one element becomes a number in the code.
        """
        array = np.asarray(value)
        kind = DType.of(array.dtype)
        dims = [Expr.of(n) for n in array.shape]
        if array.size == 1:
            return self.filled(array.item(), kind, dims)
        number = len(self._names)
        shown = ", ".join(map(str, dims))
        argument = self._argument(name or f"constant{number}", tensor_type(kind, dims), shown, kind.is_unsigned)
        self._constants[f"arg{number}"] = array
        return Tensor(self, argument, kind, tuple(dims))

    def value_of(self, tensor: Tensor) -> np.ndarray | None:
        """The array that a tensor was made of by `constant`; None of any other."""
        return self._constants.get(tensor.ssa.removeprefix("%"))

    def dim(self, name: str) -> Expr:
        """A dim that is passed as a scalar index argument."""
        expr = size(f"dim {name}", name)
        if expr.symbol is None:
            raise OptionError(f"dim {name!r}: wanted a name, not an expression")
        self.emitter.sources[expr] = self._argument(name, "index", f'"{name}"')
        self._dims += [name] if name not in self._dims else []
        return expr

    def scalar_input(self, name: str, dtype: str | DType = "f32") -> Tensor:
        """An argument that is a plain number, as a tensor of rank 0. (An integer that is an extent is a `dim`.)"""
        kind = element_type(f"input {name}", dtype)
        argument = self._argument(name, kind.signless.value, None, kind.is_unsigned)
        into = self.empty(kind, [])
        return self.result(f"linalg.fill ins({argument} : {kind.signless.value}) outs({into.ssa} : {into.type}) -> ", kind, [])

    def scalar(self, value: Number, dtype: str | DType) -> Tensor:
        """A number as a tensor of rank 0: an int, a float, or an Expr of dims such as `g.dim("T") // 2`."""
        return self.full([], value, dtype)

    def full(self, dims: Sequence[Size], value: Number, dtype: str | DType) -> Tensor:
        """A tensor of the extents `dims` that holds one number everywhere; the number may be an Expr of dims."""
        kind, sizes = element_type("full", dtype), [size("full", d) for d in dims]
        if not isinstance(value, Expr) or value.constant is not None:
            return self.filled(value.constant or 0 if isinstance(value, Expr) else value, kind, sizes)
        loops = [f"d{i}" for i in range(len(sizes))]
        wide = computed_in(kind).value
        return self.generic([], (self.empty(kind, sizes), loops), ["parallel"] * len(sizes),
                            lambda region, _, __: self.number(region, value, wide))

    def bounds(self, expr: Expr) -> tuple[float, float]:
        """Least and greatest value that an expression can have, as far as the graph's `ranges` tell."""
        return bounds(expr, self.ranges)

    def at_least(self, a: Expr, b: Expr | int) -> bool:
        """Is a >= b for every shape, at every step of the loops that are being built?"""
        if self.bounds(a - b)[0] >= 0:
            return True
        try:
            return bool(self.counters) and self.bounds(at_most(b - a, self.counters, self.ranges))[1] <= 0
        except ValueError:  # it has no largest value
            return False

    def smaller(self, a: Expr, b: Expr) -> Expr:
        """min(a, b), decided now where the ranges allow it."""
        return a if self.at_least(b, a) else b if self.at_least(a, b) else a.minimum(b)

    def larger(self, a: Expr, b: Expr) -> Expr:
        """max(a, b), decided now where the ranges allow it."""
        return a if self.at_least(a, b) else b if self.at_least(b, a) else a.maximum(b)

    def require_equal(self, a: Expr, b: Expr, message: str) -> None:
        """States a == b: ShapeError where that can never be; else a check of every call, dropped where the ranges prove it."""
        lo, hi = self.bounds(a - b)
        if lo > 0 or hi < 0:
            raise ShapeError(f"{message}: {a} against {b}")
        if lo == hi == 0:
            return
        left, right = self.emitter.index(a), self.emitter.index(b)
        equal = self.emitter.emit(f"arith.cmpi eq, {left}, {right} : index")
        text = message.replace("\\", "/").replace('"', "'")
        self.emitter.lines.append(f'cf.assert {equal}, "{text}"')

    def require_at_most(self, a: Expr, most: int, message: str) -> None:
        """States a <= most, whatever the graph's ranges say: a check of the calls that may leave them."""
        if a.constant is None:
            over, none = self.emitter.index((a - most).maximum(0)), self.emitter.index(Expr.of(0))
            fits = self.emitter.emit(f"arith.cmpi eq, {over}, {none} : index")
            self.emitter.lines.append(f'cf.assert {fits}, "{message}"')

    def require_other(self, a: Expr, value: int, message: str) -> None:
        """States a != value: a check of every call, dropped where the ranges prove it."""
        lo, hi = self.bounds(a)
        if lo <= value <= hi:
            differs = self.emitter.emit(f"arith.cmpi ne, {self.emitter.index(a)}, {self.emitter.index(Expr.of(value))} : index")
            self.emitter.lines.append(f'cf.assert {differs}, "{message}"')

    def output(self, *tensors: Tensor, name: str | None = None) -> None:
        """Append results. `name` is for one tensor; a result without one is called by its position, "result0"."""
        if name is not None and (len(tensors) != 1 or name in self._output_names):
            raise OptionError(f"output {name!r}: wanted one tensor and a name of its own, came {len(tensors)} tensors"
                              + (", and the name is taken" if name in self._output_names else ""))
        for t in tensors:
            if t.graph is not self:
                raise OptionError("output: the tensor belongs to another graph")
            self._output_names.append(f"result{len(self._outputs)}" if name is None else _checked_name("output", name))
            self._outputs.append(t)

    def module_text(self) -> str:
        """The model as MLIR text; OptionError when it has no output."""
        if not self._outputs:
            raise OptionError("the graph has no output: call output(tensor) first")
        types = ", ".join(t.type for t in self._outputs)
        unsigned = [", tw.unsigned" if t.dtype.is_unsigned else "" for t in self._outputs]
        named = zip(self._outputs, self._output_names, unsigned, strict=True)
        results = ", ".join(f'{t.type} {{tw.name = "{name}"{mark}}}' for t, name, mark in named)
        head = [f"{name} = arith.constant {text}" for text, name in self.emitter.constants.items()]
        last = f"return {', '.join(t.ssa for t in self._outputs)} : {types}"
        body = "\n".join(f"    {line}" for line in (*head, *self.emitter.lines, last))
        return f"module {{\n  func.func @main({', '.join(self._arguments)}) -> ({results}) {{\n{body}\n  }}\n}}\n"

    def _argument(self, name: str, kind: str, dims: str | None, unsigned: bool = False) -> str:
        if name in self._names:
            raise OptionError(f"input {name}: the name is taken")
        _checked_name("input", name)
        argument = f"%arg{len(self._names)}"
        self._names.append(name)
        bound = "" if dims is None else f"tw.dims = [{dims}], "
        self._arguments.append(f'{argument}: {kind} {{{bound}tw.name = "{name}"{", tw.unsigned" if unsigned else ""}}}')
        return argument

    def result(self, text: str, dtype: DType, dims: Sequence[Expr]) -> Tensor:
        """The value of an operation given as text without its result type, which is appended."""
        return Tensor(self, self.emitter.emit(f"{text}{tensor_type(dtype, dims)}"), dtype, tuple(dims))

    def empty(self, dtype: DType, dims: Sequence[Expr]) -> Tensor:
        """An uninitialised tensor."""
        return self.result(f"tensor.empty({self.emitter.dynamic(dims)}) : ", dtype, dims)

    def filled(self, value: float, dtype: DType, dims: Sequence[Expr]) -> Tensor:
        """A tensor that holds one number."""
        into = self.empty(dtype, dims)
        constant = self.emitter.constant(value, dtype.value)
        text = f"linalg.fill ins({constant} : {dtype.signless.value}) outs({into.ssa} : {into.type}) -> "
        return self.result(text, dtype, dims)

    def named(self, op: str, inputs: Sequence[Tensor], into: Tensor) -> Tensor:
        """A named linalg operation; `op` with its attributes."""
        operands = f"{', '.join(t.ssa for t in inputs)} : {', '.join(t.type for t in inputs)}"
        return self.result(f"{op} ins({operands}) outs({into.ssa} : {into.type}) -> ", into.dtype, into.dims)

    def generic(
        self,
        inputs: Sequence[tuple[Tensor, Sequence[str]]],
        into: tuple[Tensor, Sequence[str]],
        iterators: Sequence[str],
        body: Callable[[Body, Sequence[Scalar], Scalar], Scalar],
    ) -> Tensor:
        """linalg.generic with one result. Maps are the expressions of `d0`, `d1`, ... per axis.

        `body` gets the region, the inputs widened to the type they compute in, and the accumulator.
        """
        return self.generics(inputs, [into], iterators, lambda region, given, out: [body(region, given, out[0])])[0]

    def generics(
        self,
        inputs: Sequence[tuple[Tensor, Sequence[str]]],
        into: Sequence[tuple[Tensor, Sequence[str]]],
        iterators: Sequence[str],
        body: Callable[[Body, Sequence[Scalar], Sequence[Scalar]], Sequence[Scalar]],
    ) -> list[Tensor]:
        """linalg.generic with a result for each of `into`; else as `generic`."""
        operands, outs = [*inputs, *into], [t for t, _ in into]
        loops = ", ".join(f"d{i}" for i in range(len(iterators)))
        maps = ", ".join(f"affine_map<({loops}) -> ({', '.join(m)})>" for _, m in operands)
        kinds = ", ".join(f'"{i}"' for i in iterators)
        region = Body(self.emitter.fresh, self.emitter.constant)
        arguments = [Scalar(region, self.emitter.fresh(), t.dtype.value) for t, _ in operands]
        widened = [s.cast(computed_in(t.dtype).value) for s, (t, _) in zip(arguments, inputs, strict=False)]
        found = body(region, widened, arguments[len(inputs):])
        yielded = [s.cast(t.dtype.value) for s, t in zip(found, outs, strict=True)]
        head = ", ".join(f"{a.ssa}: {a.type}" for a in arguments)
        last = f"  linalg.yield {_listed(yielded)}"
        lines = [f"^bb0({head}):", *(f"  {line}" for line in region.lines), last]
        ins = f"ins({_listed([t for t, _ in inputs])}) " if inputs else ""
        op = f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}"
        text = "\n    ".join([f"{op} {ins}outs({_listed(outs)}) {{", *lines, "} -> "])
        if len(outs) == 1:
            return [self.result(text, outs[0].dtype, outs[0].dims)]
        name = self.emitter.fresh()
        self.emitter.lines.append(f"{name}:{len(outs)} = {text}({', '.join(t.type for t in outs)})")
        return [Tensor(self, f"{name}#{n}", t.dtype, t.dims) for n, t in enumerate(outs)]

    def pointwise(
        self, name: str, function: Callable[..., Scalar], *operands: Operand, dtype: DType | None = None
    ) -> Tensor:
        """`function` of the operands' elements, broadcast, all converted to the type in which they meet.

        That is by the graph's promotion, and 16-bit floats compute in f32. A number is an int, a float, or an Expr: an integer
        whose value is known when the shape is. dtype: of the result; default the type in which the operands meet.
        """
        common = self.common_type(name, *operands)
        kind = computed_in(common).value

        def converted(*scalars: Scalar) -> Scalar:
            return function(*(s.cast(kind) for s in scalars))

        return self.map_elements(name, converted, operands, common if dtype is None else dtype, computed_in(common))

    def common_type(self, name: str, *operands: Operand) -> DType:
        """The element type in which these operands meet; DTypeError when the graph's promotion refuses."""
        tensors = [o.tensor if isinstance(o, Aligned) else o for o in operands if isinstance(o, (Tensor, Aligned))]
        if not tensors:
            raise OptionError(f"{name}: wanted at least one tensor")
        numbers = [o for o in operands if not isinstance(o, (Tensor, Aligned))]
        return result_type(name, [t.dtype for t in tensors], numbers, self.promotion)

    def number(self, region: Body, value: Number, kind: str) -> Scalar:
        """A number as a scalar of a region; an Expr is computed outside, once a call."""
        if not isinstance(value, Expr):
            return region.value(value, kind)
        if value.constant is not None:
            return region.value(value.constant, kind)
        return Scalar(region, self.emitter.index(value), "index").cast(kind)

    def map_elements(
        self, name: str, function: Callable[..., Scalar], operands: Sequence[Operand], dtype: DType, numbers: DType
    ) -> Tensor:
        """`pointwise` for operands of different element types; `numbers` is the type of Python numbers."""
        dims, axes = broadcast(name, self, operands)
        inputs = [(t.tensor if isinstance(t, Aligned) else t, a) for t, a in zip(
            [o for o in operands if isinstance(o, (Tensor, Aligned))], axes, strict=True)]

        def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
            values = iter(scalars)
            return function(*(next(values) if isinstance(o, (Tensor, Aligned)) else self.number(region, o, numbers.value)
                              for o in operands))

        loops = [f"d{i}" for i in range(len(dims))]
        return self.generic(inputs, (self.empty(dtype, dims), loops), ["parallel"] * len(dims), body)


def _listed(values: Sequence[Tensor | Scalar]) -> str:
    """Names, then types."""
    return f"{', '.join(v.ssa for v in values)} : {', '.join(v.type for v in values)}"


def _checked_name(what: str, name: str) -> str:
    if not re.fullmatch(r"[\w.-]+", name):
        raise OptionError(f"{what} {name!r}: wanted a name of letters, digits, '_', '.' and '-'")
    return name


def broadcast(
    name: str, graph: Graph, operands: Sequence[Operand]
) -> tuple[tuple[Expr, ...], list[list[str]]]:
    """Extents of the result, and the indexing map of every tensor operand; ShapeError when extents do not fit."""
    tensors = [o for o in operands if isinstance(o, (Tensor, Aligned))]
    plain = [o for o in tensors if isinstance(o, Tensor)]
    rank = max([0, *(t.rank for t in plain), *(max(a.axes, default=-1) + 1 for a in tensors if isinstance(a, Aligned))])
    aligned = [o if isinstance(o, Aligned) else o.on(*range(rank - o.rank, rank)) for o in tensors]
    one, dims = Expr.of(1), [Expr.of(1)] * rank
    for operand in aligned:
        if operand.tensor.graph is not graph:
            raise OptionError(f"{name}: the operands belong to different graphs")
        for extent, axis in zip(operand.tensor.dims, operand.axes, strict=True):
            if one not in (extent, dims[axis]) and extent != dims[axis]:
                shapes = " and ".join(shown(t.tensor.dims) for t in aligned)
                raise ShapeError(f"{name}: shapes {shapes} do not broadcast: "
                                 f"{dims[axis]} against {extent} on axis {axis}")
            dims[axis] = extent if dims[axis] == one else dims[axis]
    maps = [["0" if extent == one and dims[axis] != one else f"d{axis}"
             for extent, axis in zip(o.tensor.dims, o.axes, strict=True)] for o in aligned]
    return tuple(dims), maps


def shown(dims: Sequence[Expr]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def size(what: str, value: Size) -> Expr:
    """An extent as an Expr; OptionError for what is not an integer, a name or an expression, or is negative."""
    if isinstance(value, str):
        expr = Expr.parse(value)
    elif isinstance(value, Expr) or (isinstance(value, int) and not isinstance(value, bool)):
        expr = Expr.of(value)
    else:
        raise OptionError(f"{what}: wanted an integer, a dim's name or an expression as extent, came {value!r}")
    if expr.constant is not None and expr.constant < 0:
        raise ShapeError(f"{what}: an extent of {expr.constant}")
    return expr


def element_type(what: str, dtype: str | DType) -> DType:
    try:
        return DType(dtype)
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise OptionError(f"{what}: unknown element type {dtype!r}; use one of {known}") from None


def same_dtype(name: str, tensors: Sequence[Tensor]) -> DType:
    """The one element type of all tensors; DTypeError when they differ or one is none, OptionError when there is none."""
    other = next((t for t in tensors if not isinstance(t, Tensor)), None)
    if other is not None:
        raise DTypeError(f"{name}: wanted tensors of a graph, got {type(other).__name__}; make one by graph.constant(...)")
    found = list(dict.fromkeys(t.dtype for t in tensors))
    if not found:
        raise OptionError(f"{name}: wanted at least one tensor")
    if len(found) > 1:
        raise DTypeError(f"{name}: operands of {' and '.join(d.value for d in found)}; cast() them to one type first")
    return found[0]


def axis_of(name: str, x: Tensor, axis: int) -> int:
    """A possibly negative axis as a position; ShapeError when it does not exist."""
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"{name}: axis {axis} of a tensor of rank {x.rank}")
    return axis % x.rank


def axes_of(name: str, x: Tensor, axis: Axes) -> tuple[int, ...]:
    """Axes as positions, sorted; None: all. OptionError when one comes twice."""
    given = range(x.rank) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted(axis_of(name, x, a) for a in given)
    if len(set(axes)) != len(axes):
        raise OptionError(f"{name}: axis {list(given)} names an axis twice")
    return tuple(axes)


def want_rank(name: str, what: str, x: Tensor, *ranks: int) -> None:
    if x.rank not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ShapeError(f"{name}: {what} has rank {x.rank}, shape {shown(x.dims)}; wanted rank {wanted}")


def want_keywords(name: str, given: Iterable[str], known: type) -> None:
    """TypeError of a keyword that the TypedDict `known` has not, as Python gives for any other function: with `**options` it
    would be left out without a word."""
    for keyword in given:
        if keyword not in known.__annotations__:
            takes = ", ".join(known.__annotations__)
            meant = perhaps(keyword, known.__annotations__)
            raise TypeError(f"{name}: unexpected keyword {keyword!r}; of such it takes {takes}{meant}")


def want_float(name: str, *tensors: Tensor) -> None:
    for t in tensors:
        if not t.dtype.is_float:
            raise DTypeError(f"{name}: wanted a float tensor, came {t.dtype.value}; cast() it first")


def want_equal(name: str, what: str, a: Expr, b: Expr) -> None:
    """ShapeError unless two extents are the same for every shape."""
    if a != b:
        raise ShapeError(f"{name}: {what} are {a} and {b}, and must be equal")
