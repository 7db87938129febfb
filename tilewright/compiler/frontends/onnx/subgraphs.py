"""If, Loop and Scan: nodes whose subgraphs, which read outer values too, become branches and loops of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import onnx

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.frontends.onnx.values import Known, Value, dims_of
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.graph import shown
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# builds the nodes of a subgraph with these values of its inputs; gives its results
Body = Callable[[onnx.GraphProto, Mapping[str, Value]], AbstractContextManager[list[Value]]]
CONTROL = ("If", "Loop", "Scan")
_NEVER = 1 << 62  # exporters write the largest integer for a loop that only its condition ends
_GROWS = "What a loop carries keeps its type and extents: carry the largest extents and a count, and slice it"
_MISSING = "Export the model again"


@dataclass(frozen=True)
class Subgraphs:
    """Builds one node with subgraphs. outer: the values that they may read by name."""

    context: Context
    outer: Mapping[str, Value]
    body: Body

    def results(self, inputs: Sequence[Value | None]) -> list[Value]:
        """The node's results.

        Raises:
            IngestError: extents that depend on data or change as a loop goes round, or what is no sound model.
        """
        build = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[self.context.node.op_type]
        try:
            return build(inputs)
        except (ShapeError, DTypeError, OptionError) as error:
            remedy = "Correct the model, or rewrite this operator before export"
            raise self.context.refused(str(error).rstrip("."), remedy) from error

    def _if(self, inputs: Sequence[Value | None]) -> list[Value]:
        context = self.context
        predicate = self._scalar(inputs[0] if inputs else None, "condition")
        branches = [self._graph(n) for n in ("then_branch", "else_branch")]
        for graph in branches:
            self._want_counts(graph, 0, len(context.node.output))
        if isinstance(predicate, Known) and not predicate.symbolic:
            with self.body(branches[not predicate.elements.item()], {}) as found:
                return found
        first: list[ops.Tensor] = []

        def then() -> list[ops.Tensor]:
            with self.body(branches[0], {}) as found:
                first[:] = [context.tensor(v) for v in found]
                return first

        def otherwise() -> list[ops.Tensor]:
            with self.body(branches[1], {}) as found:
                return [self._like(f"result {n!r} of its else_branch", context.tensor(v), t.dtype, t.dims,
                                   "Give both branches the larger extents, and the length as another result")
                        for n, v, t in zip(context.node.output, found, first, strict=True)]

        return list(ops.cond(context.tensor(predicate), then, otherwise))

    def _loop(self, inputs: Sequence[Value | None]) -> list[Value]:
        context, graph = self.context, self._graph("body")
        limit, going, *starts = [*inputs, None, None][: max(len(inputs), 2)]
        self._want_counts(graph, 2 + len(starts), None)
        carried = _Carried.of(self, graph, starts, 2, 1)
        rows = [o.name for o in graph.output][1 + len(starts) :]
        count = None if limit is None else self._scalar(limit, "trip count")
        going = None if going is None else self._scalar(going, "condition")
        if isinstance(count, Known) and (count.exprs()[0].constant or 0) >= _NEVER:
            count = None
        if isinstance(going, Known) and not going.elements.item():
            count, going = Known.sizes([0], shape=()), None
        counter, asked = (v.name for v in graph.input[:2])
        always = isinstance(going, Known | None) and self._holds(graph, asked)
        context.require(not always or count is not None, "it never ends: it has no trip count, and its condition always holds")
        if rows and (not always or isinstance(count, ops.Tensor)):
            self._refuse_rows(rows, "its condition" if not always else "its trip count")

        def body(number: Value, known: Sequence[ops.Tensor]) -> list[ops.Tensor]:
            """The condition, unless it always holds, the carried tensors, and the rows."""
            given = {counter: number, asked: Known.of(np.array(True)), **carried.values(known)}
            with self.body(graph, given) as found:
                again, *rest = found
                test = [] if always else [context.tensor(self._scalar(again, "condition of its body"))]
                return [*test, *carried.again(rest), *(context.tensor(v) for v in rest[len(starts) :])]

        first = [] if always else [context.tensor(Known.of(np.array(True)) if going is None else going)]
        return carried.results(self._looped(count, body, [*first, *carried.tensors], bool(first)))

    def _looped(
        self, count: Value | None, body: Callable[[Value, Sequence[ops.Tensor]], list[ops.Tensor]],
        state: Sequence[ops.Tensor], tested: bool
    ) -> Sequence[ops.Tensor]:
        """The loop's last state, and its rows. tested: the state begins with what says whether it goes on."""
        graph = self.context.graph

        def counted(i: Expr, *state: ops.Tensor) -> list[ops.Tensor]:
            return body(Known.sizes([i], shape=()), state[tested:])

        if isinstance(count, Known):
            most = graph.larger(count.exprs()[0], Expr.of(0))
            if not tested:
                return ops.scan(graph, most, counted, *state)
            return ops.fori_loop(0, most, counted, *state, test=lambda go, *_: go)[1:]
        last = None if count is None else self.context.tensor(count)

        def test(i: ops.Tensor, *state: ops.Tensor) -> ops.Tensor:
            if last is None:
                return state[0]
            below = ops.compare(i, ops.cast(last, DType.I64), "lt")
            return graph.pointwise("Loop", Scalar.__and__, below, state[0]) if tested else below

        found = ops.while_loop(test, lambda i, *s: [i + 1, *body(i, s[tested:])], graph.scalar(0, DType.I64), *state)
        return found[1 + tested :]

    def _scan(self, inputs: Sequence[Value | None]) -> list[Value]:
        context, graph = self.context, self._graph("body")
        count = int(context.attribute("num_scan_inputs", 1))
        context.require(1 <= count <= len(inputs), f"num_scan_inputs is {count}, and it has {len(inputs)} inputs", _MISSING)
        held = len(inputs) - count
        self._want_counts(graph, len(inputs), None)
        carried = _Carried.of(self, graph, inputs[:held], 0, 0)
        made = len(graph.output) - held
        xs = [context.tensor(self._given(v, f"scan input {n}")) for n, v in enumerate(inputs[held:])]
        axes = [context.axis(x.rank, a) for x, a in zip(xs, self._each("scan_input_axes", count), strict=True)]
        back = self._each("scan_input_directions", count)
        length = xs[0].dims[axes[0]]
        xs = [context.restated(x, [length if a == axis else d for a, d in enumerate(x.dims)])
              for x, axis in zip(xs, axes, strict=True)]
        names = [v.name for v in graph.input][held:]

        def body(i: Expr, *state: ops.Tensor) -> list[ops.Tensor]:
            parts = [ops.select(x, a, length - 1 - i if b else i) for x, a, b in zip(xs, axes, back, strict=True)]
            given = {**carried.values(state), **dict(zip(names, parts, strict=True))}
            with self.body(graph, given) as found:
                return [*carried.again(found), *(context.tensor(v) for v in found[held:])]

        found = carried.results(ops.scan(context.graph, length, body, *carried.tensors))
        rows = [ops.flip(context.tensor(r), 0) if b else context.tensor(r)
                for r, b in zip(found[held:], self._each("scan_output_directions", made), strict=True)]
        places = [context.axis(r.rank, a) for r, a in zip(rows, self._each("scan_output_axes", made), strict=True)]
        return [*found[:held], *(ops.move_axes(r, 0, a) if a else r for r, a in zip(rows, places, strict=True))]

    def _each(self, name: str, count: int) -> list[int]:
        found = [int(v) for v in self.context.attribute(name, [0] * count)]
        self.context.require(len(found) == count, f"its attribute {name} has {len(found)} numbers; wanted {count}", _MISSING)
        return found

    def _graph(self, name: str) -> onnx.GraphProto:
        found = self.context.attribute(name)
        self.context.require(isinstance(found, onnx.GraphProto), f"its {name} is missing", _MISSING)
        assert isinstance(found, onnx.GraphProto)
        return found

    def _want_counts(self, graph: onnx.GraphProto, inputs: int, outputs: int | None) -> None:
        """Does a subgraph take and give as many values as the node says? None: a body's, one for each result of the node."""
        node = self.context.node
        made = len(node.output) + (node.op_type == "Loop") if outputs is None else outputs
        self.context.require(
            len(graph.input) == inputs and len(graph.output) == made,
            f"its subgraph {graph.name!r} has {len(graph.input)} inputs and {len(graph.output)} results; "
            f"wanted {inputs} and {made}",
            _MISSING)

    def _given(self, value: Value | None, what: str) -> Value:
        if value is None:
            raise self.context.refused(f"its {what} is missing", _MISSING)
        return value

    def _scalar(self, given: Value | None, what: str) -> Value:
        """One element, as a value of rank 0."""
        value = self._given(given, what)
        dims = dims_of(value)
        self.context.require(all(d == Expr.of(1) for d in dims), f"its {what} has shape {shown(dims)}; wanted one element")
        if isinstance(value, Known):
            return Known(value.elements.reshape(()), value.dtype)
        return ops.reshape(value, [])

    def _holds(self, graph: onnx.GraphProto, asked: str) -> bool:
        """Does a loop's condition hold each time that its body asks it to go on?"""
        name = origin(graph, graph.output[0].name)
        outer = self.outer.get(name)
        if isinstance(outer, Known) and not outer.symbolic and outer.elements.size == 1:
            return bool(outer.elements.item())
        makers = [n for n in graph.node if n.op_type == "Constant" and name in n.output]
        constants = [a.t for n in makers for a in n.attribute if a.name == "value"]
        constants += [t for t in graph.initializer if t.name == name]
        return name == asked or any(self.context.array(t).all() for t in constants)

    def _refuse_rows(self, rows: Sequence[str], who: str) -> None:
        context = self.context
        names = [n for n in context.node.output[-len(rows) :] if n]
        raise context.refused(
            f"the length of its scan output {(names or rows)[0]!r} depends on data: {who} is computed from data",
            "Carry a tensor of the largest length and a count, or give the loop a trip count of constants and extents alone")

    def _like(self, what: str, t: ops.Tensor, dtype: DType, dims: Sequence[Expr], remedy: str) -> ops.Tensor:
        """A tensor with the type and extents of another; extents that may be equal are stated to be."""
        context = self.context
        same = t.dtype is dtype and t.rank == len(dims) and all(self._may_equal(a, b) for a, b in zip(t.dims, dims, strict=True))
        context.require(same, f"{what} is {t.dtype.value}{shown(t.dims)}; wanted {dtype.value}{shown(dims)}", remedy)
        return context.restated(t, dims)

    def _may_equal(self, a: Expr, b: Expr) -> bool:
        low, high = self.context.graph.bounds(a - b)
        return low <= 0 <= high and (a - b).symbols <= set(self.context.graph.dims)


