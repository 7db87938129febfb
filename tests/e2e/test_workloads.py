"""The models of tests/data, end to end against the float64 reference, at shapes of the whole range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.reference import compare, evaluate

DATA = Path(__file__).parent.parent / "data"
MODELS = {
    "dense_768x2304_dyn_m": ({"arg0.0": (0, 300)}, [{"arg0.0": m} for m in (0, 1, 2, 7, 8, 9, 48, 127, 300)]),
    "bert_layer_dyn_seq": ({"arg0.1": (1, 128)}, [{"arg0.1": s} for s in (1, 2, 17, 64, 127)]),
    "bert_layer_dyn_batch_seq": ({"arg0.0": (1, 4), "arg0.1": (1, 96)},
                                 [{"arg0.0": b, "arg0.1": s} for b, s in ((1, 1), (2, 31), (3, 16), (1, 96))]),
    "resnet_block_dyn_batch": ({"arg0.0": (0, 4)}, [{"arg0.0": n} for n in (0, 1, 3)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_matches_reference(name: str) -> None:
    dims, shapes = MODELS[name]
    text = (DATA / f"{name}.mlir").read_text()
    fn = tw.compile(text, dims)
    rng = np.random.default_rng(0)
    for shape in shapes:
        values = {f"{place}": v for place, v in shape.items()}
        arrays = []
        for argument in fn.inputs:
            extents = [d.evaluate({n.replace(".", "_"): v for n, v in values.items()}) for d in argument.spec().dims]
            arrays.append((rng.standard_normal(extents) * 0.1).astype(argument.dtype.numpy))
        got = fn(*arrays)
        want = evaluate(text, arrays)[0]
        assert got.shape == want.shape
        if got.size:
            difference = compare(got, want)
            assert difference.ok(2e-5, 1e-4), f"{name} at {shape}: {difference}"
