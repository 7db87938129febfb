"""ONNX models compiled and run: a transformer block at several shapes, quantised weights, fused operators, node tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target

onnx = pytest.importorskip("onnx")
ORT = pytest.importorskip("onnxruntime")

from onnx import numpy_helper  # noqa: E402

RNG = np.random.default_rng(3)
OPTIONS = tw.CompileOptions(threads=1)
BLOCK = """<ir_version: 9, opset_import: ["": 17]>
g (float[batch, seq, 32] x, int64[batch, seq] mask) => (y) <int64[4] split = {0, 0, 4, 8},
  int64[3] merge = {0, 0, 32}, int64[2] middle = {1, 2},
  float scale = {0.35355338}, float one = {1.0}, float lowest = {-10000.0}> {
    q = MatMul(x, wq)  k = MatMul(x, wk)  v0 = MatMul(x, wv)
    v = Add(v0, bv)
    q4 = Reshape(q, split)  k4 = Reshape(k, split)  v4 = Reshape(v, split)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)  kt = Transpose<perm = [0, 2, 3, 1]>(k4)  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    scores = MatMul(qt, kt)
    scaled = Mul(scores, scale)
    m4 = Unsqueeze(mask, middle)
    mf = Cast<to = 1>(m4)
    gone = Sub(one, mf)
    bias = Mul(gone, lowest)
    masked = Add(scaled, bias)
    weights = Softmax<axis = -1>(masked)
    mixed = MatMul(weights, vt)
    back = Transpose<perm = [0, 2, 1, 3]>(mixed)
    flat = Reshape(back, merge)
    o = MatMul(flat, wo)
    r1 = Add(x, o)
    n1 = LayerNormalization<axis = -1>(r1, gamma, beta)
    up = MatMul(n1, wu)
    half = Mul(up, rsqrt2)  e = Erf(half)  e1 = Add(e, one)  g0 = Mul(up, e1)  g1 = Mul(g0, point5)
    down = MatMul(g1, wd)
    y = Add(n1, down)
}"""


def block() -> Any:
    model = onnx.parser.parse_model(BLOCK)
    weights = {"wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "wo": (32, 32), "bv": (32,), "gamma": (32,), "beta": (32,),
               "wu": (32, 64), "wd": (64, 32)}  # fmt: skip
    arrays = {n: RNG.standard_normal(s).astype(np.float32) / 4 for n, s in weights.items()}
    arrays |= {"rsqrt2": np.float32(0.5**0.5), "point5": np.float32(0.5)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


def test_transformer_block_from_a_file_at_several_shapes(tmp_path: Path) -> None:
    onnx.save(block(), path := tmp_path / "block.onnx")
    fn = tw.compile(path, {"batch": (1, 8), "seq": (1, 64)}, options=OPTIONS)
    session = ORT.InferenceSession(path)
    for batch, seq in ((1, 1), (3, 7), (2, 33), (8, 64)):
        x = RNG.standard_normal((batch, seq, 32)).astype(np.float32)
        mask = (np.arange(seq) < RNG.integers(1, seq + 1, (batch, 1))).astype(np.int64)
        (want,) = session.run(None, {"x": x, "mask": mask})
        got = fn(x=x, mask=mask)
        assert np.linalg.norm(got - want) <= 2e-5 * np.linalg.norm(want)


def run(text: str, weights: Mapping[str, np.ndarray], dims: Mapping[str, Any], *inputs: np.ndarray) -> Any:
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 21, "com.microsoft": 1]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return compiled(model, dims)(*inputs), model


def compiled(model: Any, dims: Mapping[str, Any], constants: Mapping[str, np.ndarray] | None = None) -> Any:
    """Built in this process: no worker starts for every small model."""
    return tw.compile(model, dims, options=replace(OPTIONS, builder=LocalBuilder(Target.parse("host"))), constants=constants)


def session(model: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    found = ORT.InferenceSession(model.SerializeToString())
    return list(found.run(None, {i.name: a for i, a in zip(found.get_inputs(), inputs, strict=True)}))


def test_weights_quantised_per_channel_between_quantised_activations() -> None:
    x = RNG.standard_normal((5, 16)).astype(np.float32)
    weights = {
        "w": RNG.integers(-128, 128, (16, 8)).astype(np.int8),
        "ws": (RNG.random(8) / 50 + 0.01).astype(np.float32),
        "wz": np.zeros(8, np.int8),
        "s": np.float32(0.03).reshape(()),
        "z": np.uint8(120).reshape(()),
    }
    got, model = run(
        """g (float[N, 16] x) => (float[N, 8] y) {
        c = QuantizeLinear(x, s, z)  a = DequantizeLinear(c, s, z)  b = DequantizeLinear<axis = 1>(w, ws, wz)
        y = MatMul(a, b) }""",
        weights,
        {"N": (1, 9)},
        x,
    )
    assert np.allclose(got, session(model, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_weights_in_blocks_of_few_bits(bits: int, zeros: bool) -> None:
    n, k, block = 8, 64, 32
    x = RNG.standard_normal((3, k)).astype(np.float32)
    weights = {"w": RNG.integers(0, 256, (n, k // block, block * bits // 8)).astype(np.uint8),
               "s": (RNG.random(n * k // block) / 10 + 0.01).astype(np.float32)}  # fmt: skip
    if zeros:
        weights["z"] = RNG.integers(0, 256, n * (k // block * bits // 8 or 1)).astype(np.uint8)
    got, model = run(
        f"g (float[N, {k}] x) => (float[N, {n}] y) {{ y = com.microsoft.MatMulNBits<K = {k}, N = {n}, bits = {bits}, "
        f"block_size = {block}>(x, w, s{', z' if zeros else ''}) }}",
        weights,
        {"N": (1, 9)},
        x,
    )
    assert np.allclose(got, session(model, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "node",
    [
        "y = com.microsoft.BiasGelu(x, v)",
        "y = com.microsoft.FastGelu(x, v)",
        "y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, x, v, v, v)",
        "y = com.microsoft.FusedMatMul<alpha = 0.5, transB = 1>(x, w)",
    ],
)
def test_fused_operators(node: str) -> None:
    x = RNG.standard_normal((2, 3, 16)).astype(np.float32)
    weights = {"v": RNG.standard_normal(16).astype(np.float32), "w": RNG.standard_normal((16, 16)).astype(np.float32)}
    used = {n: a for n, a in weights.items() if f"{n}," in node or f"{n})" in node}
    got, model = run(f"g (float[B, S, 16] x) => (float[B, S, 16] y) {{ {node} }}", used, {"B": (1, 4), "S": (1, 4)}, x)
    assert np.allclose(got, session(model, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", ["", ", interleaved = 1", ", rotary_embedding_dim = 4"])
def test_rotary_embedding(more: str) -> None:
    angles = RNG.standard_normal((32, 2 if "dim" in more else 4)).astype(np.float32)
    x, places = RNG.standard_normal((2, 5, 16)).astype(np.float32), RNG.integers(0, 32, (2, 5))
    got, model = run(f"""g (float[B, S, 16] x, int64[B, S] p) => (float[B, S, 16] y) {{
        y = com.microsoft.RotaryEmbedding<num_heads = 2{more}>(x, p, c, s) }}""",
                     {"c": np.cos(angles), "s": np.sin(angles)}, {"B": (1, 4), "S": (1, 8)}, x, places)  # fmt: skip
    assert np.allclose(got, session(model, x, places)[0], atol=1e-5)


def test_an_input_that_decides_a_shape_is_bound_by_the_caller() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]>\ng (float[N, 6] x, int64[3] s) => (y) { y = Reshape(x, s) }'
    )
    fn = compiled(model, {"N": (1, 4)}, {"s": np.array([0, 2, 3])})
    assert fn(np.ones((2, 6), np.float32)).shape == (2, 2, 3)


def test_registered_operator() -> None:
    @tw.frontends.register("onnx", "test.Twice", replace=True)
    def twice(context: Any, x: tw.ops.Tensor) -> tw.ops.Tensor:
        return x * context.attribute("by", 2.0)

    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "test": 1]>\ng (float[N] x) => (y) { y = test.Twice<by = 4.0>(x) }'
    )
    assert compiled(model, {"N": (1, 4)})(np.ones(2, np.float32)).tolist() == [4, 4]


NODES = """
    add_bcast and_bcast4v2d argmax_negative_axis_keepdims_example_select_last_index attention_3d_gqa batchnorm_example
    cast_FLOAT_to_BFLOAT16 clip_example concat_3d_axis_negative_1 conv_with_strides_padding cumsum_2d_axis_1
    depthtospace_crd_mode_example dft_inverse dynamicquantizelinear expand_dim_changed gather_elements_negative_indices
    gathernd_example_float32 gemm_all_attributes group_normalization_example hardmax_axis_1 layer_normalization_4d_axis1
    logsoftmax_large_number_expanded lrn lstm_with_peepholes gru_batchwise mod_mixed_sign_int32 nllloss_NCd1d2_with_weight
    onehot_negative_indices pow_types_int32_float32 qlinearmatmul_2D_uint8_float32 quantizelinear_axis
    range_int32_type_negative_delta reduce_log_sum_exp_keepdims_random resize_downsample_sizes_cubic reversesequence_time
    rotary_embedding_with_rotary_dim scatter_elements_with_duplicate_indices scatternd_multiply slice_neg_steps
    split_variable_parts_2d_opset18 tile top_k_smallest tril_pos where_long_example maxpool_2d_ceil
    maxpool_with_argmax_2d_precomputed_strides averagepool_2d_dilations convtranspose_output_shape einsum_batch_matmul
    bitcast_float32_to_int32 lppool_2d_pads col2im_pads col2im_dilations
