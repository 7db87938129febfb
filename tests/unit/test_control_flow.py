"""Branches and loops of a model: results against the reference, the program's tree, what is refused, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from itertools import pairwise

import numpy as np
import pytest
from e2e.random_control import Structured

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.host.plan_steps import Launch, Loop, Temp, all_steps
from tilewright.compiler.reference import evaluate
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.steps import LoopStep
from tilewright.runtime.shape import Expr

SAME = "affine_map<(d0) -> (d0)>"
V = "tensor<?xf32>"


def compiled(text: str, target: str = "host", **dims: tuple[int, int]) -> CompiledFunction:
    return tw.compile(text, dims, target, options={"builder": LocalBuilder(full_target(target))})


def body(name: str, source: str, op: str) -> str:
    """%name: `op` (over %p) of each element of a source like %x."""
    return (f"%{name} = linalg.generic {{indexing_maps = [{SAME}, {SAME}], iterator_types = [\"parallel\"]}} ins({source} : {V}) "
            f"outs(%room : {V}) {{ ^bb0(%p: f32, %o: f32): {op} linalg.yield %q : f32 }} -> {V}\n")


def model(text: str, result: str = "%r") -> str:
    return f"""func.func @main(%x: {V} {{tw.dims = ["N"]}}, %t: index {{tw.dims = ["T"]}}) -> {V} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %x, %c0 : {V}
  %room = tensor.empty(%n) : {V}
  {text}
  return {result} : {V}
}}
"""


@pytest.mark.parametrize(("seed", "target"), [
    (5, "host"), (0, "host:x86-64-v3"), (7, "emulator:sm_90a"), (3, "emulator:sm_90a")])
def test_structured_programs(seed: int, target: str) -> None:
    made = Structured(seed)
    text = made.text
    fn = compiled(text, target, N=(0, 6), T=(0, 7))
    rng = np.random.default_rng(seed)
    for n, t in ((3, 2), (0, 0), (2, 7)) if target.startswith("host") else ((2, 1),):
        given = made.arguments(n, t, rng)
        for found, wanted in zip(fn(*given), evaluate(text, list(given)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


LOOP = model(f"""%last = arith.subi %n, %c1 : index
  %r = scf.for %i = %c0 to %t step %c1 iter_args(%a = %x) -> {V} {{
    %y = linalg.generic {{indexing_maps = [{SAME}], iterator_types = ["parallel"]}} outs(%room : {V}) {{
    ^bb0(%o: f32):
      %d = linalg.index 0 : index
      %at = arith.subi %last, %d : index
      %p = tensor.extract %a[%at] : {V}
      %q = arith.addf %p, %one : f32
      linalg.yield %q : f32
    }} -> {V}
    scf.yield %y : {V}
  }}""")  # reversed each time around, so that it is no scan


def test_what_a_loop_carries_lies_in_two_buffers_and_nothing_else_is_taken() -> None:
    fn = compiled(LOOP, N=(0, 64), T=(0, 9))
    (loop, copy) = fn.program.tree
    assert isinstance(loop, LoopStep) and [str(c) for c in loop.counters] == ["i0 from 0 to at most T - 1"]
    assert len(fn.program.calls) == 1 and len(loop.carried) == 1 and copy is not None
    assert fn.memory(N=64, T=9).arena - fn.memory(N=0, T=9).arena == 64 * 4
    x = np.arange(5, dtype=np.float32)
    for t in (0, 1, 4):
        np.testing.assert_array_equal(fn(x, t), (x[::-1] if t % 2 else x) + t)


def test_buffers_that_live_together_do_not_share() -> None:
    """What one side of a branch in a loop reads is kept apart from all that is written while it is still needed."""
    step = body("y", "%a", "%q = arith.addf %p, %one : f32")
    text = model(f"""{body("k", "%x", "%q = arith.mulf %p, %p : f32")}
      %r:2 = scf.for %i = %c0 to %t step %c1 iter_args(%a = %x, %b = %k) -> ({V}, {V}) {{
        {step}
        %late = arith.cmpi sge, %i, %c1 : index
        %w:2 = scf.if %late -> ({V}, {V}) {{ scf.yield %b, %y : {V}, {V} }} else {{ scf.yield %y, %k : {V}, {V} }}
        scf.yield %w#1, %w#0 : {V}, {V}
      }}""", "%r#0")
    plan = outline(Compilation(text, {"N": (1, 64), "T": (0, 7)}, full_target("host"))).plan
    dims = {"N": 64, "T": 7}
    (loop,) = (step for step in plan.steps if isinstance(step, Loop))
    apart = {p.name for c in loop.carried for p in (c.start.place, *c.buffers) if isinstance(p, Temp)}
    apart |= {o.place.name for call in plan.calls for o in call.operands[len(call.workload.inputs):] if isinstance(o.place, Temp)
              and call in map(plan.calls.__getitem__, plan.launches()[0].calls)}
    places = sorted(plan.arena.offsets[name].evaluate(dims) for name in apart)
    assert len(places) >= 3
    assert all(b - a >= 64 * 4 for a, b in pairwise([*places, plan.arena.total.evaluate(dims)]))
    fn, x = compiled(text, N=(1, 64), T=(0, 7)), np.arange(1, 65, dtype=np.float32)
    for t in (0, 1, 2, 5):
        np.testing.assert_array_equal(fn(x, t), evaluate(text, [x, t])[0])


def test_a_window_that_moves_with_the_counter() -> None:
    """x[i] is added to all; the bound of the slice follows from the loop's."""
    text = model(f"""%r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x) -> {V} {{
      %s = tensor.extract_slice %x[%i] [1] [1] : {V} to tensor<1xf32>
      %u = tensor.collapse_shape %s [] : tensor<1xf32> into tensor<f32>
      %v = tensor.extract %u[] : tensor<f32>
      {body("y", "%a", "%q = arith.addf %p, %v : f32")}
      scf.yield %y : {V}
    }}""")
    fn = compiled(text, N=(0, 16), T=(0, 1))
    assert not fn.program.checks
    for n in (0, 1, 7):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(fn(x, 0), x + x.sum())


