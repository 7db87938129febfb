"""Branches and loops: `cond`, `while_loop` and `fori_loop`, whose parts are functions of tensors that are called once, here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from tilewright.compiler.ops.graph import Graph, Size, Tensor, shown, size
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

State = Union[Tensor, Sequence[Tensor]]


def cond(predicate: Tensor, then: Callable[..., State], otherwise: Callable[..., State], *operands: Tensor) -> tuple[Tensor, ...]:
    """What `then(*operands)` gives where `predicate`, a bool of rank 0, holds, else what `otherwise(*operands)` gives.

    One of the two runs. Both give tensors of equal types and extents.
    """
    graph = predicate.graph
    _want_bool("cond", predicate)
    first, a = graph.emitter.nested(lambda: _listed("cond", then(*operands)))
    second, b = graph.emitter.nested(lambda: _listed("cond", otherwise(*operands)))
    _want_same("cond", "the other branch gives", a, b)
    kinds = ", ".join(t.type for t in a)
    name = graph.emitter.fresh()
    test = graph.emitter.emit(f"tensor.extract {predicate.ssa}[] : tensor<i1>")
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


def fori_loop(lo: Size, hi: Size, body: Callable[..., State], *state: Tensor) -> tuple[Tensor, ...]:
    """`state = body(i, *state)` for i = lo, lo + 1, ... below hi; the last state, whose extents never change.

    i is a size like any dim: `ops.slice` and `Graph.full` take it, and expressions of it.
    """
    graph = _graph_of("fori_loop", state)
    first, last = size("fori_loop", lo), size("fori_loop", hi)
    start, end, step = (graph.emitter.index(e) for e in (first, last, Expr.of(1)))
    counter, name = graph.emitter.fresh(), graph.emitter.fresh()
    number = Expr.dim(f"i_{counter[1:]}")
    graph.emitter.sources[number] = counter
    inside = [Tensor(graph, graph.emitter.fresh(), t.dtype, t.dims) for t in state]
    lines, made = graph.emitter.nested(lambda: _listed("fori_loop", body(number, *inside)))
    del graph.emitter.sources[number]
    _want_same("fori_loop", "its body gives", state, made)
    starts = ", ".join(f"{inner.ssa} = {t.ssa}" for inner, t in zip(inside, state, strict=True))
    kinds = ", ".join(t.type for t in state)
    graph.emitter.lines += [
        f"{name}:{len(state)} = scf.for {counter} = {start} to {end} step {step} iter_args({starts}) -> ({kinds}) {{", *lines,
        _yield(made), "}"]
    return _results(graph, name, state)


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