"""


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with np.errstate(all="ignore"):
        return {c.name: c for c in load_model_tests(kind="node")}


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.parametrize("name", NODES.split())
def test_node(name: str, cases: dict[str, Any]) -> None:
    case = cases[f"test_{name}"]
    inputs, wanted = ([_array(a) for a in part] for part in case.data_sets[0])
    names = [v.name for v in case.model.graph.input]
    bound = {n: a for n, a in zip(names, inputs, strict=True) if n in _shape_inputs(case.model)}
    got = compiled(case.model, {}, bound)(*(a for n, a in zip(names, inputs, strict=True) if n not in bound))
    for result, want in zip(_several(got), wanted, strict=True):
        assert (result.dtype, result.shape) == (want.dtype, want.shape)
        assert np.allclose(result.astype("f8"), want.astype("f8"), rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True)


def _shape_inputs(model: Any) -> Sequence[str]:
    """Inputs that the test cases give as data, and that decide a shape."""
    places = {"Expand": [1], "Slice": [1, 2, 3, 4], "Split": [1], "Tile": [1], "TopK": [1], "Range": [0, 1, 2], "OneHot": [1],
              "Resize": [1, 2, 3], "Col2Im": [1, 2],
              "CumSum": [1], "DFT": [1, 2], "ReduceLogSumExp": [1]}  # fmt: skip
    return [n for node in model.graph.node for i, n in enumerate(node.input) if i in places.get(node.op_type, [])]


def _several(results: Any) -> Sequence[np.ndarray]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(("mode", "padding", "align"),
                         [("linear", "zeros", 0), ("cubic", "border", 1), ("nearest", "reflection", 0)])  # fmt: skip
def test_elements_at_the_places_of_a_grid(mode: str, padding: str, align: int, tmp_path: Path) -> None:
    text = ('<ir_version: 10, opset_import: ["": 20]> g (float[n, 3, h, w] x, float[n, p, q, 2] at) => (y) '
            f'{{ y = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {align}>(x, at) }}')
    onnx.save(onnx.parser.parse_model(text), path := tmp_path / "grid.onnx")
    fn = tw.compile(path, dict.fromkeys("nhwpq", (1, 9)), options=OPTIONS)
    session = ORT.InferenceSession(path)
    for n, h, w, p, q in ((2, 7, 5, 4, 9), (1, 9, 2, 1, 1)):
        x, at = RNG.standard_normal((n, 3, h, w)), RNG.uniform(-1.2, 1.2, (n, p, q, 2))
        given = {"x": x.astype(np.float32), "at": at.astype(np.float32)}
        np.testing.assert_allclose(fn(**given), session.run(None, given)[0], rtol=1e-4, atol=1e-5)
