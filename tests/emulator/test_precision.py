"""Models in f16, bf16 and tf32 on the emulated GPU: tensor cores serve them, and they stay near the f32 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from compiler.reference import evaluate

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("name,dims,shapes,precision,arch,families", [
    ("bert_layer_dyn_seq", {"arg0.1": (1, 128)}, [{"arg0_1": 5}, {"arg0_1": 24}], "f16", "sm_90a",
     {"wgmma", "mma", "gpu_attention"}),
    ("bert_layer_dyn_seq", {"arg0.1": (1, 128)}, [{"arg0_1": 7}], "bf16", "sm_80", {"mma", "gpu_attention"}),
    ("dense_768x2304_dyn_m", {"arg0.0": (0, 64)}, [{"arg0_0": m} for m in (9, 40)], "tf32", "sm_90a", {"mma"}),
    ("resnet_block_dyn_batch", {"arg0.0": (0, 4)}, [{"arg0_0": n} for n in (0, 1)], "bf16", "sm_90a", {"mma"}),
])
def test_model(name: str, dims: dict[str, tuple[int, int]], shapes: list[dict[str, int]], precision: str, arch: str,
               families: set[str]) -> None:
    text = (DATA / f"{name}.mlir").read_text()
    fn = tw.compile(text, dims, target=f"emulator:{arch}", options=tw.CompileOptions(precision=precision))
    used = set()
    for shape in shapes:
        rng = np.random.default_rng(0)
        extents = [[d.evaluate(shape) for d in a.spec().dims] for a in fn.inputs]
        arrays = [(rng.standard_normal(e) * 0.1).astype(a.dtype.numpy) for a, e in zip(fn.inputs, extents, strict=True)]
        got, wanted = fn(*arrays), evaluate(text, arrays)[0]
        assert got.shape == wanted.shape
        assert np.linalg.norm(got - wanted) <= 2e-2 * np.linalg.norm(wanted)
        used |= {call.family for call in fn.explain(**shape).calls}
    assert families <= used
    assert "simt" not in used


def test_a_saved_model_builds_its_tensor_maps(tmp_path: Path) -> None:
    text = (DATA / "dense_768x2304_dyn_m.mlir").read_text()
    fn = tw.compile(text, {"arg0.0": (0, 64)}, target="emulator:sm_90a", options=tw.CompileOptions(precision="bf16"))
    fn.save(tmp_path / "dense.tw")
    loaded = tw.load(tmp_path / "dense.tw")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([d.evaluate({"arg0_0": 24}) for d in a.spec().dims]).astype(np.float32) for a in fn.inputs]
    assert "wgmma" in {call.family for call in loaded.explain(arg0_0=24).calls}
    np.testing.assert_array_equal(loaded(*arrays), fn(*arrays))
