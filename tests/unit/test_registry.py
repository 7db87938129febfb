"""The registry of kernel families: what an entry says is so, and one more family needs an entry and its own modules only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from search_surfaces import dense

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.passes.spaces.family_registry import BUILT_IN, Family, cost_of, heuristics_of, parse_config, space_of, using
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits, HostLimits
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

TOY = Family("toy_pointwise", False, frozenset([Kind.POINTWISE]), True, "toy_family.spaces", "toy_family.code")
MODEL = """
func.func @main(%x: tensor<?x24xf32>, %y: tensor<?x24xf32>) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %e = tensor.empty(%n) : tensor<?x24xf32>
  %r = linalg.add ins(%x, %y : tensor<?x24xf32>, tensor<?x24xf32>) outs(%e : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %r : tensor<?x24xf32>
}"""


def compiled(options: tw.CompileOptions | None = None) -> CompiledFunction:
    dims = {"N": tw.Dim(1, 64, at=["arg0.0", "arg1.0"])}
    return tw.compile(MODEL, dims, options=replace(options or tw.CompileOptions(), builder=LocalBuilder(Target.parse("host"))))


@pytest.mark.parametrize("family", BUILT_IN.families, ids=lambda f: f.name)
def test_an_entry_names_modules_that_are_there(family: Family) -> None:
    assert hasattr(space_of(family.name), "space") and hasattr(space_of(family.name), "why_invalid")
    assert hasattr(heuristics_of(family.name), "default")
    assert hasattr(cost_of(family.name), "extents") and hasattr(cost_of(family.name), "kernel_cost")
    assert hasattr(space_of(family.name), "takes") is family.selective
    assert hasattr(family.emitter(), "tile") and hasattr(family.emitter(), "emit")


@pytest.mark.parametrize("gpu", [False, True])
def test_the_last_family_of_a_target_takes_anything(gpu: bool) -> None:
    last = [f for f in BUILT_IN.families if f.gpu is gpu][-1]
    assert last.kinds == frozenset(Kind) and not last.selective


def test_a_family_says_why_not() -> None:
    work = dense(8, 8)
    reasons = {f.name: f.why_not(work, GpuLimits.of("sm_80")) for f in BUILT_IN.families}
    assert reasons["host_matmul"] == "target: kernels of host_matmul are for the host"
    assert reasons["gpu_rows"] == "kind: the workload is contraction"
    assert reasons["wgmma"] == "architecture: sm_80 has no wgmma"
    assert str(reasons["mma"]).startswith("element-type: ") and reasons["simt"] is None
    host = {f.name: f.why_not(work, HostLimits()) for f in BUILT_IN.families}
    assert str(host["host_winograd"]).startswith("form: ") and host["host_matmul"] is None and host["generic"] is None


def test_one_more_family_is_preferred_built_and_right() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 7, 24)).astype(np.float32)
    with using(BUILT_IN.preferring(TOY)):
        fn = compiled()
        assert parse_config("toy_pointwise{chunk=16}") == space_of("toy_pointwise").ToyConfig(16)
    assert "toy_pointwise" in str(fn.explain(N=7)) and np.array_equal(fn(x, y), x + y)
    usual = compiled()
    assert "generic" in str(usual.explain(N=7)) and np.array_equal(usual(x, y), x + y)
    with pytest.raises(OptionError, match="toy_pointwise"):
        parse_config("toy_pointwise{chunk=16}")


@pytest.mark.slow
def test_the_search_measures_one_more_family(tmp_path: Path) -> None:
    x, y = np.random.default_rng(1).standard_normal((2, 5, 24)).astype(np.float32)
    log = tmp_path / "toy.jsonl"
    with using(BUILT_IN.preferring(TOY)):
        fn = compiled(tw.CompileOptions(trials=4, seed=1, log=str(log), prior=False))
    assert "\"toy_pointwise" in log.read_text() and np.array_equal(fn(x, y), x + y)
