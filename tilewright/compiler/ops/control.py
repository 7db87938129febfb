"""Branches and loops: `cond`, `while_loop`, `fori_loop` and `scan`, whose parts are functions of tensors, called once, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Union

from tilewright.compiler.ops.graph import Graph, Size, Tensor, shown, size
from tilewright.compiler.ops.scatter import select_scatter
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

State = Union[Tensor, Sequence[Tensor]]


def cond(
    predicate: Tensor | Expr, then: Callable[..., State], otherwise: Callable[..., State], *operands: Tensor
) -> tuple[Tensor, ...]:
    """What `then(*operands)` gives where `predicate` holds, else what `otherwise(*operands)` gives.

    One of the two runs. Both give tensors of equal types and extents. A predicate is a bool of rank 0, or an expression of sizes,
    which holds above 0: `cond(g.dim("T") - 8, ...)` goes by T > 8 and reads no memory.
    """
    graph = predicate.graph if isinstance(predicate, Tensor) else _graph_of("cond", operands)
    if isinstance(predicate, Tensor):
        _want_bool("cond", predicate)
    first, a = graph.emitter.nested(lambda: _listed("cond", then(*operands)))
    second, b = graph.emitter.nested(lambda: _listed("cond", otherwise(*operands)))
    _want_same("cond", "the other branch gives", a, b)
    kinds = ", ".join(t.type for t in a)
    name = graph.emitter.fresh()
    if isinstance(predicate, Tensor):
        test = graph.emitter.emit(f"tensor.extract {predicate.ssa}[] : tensor<i1>")
    else:
        sizes = graph.emitter.index(predicate), graph.emitter.index(Expr.of(0))
        test = graph.emitter.emit(f"arith.cmpi sgt, {sizes[0]}, {sizes[1]} : index")
    graph.emitter.lines += [f"{name}:{len(a)} = scf.if {test} -> ({kinds}) {{", *first, _yield(a), "} else {", *second, _yield(b),
                            "}"]
    return _results(graph, name, a)


def while_loop(test: Callable[..., Tensor], body: Callable[..., State], *state: Tensor) -> tuple[Tensor, ...]:
    """`state = body(*state)` as long as `test(*state)`, a bool of rank 0, holds; the last state, whose extents never change.

    A loop that never ends is left by Ctrl-C.
    """
    graph = _graph_of("while_loop", state)
    before, after = ([Tensor(graph, graph.emitter.fresh(), t.dtype, t.dims) for t in state] for _ in range(2))

    def tested() -> Tensor:
        found = test(*before)
        _want_bool("while_loop", found)
        return Tensor(graph, graph.emitter.emit(f"tensor.extract {found.ssa}[] : tensor<i1>"), found.dtype, ())

    first, holds = graph.emitter.nested(tested)
    second, made = graph.emitter.nested(lambda: _listed("while_loop", body(*after)))
    _want_same("while_loop", "its body gives", state, made)
    kinds, name = ", ".join(t.type for t in state), graph.emitter.fresh()
    starts = ", ".join(f"{inside.ssa} = {t.ssa}" for inside, t in zip(before, state, strict=True))
    passed = ", ".join(t.ssa for t in before)
    arguments = ", ".join(f"{t.ssa}: {t.type}" for t in after)
    graph.emitter.lines += [
        f"{name}:{len(state)} = scf.while ({starts}) : ({kinds}) -> ({kinds}) {{", *first,
        f"scf.condition({holds.ssa}) {passed} : {kinds}", "} do {", f"^bb0({arguments}):", *second, _yield(made), "}"]
    return _results(graph, name, state)


def fori_loop(
    lo: Size, hi: Size, body: Callable[..., State], *state: Tensor, test: Callable[..., Tensor] | None = None
) -> tuple[Tensor, ...]:
    """`state = body(i, *state)` for i = lo, lo + 1, ... below hi; the last state, whose extents never change.

    i is a size like any dim: `ops.slice` and `Graph.full` take it, and expressions of it. The loop ends early where
    `test(*state)`, a bool of rank 0, does not hold.
    """
    graph = _graph_of("fori_loop", state)
    loop = _Counted("fori_loop", graph, lo, hi)
    lines, made = loop.built(body, state)
    _want_same("fori_loop", "its body gives", state, made)
    return loop.emitted(lines, made, state) if test is None else loop.emitted_while(test, lines, made, state)


def scan(graph: Graph, count: Size, body: Callable[..., State], *state: Tensor, backwards: bool = False) -> tuple[Tensor, ...]:
    """`*state, *rows = body(i, *state)` for i = 0, 1, ... below count: the last state, then each row's values, one behind the
    other along a new first axis of `count`, the last of them first when `backwards`.

    Raises:
        ShapeError: the extents of the state change, or those of a row depend on i.
    """
    loop = _Counted("scan", graph, 0, count)
    lines, made = loop.built(body, state)
    rows = made[len(state):]
    _want_same("scan", "its body gives", state, made[:len(state)])
    for row, t in enumerate(rows):
        if any(loop.number.symbol in d.symbols for d in t.dims):
            raise ShapeError(f"scan: row {row} has extents {shown(t.dims)}, which change as it counts; give the largest, padded")
    whole = [graph.full([loop.last, *t.dims], 0, t.dtype) for t in rows]
    inside = [Tensor(graph, graph.emitter.fresh(), t.dtype, t.dims) for t in whole]
    with loop.counting():
        place = loop.last - 1 - loop.number if backwards else loop.number
        placed, put = graph.emitter.nested(
            lambda: [select_scatter(into, t, 0, place) for into, t in zip(inside, rows, strict=True)])
    loop.inside += inside
    return loop.emitted([*lines, *placed], [*made[:len(state)], *put], [*state, *whole])


@dataclass(frozen=True)
class _Counter:
    """A counter inside its loop, as at most `largest`."""

    name: str
    start: Expr
    largest: Expr


class _Counted:
    """A loop whose counter is a dim. inside: what its body knows the carried tensors by."""

    def __init__(self, what: str, graph: Graph, lo: Size, hi: Size) -> None:
        self.what, self.graph = what, graph
        self.first, self.last = size(what, lo), size(what, hi)
        self.start, self.end, self.step = (graph.emitter.index(e) for e in (self.first, self.last, Expr.of(1)))
        self.counter, self.name = graph.emitter.fresh(), graph.emitter.fresh()
        self.number = Expr.dim(f"i_{self.counter[1:]}")
        self.inside: list[Tensor] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The counter can be read, and its range is known."""
        graph, ranges, outer = self.graph, self.graph.ranges, self.graph.counters
        lo, hi = graph.bounds(self.first)[0], graph.bounds(self.last - 1)[1]
        if isfinite(lo) and isfinite(hi):
            graph.ranges = {**ranges, f"i_{self.counter[1:]}": (int(lo), max(int(lo), int(hi)))}
        graph.counters = (*outer, _Counter(f"i_{self.counter[1:]}", self.first, self.last - 1))
        graph.emitter.sources[self.number] = self.counter
        try:
            yield
        finally:
            del graph.emitter.sources[self.number]
            graph.ranges, graph.counters = ranges, outer

    def built(self, body: Callable[..., State], state: Sequence[Tensor]) -> tuple[list[str], list[Tensor]]:
        """The body's lines, and what it gives."""
        self.inside = [Tensor(self.graph, self.graph.emitter.fresh(), t.dtype, t.dims) for t in state]
        with self.counting():
            return self.graph.emitter.nested(lambda: _listed(self.what, body(self.number, *self.inside)))

    def emitted(self, lines: Sequence[str], made: Sequence[Tensor], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The loop as an scf.for."""
        starts = ", ".join(f"{inner.ssa} = {t.ssa}" for inner, t in zip(self.inside, state, strict=True))
        kinds = ", ".join(t.type for t in state)
        self.graph.emitter.lines += [
            f"{self.name}:{len(state)} = scf.for {self.counter} = {self.start} to {self.end} step {self.step} "
            f"iter_args({starts}) -> ({kinds}) {{", *lines, _yield(made), "}"]
        return _results(self.graph, self.name, state)

    def emitted_while(
        self, test: Callable[..., Tensor], lines: Sequence[str], made: Sequence[Tensor], state: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The loop as an scf.while that carries its counter."""
        graph, emitter = self.graph, self.graph.emitter
        count, further = emitter.fresh(), emitter.fresh()
        before = [Tensor(graph, emitter.fresh(), t.dtype, t.dims) for t in state]

        def tested() -> str:
            found = test(*before)
            _want_bool(self.what, found)
            holds = emitter.emit(f"tensor.extract {found.ssa}[] : tensor<i1>")
            below = emitter.emit(f"arith.cmpi slt, {count}, {self.end} : index")
            return emitter.emit(f"arith.andi {below}, {holds} : i1")

        first, holds = emitter.nested(tested)
        kinds = ", ".join(["index", *(t.type for t in state)])
        starts = ", ".join([f"{count} = {self.start}", *(f"{t.ssa} = {s.ssa}" for t, s in zip(before, state, strict=True))])
        passed = ", ".join([count, *(t.ssa for t in before)])
        arguments = ", ".join([f"{self.counter}: index", *(f"{t.ssa}: {t.type}" for t in self.inside)])
        given = ", ".join([further, *(t.ssa for t in made)])
        emitter.lines += [
            f"{self.name}:{len(state) + 1} = scf.while ({starts}) : ({kinds}) -> ({kinds}) {{", *first,
            f"scf.condition({holds}) {passed} : {kinds}", "} do {", f"^bb0({arguments}):", *lines,
            f"{further} = arith.addi {self.counter}, {self.step} : index", f"scf.yield {given} : {kinds}", "}"]
        return tuple(Tensor(graph, f"{self.name}#{i + 1}", t.dtype, t.dims) for i, t in enumerate(state))


def _graph_of(what: str, state: Sequence[Tensor]) -> Graph:
    if not state or not all(isinstance(t, Tensor) for t in state):
        raise OptionError(f"{what}: wanted one tensor or more to carry, got {len(state)} values; give them behind the functions")
    return state[0].graph


def _listed(what: str, given: State) -> list[Tensor]:
    found = [given] if isinstance(given, Tensor) else list(given)
    if not found or not all(isinstance(t, Tensor) for t in found):
        raise OptionError(f"{what}: wanted a tensor or a tuple of tensors from its functions, got {given!r}; return tensors")
    return found


def _want_bool(what: str, found: Tensor) -> None:
    if not isinstance(found, Tensor):
        raise DTypeError(f"{what}: wanted a bool tensor of rank 0 as its condition, got {type(found).__name__}; compare tensors")
    if found.dtype is not DType.I1 or found.rank:
        raise DTypeError(f"{what}: wanted a condition that is a bool of rank 0, got {found.dtype.value}{shown(found.dims)}; "
                         "compare numbers of rank 0")


def _want_same(what: str, who: str, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    if len(wanted) != len(found):
        raise OptionError(f"{what}: wanted {len(wanted)} tensors, and {who} {len(found)}; give as many")
    for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if a.dtype is not b.dtype:
            raise DTypeError(f"{what}: tensor {number} is {a.dtype.value}, and {who} {b.dtype.value}; cast one of them")
        if a.dims != b.dims:
            raise ShapeError(f"{what}: tensor {number} has extents {shown(a.dims)}, and {who} {shown(b.dims)}; they have to stay "
                             "the same: take the largest, and slice it")


def _yield(values: Sequence[Tensor]) -> str:
    return f"scf.yield {', '.join(t.ssa for t in values)} : {', '.join(t.type for t in values)}"


def _results(graph: Graph, name: str, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(Tensor(graph, f"{name}#{i}", t.dtype, t.dims) for i, t in enumerate(like))