@dataclass(frozen=True)
class _Carried:
    """What a body's inputs hold as it goes round: those that it hands on unchanged stay outer values.

    names: of the body's inputs. starts: their first values. fixed: is it handed on unchanged?
    """

    owner: Subgraphs
    names: Sequence[str]
    starts: Sequence[Value]
    fixed: Sequence[bool]

    @staticmethod
    def of(owner: Subgraphs, graph: onnx.GraphProto, starts: Sequence[Value | None], inputs: int, outputs: int) -> _Carried:
        """inputs, outputs: the first of the subgraph's inputs and results that are carried."""
        names = [v.name for v in graph.input][inputs : inputs + len(starts)]
        enough = len(graph.output) >= outputs + len(starts)
        owner.context.require(enough, f"its subgraph {graph.name!r} gives too few results", _MISSING)
        again = [o.name for o in graph.output][outputs : outputs + len(starts)]
        given = [owner._given(v, f"first value of {n!r}") for n, v in zip(names, starts, strict=True)]
        return _Carried(owner, names, given, [origin(graph, a) == n for n, a in zip(names, again, strict=True)])

    @property
    def tensors(self) -> list[ops.Tensor]:
        """First values of those that change."""
        return [self.owner.context.tensor(v) for v, f in zip(self.starts, self.fixed, strict=True) if not f]

    def values(self, known: Sequence[ops.Tensor]) -> dict[str, Value]:
        """What the body's inputs hold, from the carried tensors."""
        moving = iter(known)
        return {n: v if f else next(moving) for n, v, f in zip(self.names, self.starts, self.fixed, strict=True)}

    def again(self, found: Sequence[Value]) -> list[ops.Tensor]:
        """The carried tensors from what the body gives, as they were."""
        context = self.owner.context
        return [self.owner._like(f"carried value {n!r}, as its body gives it,", context.tensor(v), t.dtype, t.dims, _GROWS)
                for n, v, t in zip([n for n, f in zip(self.names, self.fixed, strict=True) if not f],
                                   [v for v, f in zip(found, self.fixed, strict=False) if not f], self.tensors, strict=True)]

    def results(self, last: Sequence[ops.Tensor]) -> list[Value]:
        """All carried values behind the loop, and what else it gives."""
        moving = iter(last)
        return [*(v if f else next(moving) for v, f in zip(self.starts, self.fixed, strict=True)), *moving]


def origin(graph: onnx.GraphProto, name: str) -> str:
    """The value that a subgraph's value is, behind nodes that hand it on."""
    makers = {o: n for n in graph.node if n.op_type == "Identity" and n.domain in ("", "ai.onnx") for o in n.output}
    seen: set[str] = set()
    while name in makers and name not in seen and makers[name].input:
        seen.add(name)
        name = makers[name].input[0]
    return name
