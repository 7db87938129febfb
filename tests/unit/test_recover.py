"""The recover passes on the workload files: what is left in the IR, and that it computes the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.compiler.reference import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.shape import Dim, Expr

DATA = Path(__file__).parents[1] / "data"
BERT = {"B": Dim(1, 8, at=("arg0.0",)), "S": Dim(1, 128, at=("arg0.1",))}
FILES = {
    "bert_layer_dyn_batch_seq": (BERT, [{"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 1}]),
    "bert_layer_dyn_seq": ({"T": Dim(1, 128)}, [{"T": 1}, {"T": 5}]),
    "dense_768x2304_dyn_m": ({"M": Dim(1, 2048)}, [{"M": 1}, {"M": 7}]),
    "resnet_block_dyn_batch": ({"N": Dim(1, 16)}, [{"N": 1}]),
}


def recover(text: str) -> str:
    with ir.Context():
        return str(PassPipeline(recover_passes()).run(ir.Module.parse(text)))


def arrays(model: Ingested, dims: dict[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        (0.1 * rng.standard_normal([Expr.parse(d).evaluate(dims) for d in a.dims or ()])).astype(np.float32)
        for a in model.inputs
    ]


@pytest.mark.parametrize("name", FILES)
def test_recovered_model_computes_the_same(name: str) -> None:
    dims, points = FILES[name]
    model = ingest(DATA / f"{name}.mlir", dims)
    after = recover(model.text)
    for point in points:
        inputs = arrays(model, point)
        for wanted, got in zip(evaluate(model.text, inputs), evaluate(after, inputs), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_the_exporter_is_left(name: str) -> None:
    text = recover(ingest(DATA / f"{name}.mlir", FILES[name][0]).text)
    for gone in (
        "tensor.reshape",
        "tensor.extract ",
        "cf.assert",
        "linalg.broadcast",
        "linalg.transpose",
        "batch_matmul",
        "arith.divsi",
        "linalg.index",
        "x768x2304x",
        "x3072x768x",
        "tensor<?x12x?xi64>",
    ):
        assert gone not in text, gone


def test_attention_runs_on_views_of_qkv() -> None:
    text = recover(ingest(DATA / "bert_layer_dyn_batch_seq.mlir", BERT).text)
    slices = re.findall(r"tensor\.extract_slice .* : tensor<\?x2304xf32> to tensor<\?x768xf32>", text)
    assert len(slices) == 3
    assert text.count("tensor<?x768xf32> into tensor<?x?x12x64xf32>") == 3
    assert text.count("linalg.matmul") == 4
    attention = re.findall(
        r"linalg\.generic .*\"parallel\", \"parallel\", \"parallel\", \"parallel\", \"reduction\"\].*", text
    )
    assert len(attention) == 2
    assert "ins(%expanded, %expanded_10 : tensor<?x?x12x64xf32>, tensor<?x?x12x64xf32>)" in attention[0]
    assert attention[1].endswith(" : tensor<?x?x12x64xf32>) {")
    assert "tensor<?x?x?xf32>" not in text
    assert text.count("tensor.collapse_shape") == 2
    assert text.count("tensor<?x12x?x?xf32>) -> tensor<?x12x?x?xf32>") == 1
