"""The host program of a plan that branches and loops, made by hand, and what is said of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Carried,
    Condition,
    Copy,
    Counter,
    Current,
    If,
    Launch,
    Loaded,
    Loop,
    Next,
    PlacedOperand,
    Positive,
    Step,
    Temp,
    all_steps,
)
from tilewright.compiler.host.stored_steps import model_work
from tilewright.compiler.tuning.choose_tables import choose_tables
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.arena_plan import Temporary, plan
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

B, N = Expr.dim("B"), Expr.dim("N")
ONE = (Expr.of(1),)
X, SIZES, RESULT = CallerMemory(0), CallerMemory(1), CallerMemory(2)


def compiled(steps: Sequence[Step], source: object = Current("v"), target: object = Next("v"),
             host: str = "host") -> CompiledFunction:
    """A program over x[B] and sizes[N] whose one call, call 0, doubles `source` into `target`."""
    graph = ops.Graph()
    x, _ = graph.input("x", ["B"]), graph.input("sizes", ["N"])
    graph.output(ops.add(x, x))
    outlined = outline(Compilation(graph, {"B": (0, 64), "N": (0, 9)}, full_target(host)))
    (call,) = outlined.plan.calls
    given, made = call.operands
    outlined.plan.calls[:] = [replace(call, operands=(replace(given, place=source), replace(made, place=target)))]
    outlined.plan.steps[:] = steps
    outlined.plan.arena = plan([Temporary("other", B * 4, 0, 1)])
    tables = choose_tables(outlined, LocalBuilder(full_target(host)))
    bundle = assemble(outlined, tables)
    assert {s.calls for s in all_steps(steps) if isinstance(s, Launch)} <= {(0,)}
    return CompiledFunction(bundle.program, bundle.code, bundle.constants, device_for(bundle.program, bundle.code),
                            llvm_ir=bundle.llvm_ir)


def loop(condition: Condition, body: Sequence[Step] = (Launch((0,)),), counters: Sequence[Counter] = (),
         trips: Expr | None = N) -> list[Step]:
    """Around `body` with a carried v that starts at x, then v to the result."""
    start = PlacedOperand(X, DType.F32, Expr.of(0), ONE)
    carried = Carried("v", start, (RESULT, Temp("other")))
    return [Loop(tuple(counters), (carried,), (), condition, tuple(body), trips), Copy(Current("v"), RESULT, B * 4)]


COUNT = Counter("i", Expr.of(0), Expr.of(1), N - 1)


@pytest.mark.parametrize("host", ["host", "emulator:sm_90a"])
def test_a_loop_doubles_as_often_as_it_goes_round(host: str) -> None:
    fn = compiled(loop(Positive(N - Expr.dim("i")), counters=[COUNT]), host=host)
    x = np.arange(5, dtype=np.float32)
    for n in (0, 1, 2, 5):
        given = x.copy()
        np.testing.assert_array_equal(fn(given, np.zeros(n, np.float32)), x * 2**n)
        np.testing.assert_array_equal(given, x)
    assert fn(np.zeros(0, np.float32), np.zeros(3, np.float32)).shape == (0,)


@pytest.mark.parametrize("host", ["host", "emulator:sm_90a"])
def test_branches_on_dims_and_on_memory(host: str) -> None:
    i = Expr.dim("i")
    byte = Loaded(PlacedOperand(SIZES, DType.F32, i, ONE))
    steps = loop(Positive(N - i), [If(byte, (Launch((0,)),), (Copy(Current("v"), Next("v"), B * 4),))], [COUNT])
    fn = compiled(steps, host=host)
    x, sizes = np.arange(1, 4, dtype=np.float32), np.zeros(6, np.float32)
    sizes.view(np.uint8)[::4] = [0, 1, 1, 0, 1, 0]
    np.testing.assert_array_equal(fn(x, sizes), x * 8)
    either = compiled([If(Positive(N - 3), (Launch((0,)),), (Copy(X, RESULT, B * 4),))], X, RESULT, host)
    for n in (3, 4):
        np.testing.assert_array_equal(either(x, np.zeros(n, np.float32)), x * (2 if n > 3 else 1))


def test_the_tree_is_told() -> None:
    fn = compiled(loop(Positive(N - Expr.dim("i")), [If(Positive(B - 2), (Launch((0,)),), ())], [COUNT]))
    told = ["loop i from 0 to at most N - 1:", "  while N - i > 0:", "    if B - 2 > 0:", "      call 0", "copy 4*B bytes"]
    assert list(fn.explain(B=4, N=3).tree) == told == fn.dispatch_source().split("\n")[-5:]
    assert fn.explain(B=4, N=3).dims == {"B": 4, "N": 3, "i": 2} and fn.explain(B=4, N=3, i=1).dims["i"] == 1
    assert told[0] in str(fn.explain(B=4, N=3))
    with pytest.raises(ShapeError):
        fn.explain(B=99, N=3)


def test_a_program_that_only_launches_stores_no_tree() -> None:
    graph = ops.Graph()
    graph.output(ops.relu(graph.input("x", ["B"])))
    fn = tw.compile(graph, {"B": (1, 8)})
    assert fn.program.tree == () == fn.explain(B=1).tree


def test_work_counts_how_often_a_call_runs() -> None:
    graph = ops.Graph()
    graph.output(ops.relu(graph.input("x", ["B"])))
    made = outline(Compilation(graph, {"B": (1, 8)}, full_target("host"))).plan
    (flops, moved), = model_work(made)
    assert moved == B * 8
    made.steps[:] = [Loop((COUNT,), (), (), Positive(N), (Launch((0,)),), N)]
    assert model_work(made) == [(flops * N.maximum(0), moved * N.maximum(0))]


def test_the_status_of_a_loop_that_is_left() -> None:
    """A poll that says stop ends the run, whatever the condition says."""
    fn = compiled(loop(Positive(Expr.of(1)), trips=None))
    asked: list[int] = []
    poll = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: asked.append(1) or len(asked) > 2)
    caller = fn._caller
    caller.table[9] = ctypes.cast(poll, ctypes.c_void_p).value
    x, sizes, result = np.ones(4, np.float32), np.zeros(1, np.float32), np.zeros(4, np.float32)
    tensors = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in (x, sizes, result)))
    dims = (ctypes.c_int64 * 2)(4, 1)
    assert caller._run(caller.table_pointer, tensors, None, dims, 1) == -2
    assert len(asked) == 3
