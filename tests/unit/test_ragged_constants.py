"""Constants of ragged models that have an entry for each sequence, such as the weights of experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.ops import Tensor
from tilewright.compiler.reference import evaluate_ragged
from tilewright.passes.linalg.symbolic import read_ranges
from tilewright.passes.mlir import functions, ir, new_context

pytestmark = pytest.mark.usefixtures("built_here")

EXPERTS, K, N = 4, 24, 136
DIMS = {"E": tw.Dim(1, 64), "R": tw.Ragged(0, 400, over="E")}
ROWS = (3, 0, 40, 1)


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def experts(weights: Callable[[ops.Graph], Tensor], dtype: str = "f32") -> ops.Graph:
    """relu(x @ w + b), w and b of the expert."""
    g = ops.Graph()
    x = g.input("x", ["E", "R", K], dtype)
    bias = g.input("b", ["E", N], dtype)
    e, _, _ = x.dims
    g.output(ops.relu(ops.add(ops.matmul(x, weights(g)), ops.reshape(bias, (e, 1, N)))))
    return g


def plain(g: ops.Graph) -> Tensor:
    return g.input("w", ["E", K, N])


def transposed(g: ops.Graph) -> Tensor:
    return ops.transpose(g.input("w", ["E", N, K]), (0, 2, 1))


def experts_second(g: ops.Graph) -> Tensor:
    return ops.multiply(ops.transpose(g.input("w", [K, "E", N]), (1, 0, 2)), 0.5)


WEIGHTS = [(plain, (EXPERTS, K, N)), (transposed, (EXPERTS, N, K)), (experts_second, (K, EXPERTS, N))]


def outlined(g: ops.Graph, constants: dict[str, Any]) -> OutlinedModel:
    return outline(Compilation(g, DIMS, full_target("host"), tw.CompileOptions(), constants))


@pytest.mark.parametrize(("weights", "shape"), WEIGHTS)
def test_every_expert_has_its_own(weights: Callable[[ops.Graph], Tensor], shape: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever is done to the weights before they are multiplied is done once, at compile time, and they lie in panels."""
    constants = {"w": drawn(*shape), "b": drawn(EXPERTS, N)}
    fn = tw.compile(experts(weights), DIMS, constants=constants)
    assert [a.name for a in fn.program.inputs] == ["x", "R_offsets"]
    assert len(fn.program.calls) == 1
    panels = next(c for c in fn.program.constants if c.shape != (EXPERTS, N))
    assert panels.shape[0] == EXPERTS
    assert panels.shape[-1] < N
    x = drawn(sum(ROWS), K)
    (wanted,) = evaluate_ragged(fn.program.source, "E", [x, constants["b"], constants["w"]], {"R": ROWS})
    found = fn(x, R_lengths=ROWS)
    np.testing.assert_allclose(found.reshape(-1), wanted, 1e-5, 1e-5)
    fn.save(tmp_path / "experts.tw")
    assert np.array_equal(tw.load(tmp_path / "experts.tw")(x, R_lengths=ROWS), found)
    for args, named in (((x,), {"R_lengths": [40, 4]}), ((tw.Jagged(x, lengths=[40, 4]),), {}), ((list(np.split(x, [40])),), {})):
        with pytest.raises(tw.errors.ShapeError, match=r"has 2 lengths in .*E = 2; wanted 4, one for each E of the model"):
            fn(*args, **named)


def test_experts_of_a_gpu() -> None:
    """Half precision on the emulator: one launch for all experts, whose tensor maps have them as an axis."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", 64], "f16"), g.input("w", ["E", 64, 64], "f16")))
    w = drawn(EXPERTS, 64, 64, dtype=np.float16) / 8
    fn = tw.compile(g, DIMS, constants={"w": w}, target="emulator:sm_90a")
    x = drawn(sum(ROWS), 64, dtype=np.float16)
    (wanted,) = evaluate_ragged(fn.program.source, "E", [x, w], {"R": ROWS})
    np.testing.assert_allclose(fn(x, R_lengths=ROWS).reshape(-1), wanted, 1e-2, 1e-2)
    assert {c.family for c in fn.explain(R=ROWS).calls} == {"wgmma"}


def test_neighbours() -> None:
    """NaN in the weights of one expert reaches no other."""
    constants = {"w": drawn(EXPERTS, K, N), "b": drawn(EXPERTS, N)}
    x = drawn(sum(ROWS), K)
    clean = tw.compile(experts(plain), DIMS, constants=constants)(x, R_lengths=ROWS)
    constants["w"][2], constants["b"][1] = np.nan, np.nan
    found = tw.compile(experts(plain), DIMS, constants=constants)(x, R_lengths=ROWS)
    assert np.isnan(found[3:43]).all()
    assert np.array_equal(found[:3], clean[:3])
    assert np.array_equal(found[43:], clean[43:])


def test_modules_of_torch() -> None:
    """A parameter of the module's function that is bound, so that torch does not fix the number of experts."""
    torch = pytest.importorskip("torch")

    class Experts(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, w: Any) -> Any:
            return torch.nn.functional.gelu(torch.bmm(x, w))

    w = torch.randn(EXPERTS, K, N)
    fn = tw.compile(Experts().eval(), {"E": (1, 64), "R": tw.Ragged(0, 400, over="E")}, args=(torch.randn(3, 7, K), w[:3]),
                    dynamic_shapes=({0: "E", 1: "R"}, {0: "E"}), constants={"w": w})
    xs = [torch.randn(n, K) for n in ROWS]
    for x, own, y in zip(xs, w, fn(xs), strict=True):
        torch.testing.assert_close(y, torch.nn.functional.gelu(x @ own))


@pytest.mark.parametrize(("constants", "said"), [
    ({"w": drawn(EXPERTS, K, N), "b": drawn(3, N)}, "constant w has 4 entries along E, b has 3"),
    ({"w": drawn(65, K, N)}, r"has 65 entries along E, and wanted one at least and what its range 1\.\.64 allows"),
    ({"w": drawn(0, K, N)}, "has 0 entries along E"),
    ({"w": drawn(EXPERTS, K, N + 1)}, "wanted shape"),
    ({"w": drawn(K, N)}, "only tensors of static shape"),
    ({"x": drawn(EXPERTS, 7, K)}, "only tensors of static shape"),
])  # fmt: skip
def test_wrong_constants(constants: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.errors.TilewrightError, match=said):
        outlined(experts(plain), constants)


def test_dense_dims_are_not_bound() -> None:
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", 8, K]), g.input("w", ["E", K, N])))
    with pytest.raises(tw.errors.OptionError, match="only tensors of static shape"):
        tw.compile(g, {"E": (1, 8)}, constants={"w": drawn(EXPERTS, K, N)})


def test_compressed_ones_are_refused() -> None:
    with pytest.raises(tw.errors.OptionError, match="compress: constant w has an entry for each sequence"):
        tw.compress(experts(plain), DIMS, constants={"w": drawn(EXPERTS, K, N)})


def test_ranges_of_other_models_stay() -> None:
    """What holds for all sizes, where calls outside of the ranges run too, holds with constants."""
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["T", 8]), g.input("w", [8, 8])))
    ingested = ingest(g.module_text(), {"T": tw.Dim(1, 16)}, everywhere=True)
    bound, _ = bind_constants(ingested, {"w": drawn(8, 8)})
    with new_context():
        whole, own = (read_ranges(next(functions(ir.Module.parse(m.text)))) for m in (ingested, bound))
        assert dict(own) == dict(whole)
        assert dict(own)["T"].hi > 16
