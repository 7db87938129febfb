"""Products and the work on their rows as one kernel of a GPU: which are, why others are not, and what becomes of refused ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import Cut, outline, passes_of
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.host.plan_steps import If
from tilewright.compiler.tuning.cut_refused import built_with_cuts
from tilewright.compiler.tuning.dispatch_tables import untuned_tables
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir
from tilewright.passes.partition.plan import Plan
from tilewright.passes.partition.rules import PRODUCT_ROWS, rules_named
from tilewright.passes.pipeline.pass_registry import passes_from_text
from tilewright.passes.spaces.gpu import mma_rows, mma_rows_gain
from tilewright.passes.spaces.gpu.mma_rows_gain import RowsOfProduct
from tilewright.passes.spaces.gpu.mma_rows_heuristics import Thresholds
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType
from tilewright.search.protocols import BuildResult

KEPT: list[ir.Module] = []  # plans hold operations, which are no longer than their modules
H100 = GpuLimits.of("sm_90a")
MANY = (4096, 8192)


@pytest.fixture(autouse=True)
def own_context(request: pytest.FixtureRequest) -> None:
    context = ir.Context()
    context.__enter__()
    request.addfinalizer(KEPT.clear)
    request.addfinalizer(lambda: context.__exit__(None, None, None))


def rows_of(columns: int | str = 64, depth: int = 64, dtype: str = "f16", batch: bool = False,
            then: Callable[[ops.Graph, ops.Tensor], ops.Tensor] | None = None) -> ops.Graph:
    """A product whose rows are taken the maximum from, and what `then` makes of that."""
    g = ops.Graph()
    both = ["H"] if batch else []
    x, w = g.input("x", [*both, "T", depth], dtype=dtype), g.input("w", [*both, depth, columns], dtype=dtype)
    y = ops.matmul(x, w)
    y = y - ops.max(y, [-1], keepdims=True)
    g.output(then(g, y) if then else y)
    return g


def planned(graph: ops.Graph, precision: str = "f32", **changes: Any) -> Plan:
    """Of a graph with so many rows on sm_90a. changes: of the pass."""
    arch = "sm_90a"
    limits, text = GpuLimits.of(arch), graph.module_text()
    dims = {name: MANY if name == "T" else (1, 64) for name in ("T", "N", "H") if f'"{name}"' in text}
    options = tw.CompileOptions(precision=precision)
    compilation = Compilation(graph, dims, full_target(f"emulator:{arch}"), options)
    read = ingest(text, compilation.open_dims, compilation.function, compilation.imported.dims, False)
    passes = passes_of(options, limits)
    at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
    with ir.Location.unknown():
        module = ir.Module.parse(read.text)
        KEPT.append(module)
        PassPipeline(passes[:at]).run(module)
        [fn] = main_of(module)
        fuse = replace(passes[at], **changes)
        assert isinstance(fuse, Fuse)
        return fuse.plan(fn)


def attention(g: ops.Graph, y: ops.Tensor) -> ops.Tensor:
    p = ops.exp(y)
    return ops.matmul(p / ops.sum(p, [1], keepdims=True), g.input("v", [64, 32], dtype="f16"))


def rows_of_heads() -> ops.Graph:
    """A softmax over the columns of each of four heads that a product gives side by side."""
    g = ops.Graph()
    y = ops.matmul(g.input("x", ["T", 64], dtype="f16"), g.input("w", [64, 128], dtype="f16"))
    g.output(ops.softmax(ops.reshape(y, ["T", 4, 32]), axis=2))
    return g


def kept_apart(plan: Plan) -> str:
    assert not plan.stitched
    [reason] = {r.reason for r in plan.partition.refusals if r.rule == PRODUCT_ROWS}
    return reason


@pytest.fixture
def as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch takes as long as is predicted, which none that was measured did."""
    monkeypatch.setattr(mma_rows_gain, "Thresholds", partial(Thresholds, measured_percent=100))


def test_by_what_was_measured_two_launches_are_the_default() -> None:
    """Of those that an H200 was asked about, at the rows where one launch comes nearest."""
    for columns, depth in ((128, 128), (256, 256), (512, 512), (256, 64)):
        assert "of the time of two" in kept_apart(planned(rows_of(columns, depth)))
        shape = RowsOfProduct(columns, depth, DType.F16, DType.F16, DType.F16, 2, 2)
        assert all(one > two for two, one in (mma_rows_gain.cycles(shape, rows, H100) for rows in (128, 1024, 4096)))


@pytest.mark.usefixtures("as_predicted")
@pytest.mark.parametrize("dtype,precision", [("f16", "f32"), ("bf16", "f32"), ("f32", "tf32"), ("f32", "bf16")])
def test_a_narrow_product_is_one_kernel_with_its_rows(dtype: str, precision: str) -> None:
    plan = planned(rows_of(dtype=dtype), precision=precision)
    [found] = plan.stitched
    assert len(plan.partition.regions()) - (precision == "bf16") * 2 == 1
    assert all(one < two for two, one in found.cycles)


