"""The model suite: one BERT layer and one residual block, both from the MLIR of the tests, weights constant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.bench.operator_spec import Input, Operator

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
BERT_LENGTHS = (16, 64, 128, 384)
MORE_LENGTHS = (5, 24, 60)  # in a full run
WIDTH, INNER, HEADS = 768, 3072, 12


def models() -> Iterator[Operator]:
    yield bert_layer()
    yield resnet_block()


def bert_layer() -> Operator:
    """Post-norm encoder layer, hidden 768, 12 heads, exact gelu; inputs in the order of the MLIR's arguments."""
    return Operator(
        "bert_layer", "bert_layer", "models",
        {
            "x": Input((1, "S", WIDTH)),
            "w_qkv": weight(WIDTH, 3 * WIDTH), "b_qkv": vector(3 * WIDTH, 0.1),
            "w_out": weight(WIDTH, WIDTH), "b_out": vector(WIDTH, 0.1),
            "w_up": weight(WIDTH, INNER), "b_up": vector(INNER, 0.1),
            "w_down": weight(INNER, WIDTH), "b_down": vector(WIDTH, 0.1),
            "g_1": vector(WIDTH), "n_1": vector(WIDTH), "g_2": vector(WIDTH), "n_2": vector(WIDTH),
        },
        (1, "S", WIDTH), {"S": (1, 512)}, tuple({"S": s} for s in BERT_LENGTHS),
        tuple({"S": s} for s in (*MORE_LENGTHS, *BERT_LENGTHS)),
        params={"heads": HEADS, "mlir": str(DATA / "bert_layer_dyn_seq.mlir"), "at": "arg0.1"},
        flops=(2, "S", WIDTH, 3 * WIDTH + WIDTH + 2 * INNER),
    )  # fmt: skip


def weight(rows: int, columns: int) -> Input:
    return Input((rows, columns), True, 0.04)


def vector(size: int, scale: float = 1.0) -> Input:
    return Input((size,), True, scale)


def resnet_block() -> Operator:
    """relu(x + conv3x3(relu(conv3x3(x)))) at 64 channels of 56 x 56, with biases."""
    image = ("B", 64, 56, 56)
    filters = Input((64, 64, 3, 3), True, 0.04)
    return Operator(
        "resnet_block", "resnet_block", "models",
        {"x": Input(image), "w_1": filters, "b_1": vector(64), "w_2": filters, "b_2": vector(64)},
        image, {"B": (1, 8)}, ({"B": 1}, {"B": 4}),
        params={"mlir": str(DATA / "resnet_block_dyn_batch.mlir"), "at": "arg0.0"},
        flops=(4, "B", 64, 64, 9, 56, 56),
    )  # fmt: skip