def test_a_loop_ends_where_data_says_so() -> None:
    text = model(f"""%big = arith.constant 100.0 : f32
      %c9 = arith.constant 9 : index
      %s = tensor.extract %x[%c0] : {V}
      %r:2 = scf.while (%a = %x, %m = %s) : ({V}, f32) -> ({V}, f32) {{
        %more = arith.cmpf olt, %m, %big : f32
        scf.condition(%more) %a, %m : {V}, f32
      }} do {{
      ^bb0(%b: {V}, %k: f32):
        {body("y", "%b", "%q = arith.addf %p, %p : f32")}
        %twice = arith.addf %k, %k : f32
        scf.yield %y, %twice : {V}, f32
      }}""", "%r#0")
    fn = compiled(text, N=(1, 8), T=(0, 1))
    for start, doubled in ((1.0, 128.0), (200.0, 200.0), (50.0, 100.0)):
        np.testing.assert_array_equal(fn(np.array([start, 1], np.float32), 0), np.array([doubled, doubled / start], np.float32))


def test_ctrl_c_ends_a_loop_that_never_does() -> None:
    text = model(f"""%true = arith.constant true
      %z = arith.constant 0.0 : f32
      %s = tensor.extract %x[%c0] : {V}
      %r:2 = scf.while (%a = %x, %m = %s) : ({V}, f32) -> ({V}, f32) {{
        %more = arith.cmpf oge, %m, %z : f32
        scf.condition(%more) %a, %m : {V}, f32
      }} do {{
      ^bb0(%b: {V}, %k: f32):
        scf.yield %b, %k : {V}, f32
      }}""", "%r#0")
    fn = compiled(text, N=(1, 8), T=(0, 1))
    x = np.ones(2, np.float32)
    assert fn(-x, 0)[0] == -1
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of the background ignores it
    try:
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            fn(x, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert fn(-x, 0)[0] == -1


@pytest.mark.parametrize(("text", "says"), [
    (f"""%r = scf.for %i = %c0 to %t step %c1 iter_args(%a = %x) -> {V} {{
           %e = tensor.extract_slice %a[0] [%c1] [1] : {V} to {V}
           scf.yield %e : {V} }}""", r"carried value 1 begins with extents \[N\] and goes on with \[1\].*slice it"),
    (f"""%p = arith.cmpi slt, %t, %n : index
         %r = scf.if %p -> {V} {{ scf.yield %x : {V} }} else {{
           %e = tensor.extract_slice %x[0] [%c1] [1] : {V} to {V}
           scf.yield %e : {V} }}""", r"scf.if at .*result 0 has extents \[N\] in one branch and \[1\] in the other"),
    (f"""%s = tensor.extract %x[%c0] : {V}
         %r:2 = scf.while (%i = %c0, %a = %x) : (index, {V}) -> (index, {V}) {{
           %more = arith.cmpf olt, %s, %one : f32
           scf.condition(%more) %i, %a : index, {V}
         }} do {{
         ^bb0(%j: index, %b: {V}):
           %w = tensor.extract_slice %x[0] [%j] [1] : {V} to {V}
           %k = arith.addi %j, %c1 : index
           scf.yield %k, %b : index, {V} }}""", r"depends on carried value 0, a counter without a bound: compare .* tw.loops"),
    (f"""%w = tensor.extract %x[%c0] : {V}
         %d = arith.fptosi %w : f32 to i64
         %k = arith.index_cast %d : i64 to index
         %r = scf.for %i = %c0 to %t step %c1 iter_args(%a = %x) -> {V} {{
           %e = tensor.extract_slice %x[1] [%k] [1] : {V} to {V}
           %y = tensor.insert_slice %e into %a[0] [%k] [1] : {V} into {V}
           scf.yield %y : {V} }}""", r"tensor.extract_slice at .*a size depends on data.* return the padded result and "
     "its length, or pass the length as an index argument that is a dimension"),
    (f"""%w = tensor.extract %x[%c0] : {V}
         %d = arith.fptosi %w : f32 to i64
         %k = arith.index_cast %d : i64 to index
         %r = tensor.empty(%k) : {V}""", r"tensor.empty at .*a size depends on data.*return the padded result and its length"),
])  # fmt: skip
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(IngestError, match=says):
        compiled(model(text, "%r#1" if "scf.while" in text else "%r"), N=(1, 8), T=(0, 4))


def test_a_counter_of_which_the_model_says_how_far_it_goes() -> None:
    text = model(f"""%s = tensor.extract %x[%c0] : {V}
      %big = arith.constant 3.5 : f32
      %r:3 = scf.while (%i = %c1, %a = %x, %m = %s) : (index, {V}, f32) -> (index, {V}, f32) {{
        %more = arith.cmpf olt, %m, %big : f32
        scf.condition(%more) %i, %a, %m : index, {V}, f32
      }} do {{
      ^bb0(%j: index, %b: {V}, %k: f32):
        %w = tensor.extract_slice %x[%j] [1] [1] : {V} to tensor<1xf32>
        %u = tensor.collapse_shape %w [] : tensor<1xf32> into tensor<f32>
        %v = tensor.extract %u[] : tensor<f32>
        {body("y", "%b", "%q = arith.addf %p, %v : f32")}
        %l = arith.addf %k, %one : f32
        %h = arith.addi %j, %c1 : index
        scf.yield %h, %y, %l : index, {V}, f32
      }} attributes {{tw.loops = {{i = [0, 7]}}}}""", "%r#1")
    fn = compiled(text, N=(8, 16), T=(0, 1))
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(fn(x, 0), x + 1 + 2 + 3 + 4)
    assert fn.explain(N=8, T=0).dims["i"] == 7


def test_builders_of_loops_and_branches() -> None:
    graph = ops.Graph()
    x, n = graph.input("x", ["B", 4]), graph.dim("T")

    def grow(value: ops.Tensor) -> ops.Tensor:
        return value * 2.0

    def step(i: Expr, value: ops.Tensor) -> ops.Tensor:
        return value + graph.full(["B", 4], i, "f32")

    (summed,) = ops.fori_loop(1, n, step, x)
    (grown,) = ops.while_loop(lambda v: ops.compare(ops.max(v), 100.0, "lt"), grow, summed)
    (chosen,) = ops.cond(ops.compare(ops.max(x), 0.0, "lt"), lambda v: ops.absolute(v), lambda v: (v,), grown)
    graph.output(chosen)
    fn = tw.compile(graph, {"B": (1, 8), "T": (0, 9)})
    for t in (0, 1, 4):
        x_value = np.array([[1, 2, 3, -4]], np.float32)
        wanted = x_value + sum(range(1, t))
        while wanted.max() < 100:
            wanted = wanted * 2
        np.testing.assert_array_equal(fn(x_value, t), wanted)


def test_builders_say_what_does_not_fit() -> None:
    graph = ops.Graph()
    x = graph.input("x", ["B", 4])
    with pytest.raises(ShapeError, match=r"fori_loop: tensor 0 has extents \[B, 4\], and its body gives \[B, 8\]"):
        ops.fori_loop(0, 3, lambda _, v: ops.concat([v, v], 1), x)
    with pytest.raises(DTypeError, match=r"while_loop: wanted a condition that is a bool of rank 0, got f32\[B, 4\]"):
        ops.while_loop(lambda v: v, lambda v: v, x)
    with pytest.raises(OptionError, match="wanted one tensor or more to carry"):
        ops.fori_loop(0, 3, lambda _: ())


def test_graphs_are_for_cuda_alone() -> None:
    for target in ("host", "emulator:sm_90a"):
        with pytest.raises(OptionError, match=rf"graphs='on': only CUDA targets have graphs, and the target is {target}"):
            tw.compile(LOOP, {"N": (0, 64), "T": (0, 9)}, target, options={"graphs": "on"})
    with pytest.raises(OptionError, match="only functions for CUDA"):
        compiled(LOOP, N=(0, 64), T=(0, 9)).graphs()


def test_products_of_steps_stay_in_their_loop_from_so_many_rows_on_as_fill_the_vectors() -> None:
    """An LSTM of batch 16: one product of all steps, where vectors are wide; with narrow ones it is as fast where it is."""
    def products(target: str) -> int:
        g = ops.Graph()
        x, w, r = g.input("x", ["T", 16, 256]), g.input("w", [256, 256]), g.input("r", [256, 256])

        def body(t: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
            h = ops.tanh(ops.matmul(ops.select(x, 0, t), w) + ops.matmul(h, r))
            return h, h

        g.output(ops.scan(g, x.dims[0], body, g.full([16, 256], 0, "f32"))[-1])
        plan = outline(Compilation(g.module_text(), {"T": (1, 64)}, full_target(target))).plan
        (loop,) = (step for step in plan.steps if isinstance(step, Loop))
        inside = [plan.calls[n] for step in all_steps(loop.body) if isinstance(step, Launch) for n in step.calls]
        return sum(call.workload.kind is Kind.CONTRACTION for call in inside)

    assert products("host:x86-64-v4") == 1 and products("host:x86-64-v3") == 2