@pytest.mark.parametrize("graph,reason", [
    (rows_of("N"), "how many columns a row has is known when it runs"),
    (rows_of(batch=True), "wanted sums from zero"),
    (rows_of(dtype="f32"), "tensor cores do not multiply f32"),
    (rows_of(8192), "do not fit the shared memory"),
    (rows_of(768, 768), "of the time of two"),
    (rows_of(then=attention), "an attention's"),
    (rows_of_heads(), "tensor.expand_shape lies between the two"),
])
def test_others_stay_apart_for_a_reason(graph: ops.Graph, reason: str) -> None:
    assert reason in kept_apart(planned(graph))


def test_what_is_predicted_to_lose_is_one_where_all_are_asked_for() -> None:
    [found] = planned(rows_of(768, 768), strips="widely").stitched
    assert all(one > two for two, one in found.cycles)
    assert not planned(rows_of(), strips="never").stitched


@pytest.mark.usefixtures("as_predicted")
def test_the_rule_may_be_left_out_and_a_product_kept_apart() -> None:
    others = tuple(rule.name for rule in rules_named() if rule.name != PRODUCT_ROWS)
    assert not planned(rows_of(), rules=others).stitched
    [found] = planned(rows_of()).stitched
    apart = planned(rows_of(), apart=(found.product, found.product))
    assert kept_apart(apart) == "its kernel was refused"


@pytest.mark.parametrize("text,message", [("fuse{strips=often}", "strips='often'"), ("fuse{products=f16}", "such as sm_80"),
                                          ("fuse{products=f64 arch=sm_80}", "products='f64'")])
def test_bad_options_are_named(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        passes_from_text(text)


@pytest.mark.usefixtures("as_predicted")
def test_the_prediction_follows_what_two_launches_pass_through_memory() -> None:
    narrow = RowsOfProduct(128, 128, DType.F16, DType.F16, DType.F16, 2)
    for rows in (16, 1 << 10, 1 << 16):
        two, one = mma_rows_gain.cycles(narrow, rows, H100)
        assert 0.3 * two < one < 0.8 * two
    deep = replace(narrow, columns=768, depth=3072)
    two, one = mma_rows_gain.cycles(deep, 1 << 11, H100)
    assert one > 1.5 * two  # each block reads all of the second factor
    assert mma_rows_gain.why_not(replace(narrow, columns=8192), H100) is not None


def test_configurations_are_legal_and_fill_shared_memory_only() -> None:
    shape = RowsOfProduct(768, 64, DType.F16, DType.F16, DType.F16, 2)
    for arch in ("sm_80", "sm_86", "sm_90a"):
        limits, work = GpuLimits.of(arch), shape.stitched()
        for config in mma_rows.tiles(work, limits):
            assert mma_rows.why_invalid(config, work, limits) is None
            assert config.shared_bytes(2, 2, 768) <= limits.shared_bytes
    heights = {arch: [c.bm for c in mma_rows.tiles(shape.stitched(), GpuLimits.of(arch))] for arch in ("sm_86", "sm_90a")}
    assert heights == {"sm_86": [16, 32], "sm_90a": [16, 32, 64]}


@pytest.mark.usefixtures("as_predicted")
def test_a_product_may_be_one_with_its_rows_from_a_number_of_rows_on() -> None:
    """Few blocks of many columns leave most of a GPU idle."""
    graph, calls = rows_of(768, 64), {}
    for arch, deterministic in (("sm_80", "shape"), ("sm_90a", "shape"), ("sm_90a", "batch")):
        options = tw.CompileOptions(deterministic=deterministic)
        model = outline(Compilation(graph, {"T": (1, 65536)}, full_target(f"cuda:{arch}"), options))
        branches = [s for s in model.plan.steps if isinstance(s, If)]
        calls[arch, deterministic] = [sorted((len(s.then), len(s.otherwise))) for s in branches]
    assert calls == {("sm_80", "shape"): [[1, 2]], ("sm_90a", "shape"): [[1, 2]], ("sm_90a", "batch"): []}


@dataclass
class Planted:
    """Builds kernels, of which those of a family fail or spill."""

    spills: bool
    local: LocalBuilder = field(default_factory=lambda: LocalBuilder(Target.parse("emulator:sm_80")))

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        wrong = [c.family == "mma_rows" for _, c in candidates]
        built = iter(self.local.build([c for c, bad in zip(candidates, wrong, strict=True) if self.spills or not bad]))
        return [self._one(built, bad) for bad in wrong]

    def _one(self, built: Iterator[BuildResult], bad: bool) -> BuildResult:
        if bad and not self.spills:
            return BuildResult(None, error="planted")
        made = next(built)
        assert made.kernel is not None
        return replace(made, kernel=msgspec.structs.replace(made.kernel, spills=8)) if bad else made


@pytest.mark.usefixtures("as_predicted")
@pytest.mark.parametrize("spills", [False, True])
def test_a_kernel_that_fails_or_spills_comes_back_as_two(spills: bool) -> None:
    compilation = Compilation(rows_of(16, 16), {"T": (1, 4)}, full_target("emulator:sm_80"), tw.CompileOptions())
    model, tables = built_with_cuts(compilation, partial(untuned_tables, builder=Planted(spills)))
    assert len(model.plan.calls) == 2 and "mma_rows" not in {k.family for t in tables.tables for k in t.kernels}
    assert [reason for reason in tables.refused.values() if ("spills 8 bytes" if spills else "planted") in reason]
    assert len(outline(compilation, Cut()).plan.calls) == 1
