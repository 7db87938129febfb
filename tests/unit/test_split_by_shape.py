"""Partitions by shape: two of them where small and large extents want different ones, and a branch on the dim that decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from unit.graph_models import EXP, SUM, R, T, W, X, assert_same, generic, matmul, model, run

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation import outlined_model
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.host.plan_steps import If, Positive
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.split_by_shape import crossing, split_by_shape
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import functions, ir
from tilewright.passes.pipeline.graph_pipeline import graph_passes

SIZES = (1, 4, 16, 64, 256)
BODY = (generic("y", "%x", T, "%e", T, EXP, "#id, #id") + generic("s", "%y", T, "%f1", R, SUM, "#id, #row", "pr")
        + matmul("m", "%y"))


@pytest.mark.parametrize(("ratios", "want"), [
    ((0.5, 0.6, 1.4, 1.5, 1.6), 4),
    ((1.6, 1.5, 1.4, 0.8, 0.5), 16),
    ((0.5, 0.5, 0.5, 0.5, 0.5), None),
    ((0.5, 1.5, 0.5, 1.5, 1.5), None),  # not one place
    ((0.99, 0.98, 1.4, 1.5, 1.6), None),  # too little on one side
    ((1.0, 1.0, 1.0, 1.0, 1.0), None),
])
def test_where_two_plans_cross(ratios: Sequence[float], want: int | None) -> None:
    assert crossing(SIZES, ratios) == want


@pytest.mark.parametrize("bound", [1, 4])
def test_both_sides_of_a_split_give_what_the_function_gave(bound: int) -> None:
    passes = graph_passes()
    at = next(n for n, p in enumerate(passes) if p.name == "fuse")
    text = run(model([X, W], BODY, "%m, %s, %y", f"{T}, {R}, {T}"), passes[:at])
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        [fn] = main_of(module)
        fn.attributes["tw.ranges"] = ir.Attribute.parse("{B = [1, 64, 1]}")
        split_by_shape(module, fn, bound)
        assert len(main_of(module)) == 3
        split = str(module)
    assert_same(text, run(split, passes[at:]), {"B": 1}, {"B": bound}, {"B": bound + 1}, {"B": 9})


def wide() -> ops.Graph:
    """Long rows: few of them are shared by threads where elements are a kernel of their own, many are read once where not."""
    g = ops.Graph()
    x = g.input("x", ["T", 65536], dtype="f32")
    g.output(ops.exp(x), name="y")
    g.output(ops.sum(x, [1]), name="s")
    return g


def test_few_long_rows_have_another_partition_than_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlined_model, "SPLIT_CORES", 1)
    planned = outline(Compilation(wide(), {"T": (1, 4096)}, full_target("host")))
    [step] = [s for s in planned.plan.steps if isinstance(s, If)]
    assert isinstance(step.condition, Positive)
    assert len({len(side) for side in (step.then, step.otherwise)}) == 2 or len(planned.plan.calls) == 3
    fn = tw.compile(wide(), {"T": (1, 4096)}, options={"builder": LocalBuilder(full_target("host"))})
    for rows in (1, 2, 3, 40):
        given = np.random.default_rng(rows).standard_normal((rows, 65536)).astype(np.float32)
        y, s = fn(given)
        np.testing.assert_allclose(y, np.exp(given.astype(np.float64)), rtol=1e-6)
        np.testing.assert_allclose(s, given.sum(1, dtype=np.float64), atol=2e-3)
    held = outline(Compilation(wide(), {"T": (1, 4096)}, full_target("host"), options=tw.CompileOptions(deterministic="batch")))
    monkeypatch.setattr(outlined_model, "SPLIT_CORES", 1 << 20)
    few = outline(Compilation(wide(), {"T": (1, 4096)}, full_target("host")))
    assert not any(isinstance(s, If) for plan in (held.plan, few.plan) for s in plan.steps)


def test_functions_with_branches_and_cuts_are_not_split() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(run(model([X, W], BODY, "%m", T), []))
        Fuse(by_shape=True, partition="gain").run(module)
        assert len(list(functions(module))) == 1
