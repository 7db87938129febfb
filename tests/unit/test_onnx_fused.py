"""Operators that ONNX Runtime's optimiser and quantiser write, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.errors import IngestError
from tilewright.runtime.target import Target

onnx = pytest.importorskip("onnx")
ORT = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(7)
OPTIONS = tw.CompileOptions(threads=1)


def floats(*shape: int, by: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * by).astype(np.float32)


def codes(*shape: int, kind: Any = np.uint8) -> np.ndarray:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return RNG.integers(low, high + 1, shape).astype(kind)


def weights_of(*shape: int) -> np.ndarray:
    """Of 7 bits: ONNX Runtime adds pairs of products of bytes in 16 bits on CPUs with AVX2 alone, which saturates for others."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def built(node: Any, axes: Mapping[str, str], weights: Mapping[str, Any], results: int = 1) -> Any:
    """A model of one node. axes: name of an input -> its type and axes, as the text of ONNX writes them."""
    inputs, outputs = (", ".join(part) for part in ([f"{k} {n}" for n, k in axes.items()], [f"y{i}" for i in range(results)]))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g ({inputs}) => ({outputs}) {{ {outputs} = Split(a) }}')
    del model.graph.node[:]
    model.graph.node.append(node)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return model


def check(name: str, axes: Mapping[str, str], weights: Mapping[str, Any], calls: list[dict[str, np.ndarray]], results: int = 1,
          inputs: str = "", dims: Mapping[str, Any] | None = None, bound: float = 1e-5, **attributes: Any) -> None:
    """Compiles a node of com.microsoft and compares its results at several shapes."""
    order = (inputs or " ".join([*axes, *weights])).split()
    node = helper.make_node(name, [n if n != "-" else "" for n in order], [f"y{i}" for i in range(results)],
                            domain="com.microsoft", **attributes)
    model = built(node, axes, weights, results)
    ranges = dims or {d: (1, 9) for kind in axes.values() for d in kind[kind.index("[") + 1 : -1].split(", ") if d.isalpha()}
    fn = tw.compile(model, ranges, options=replace(OPTIONS, builder=LocalBuilder(Target.parse("host"))))
    session = ORT.InferenceSession(model.SerializeToString())
    for given in calls:
        wanted = session.run(None, given)
        got = fn(**given)
        for g, w in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            assert (g.dtype, g.shape) == (w.dtype, w.shape)
            if w.dtype.kind in "iu":
                assert np.abs(g.astype(int) - w.astype(int)).max() <= (0 if w.dtype.itemsize > 1 else 1)
            else:
                np.testing.assert_allclose(g, w, rtol=bound, atol=bound * max(1.0, np.abs(w).max()))


HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE


@pytest.mark.parametrize("masked", ["none", "lengths", "keys", "pairs"])
def test_attention_of_projected_queries_keys_and_values(masked: str) -> None:
    kinds = {"none": {}, "lengths": {"m": "int32[B]"}, "keys": {"m": "int32[B, S]"}, "pairs": {"m": "int32[B, S, S]"}}[masked]
    calls = []
    for b, s in ((1, 1), (2, 5), (3, 9)):
        masks = {"lengths": RNG.integers(1, s + 1, b), "keys": np.arange(s) < RNG.integers(1, s + 1, (b, 1)),
                 "pairs": np.tril(np.ones((b, s, s)))}
        calls.append({"a": floats(b, s, 12)} | ({"m": np.asarray(masks[masked]).astype(np.int32)} if kinds else {}))
    check("Attention", {"a": "float[B, S, 12]", **kinds}, {"w": floats(12, 3 * WIDTH, by=0.3), "b": floats(3 * WIDTH)}, calls,
          inputs="a w b" + (" m" if kinds else ""), num_heads=HEADS)  # fmt: skip


def test_attention_with_a_cache_before_it() -> None:
    calls = [{"a": floats(b, s, 12), "p": floats(2, b, HEADS, t, SIZE)} for b, s, t in ((1, 1, 4), (2, 3, 9), (3, 1, 1))]
    check("Attention", {"a": "float[B, S, 12]", "p": f"float[2, B, {HEADS}, P, {SIZE}]"},
          {"w": floats(12, 3 * WIDTH, by=0.3), "b": floats(3 * WIDTH)}, calls, results=2, inputs="a w b - p", num_heads=HEADS,
          unidirectional=1)  # fmt: skip


def test_attention_of_many_heads_with_bias_mask_and_added_scores() -> None:
    calls = [{"a": floats(b, s, WIDTH), "k": floats(b, t, WIDTH), "v": floats(b, t, WIDTH),
              "m": (np.arange(t) < RNG.integers(1, t + 1, (b, 1))).astype(np.int32), "s": floats(1, HEADS, s, t)}
             for b, s, t in ((1, 1, 1), (2, 5, 3), (3, 4, 9))]  # fmt: skip
    check("MultiHeadAttention",
          {"a": f"float[B, S, {WIDTH}]", "k": f"float[B, T, {WIDTH}]", "v": f"float[B, T, {WIDTH}]", "m": "int32[B, T]",
           "s": f"float[1, {HEADS}, S, T]"},
          {"b": floats(3 * WIDTH)}, calls, inputs="a k v b m s", num_heads=HEADS, scale=0.3)  # fmt: skip


def test_attention_of_many_heads_appends_to_a_cache() -> None:
    cache = f"float[B, {HEADS}, P, {SIZE}]"
    calls = [{n: floats(b, s, WIDTH) for n in "akv"} | {n: floats(b, HEADS, p, SIZE) for n in ("pk", "pv")}
             for b, s, p in ((1, 1, 4), (2, 3, 9))]
    check("MultiHeadAttention", {**dict.fromkeys("akv", f"float[B, S, {WIDTH}]"), "pk": cache, "pv": cache}, {}, calls, results=3,
          inputs="a k v - - - pk pv", num_heads=HEADS, unidirectional=1)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("window", "more"), [(-1, ""), (3, ""), (-1, ", softcap = 0.7"), (3, ", smooth_softmax = 1"),
                                              (3, ", softcap = 1.5, scale = 0.4")])  # fmt: skip
@pytest.mark.parametrize("sink", [False, True])
def test_grouped_queries_with_rotary_embeddings_behind_a_cache(interleaved: int, window: int, more: str, sink: bool) -> None:
    """As onnxruntime-genai writes a decoder: sequences of different lengths in one batch."""
    angles = np.outer(np.arange(32), 1.0 / 100 ** (np.arange(SIZE // 2) / SIZE))
    if sink and "smooth" in more:
        pytest.skip("ONNX Runtime takes one of both")
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    cache = f"float[B, 1, P, {SIZE}]"
    text = f"""<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[B, S, {WIDTH}] a, float[B, S, {SIZE}] k, float[B, S, {SIZE}] v, {cache} pk, {cache} pv, int32[B] l,
           int64[B, T] m) => (y, nk, nv) <int64 one = {{1}}> {{
          shape = Shape(m) t = Gather(shape, one) total = Cast<to = 6>(t)
          y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = {HEADS}, kv_num_heads = 1, do_rotary = 1,
              rotary_interleaved = {interleaved}, local_window_size = {window}{more}>(
                  a, k, v, pk, pv, l, total, cos, sin{", , , sink" if sink else ""}) }}"""
    if sink:
        tables["sink"] = floats(HEADS)
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in tables.items())
    fn = tw.compile(model, {"B": (1, 4), "S": (1, 4), "P": (1, 16), "T": (2, 20)},
                    options=replace(OPTIONS, builder=LocalBuilder(Target.parse("host"))))  # fmt: skip
    session = ORT.InferenceSession(model.SerializeToString())
    for b, s, p, short in ((1, 1, 5, 0), (2, 1, 7, 3), (3, 1, 16, 9)):
        lengths = np.full(b, p + s - 1, np.int32) - np.arange(b, dtype=np.int32) * (short // max(b - 1, 1))
        given = {"a": floats(b, s, WIDTH), "k": floats(b, s, SIZE), "v": floats(b, s, SIZE), "pk": floats(b, 1, p, SIZE),
                 "pv": floats(b, 1, p, SIZE), "l": lengths, "m": np.ones((b, p + s), np.int64)}  # fmt: skip
        wanted, got = session.run(None, given), fn(**given)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)
        for i, length in enumerate(lengths + 1):
            for g, w in zip(got[1:], wanted[1:], strict=True):
                np.testing.assert_allclose(g[i, :, :length], w[i, :, :length], rtol=1e-5, atol=1e-5)


def test_embeddings_that_are_added_and_normalised() -> None:
    weights = {"w": floats(20, 8), "p": floats(12, 8), "t": floats(2, 8), "g": floats(8), "c": floats(8)}
    calls = [{"a": RNG.integers(0, 20, (b, s)).astype(np.int32), "s": RNG.integers(0, 2, (b, s)).astype(np.int32),
              "m": (np.arange(s) < RNG.integers(1, s + 1, (b, 1))).astype(np.int32)} for b, s in ((1, 1), (3, 9))]  # fmt: skip
    check("EmbedLayerNormalization", {"a": "int32[B, S]", "s": "int32[B, S]", "m": "int32[B, S]"}, weights, calls, results=2,
          inputs="a s w p t g c m")  # fmt: skip


@pytest.mark.parametrize(("activation", "given"), [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("Sigmoid", [])])
def test_convolution_with_a_sum_and_an_activation(activation: str, given: list[float]) -> None:
    added = activation == "Relu"  # ONNX Runtime adds before this one only
    axes = {"a": "float[B, 3, 6, 7]"} | ({"z": "float[B, 4, 6, 7]"} if added else {})
    calls = [{"a": floats(b, 3, 6, 7)} | ({"z": floats(b, 4, 6, 7)} if added else {}) for b in (1, 3)]
    more = {"activation_params": given} if given else {}
    check("FusedConv", axes, {"w": floats(4, 3, 3, 3), "b": floats(4)}, calls, inputs="a w b" + (" z" if added else ""),
          pads=[1] * 4, activation=activation, **more)  # fmt: skip


def test_product_with_an_activation() -> None:
    check("FusedGemm", {"a": "float[B, 5]"}, {"w": floats(7, 5), "b": floats(7)}, [{"a": floats(b, 5)} for b in (1, 6)],
          transB=1, activation="LeakyRelu", activation_alpha=0.1)  # fmt: skip


def test_products_of_codes_with_results_of_floats() -> None:
    weights = {"w": weights_of(16, 6), "sa": np.float32(0.02), "sb": floats(6) ** 2 / 50 + 0.01, "za": np.uint8(120),
               "zb": np.zeros(6, np.int8), "b": floats(6)}  # fmt: skip
    check("MatMulIntegerToFloat", {"a": "uint8[B, S, 16]"}, weights, [{"a": codes(b, s, 16)} for b, s in ((1, 1), (3, 5))],
          inputs="a w sa sb za zb b")  # fmt: skip


def test_products_of_floats_that_are_quantised_at_the_call() -> None:
    weights = {"w": weights_of(16, 6), "s": np.float32(0.02), "z": np.int8(0), "b": floats(6)}
    check("DynamicQuantizeMatMul", {"a": "float[B, S, 16]"}, weights, [{"a": floats(b, s, 16)} for b, s in ((1, 1), (3, 5))],
          bound=1e-4)  # fmt: skip


def test_products_of_codes_with_a_bias_of_codes() -> None:
    weights = {"sa": np.float32(0.02), "za": np.uint8(120), "w": weights_of(6, 16), "sb": np.float32(0.01),
               "zb": np.int8(0), "c": RNG.integers(-99, 99, 6).astype(np.int32)}  # fmt: skip
    weights |= {"s": np.float32(0.1), "z": np.uint8(128)}
    calls = [{"a": codes(b, 16)} for b in (1, 5)]
    check("QGemm", {"a": "uint8[B, 16]"}, weights, calls, transB=1)
    check("QGemm", {"a": "uint8[B, 16]"}, {n: w for n, w in weights.items() if n not in "sz"}, calls, transB=1)


PARAMETERS = {"sa": np.float32(0.02), "za": np.uint8(100), "sb": np.float32(0.03), "zb": np.uint8(140), "s": np.float32(0.04),
              "z": np.uint8(128)}  # fmt: skip


@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_two_operands_of_codes(name: str) -> None:
    calls = [{"a": codes(b, s), "b": codes(1, s)} for b, s in ((1, 1), (4, 9))]
    check(name, {"a": "uint8[B, S]", "b": "uint8[1, S]"}, PARAMETERS, calls, inputs="a sa za b sb zb s z")


@pytest.mark.parametrize(("name", "more"), [
    ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}), ("QLinearGlobalAveragePool", {}),
    ("QLinearGlobalAveragePool", {"channels_last": 1}), ("QLinearSoftmax", {"axis": 1, "opset": 13}),
    ("QLinearSoftmax", {"axis": 1, "opset": 11}), ("QLinearAveragePool", {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1]})])
def test_an_operand_of_codes(name: str, more: dict[str, Any]) -> None:
    scale = np.float32(1 / 256 if name in ("QLinearSigmoid", "QLinearSoftmax") else 0.02)
    weights = {"sa": np.float32(0.05), "za": np.uint8(100), "s": scale, "z": np.uint8(0 if scale < 0.01 else 110)}
    calls = [{"a": codes(b, 4, 5, 6)} for b in (1, 3)]
    check(name, {"a": "uint8[B, 4, 5, 6]"}, weights, calls, **more)


def test_codes_that_are_joined() -> None:
    calls = [{"a": codes(b, 4), "b": codes(b, 3)} for b in (1, 5)]
    check("QLinearConcat", {"a": "uint8[B, 4]", "b": "uint8[B, 3]"}, PARAMETERS, calls, inputs="s z a sa za b sb zb", axis=1)


def test_a_recurrent_layer_of_weights_in_codes() -> None:
    weights = {"w": weights_of(1, 6, 20), "r": weights_of(1, 5, 20), "b": floats(1, 40)}
    weights |= {"sw": np.array([0.004], np.float32), "zw": np.array([0], np.int8)}
    weights |= {"sr": np.array([0.004], np.float32), "zr": np.array([0], np.int8)}
    calls = [{"a": floats(s, b, 6)} for s, b in ((4, 1), (4, 3))]
    check("DynamicQuantizeLSTM", {"a": "float[4, B, 6]"}, weights, calls, results=3, inputs="a w r b - - - - sw zw sr zr",
          hidden_size=5, bound=0.02)  # fmt: skip


def test_what_is_not_compiled_of_these_is_named() -> None:
    inputs = ["a", "a", "a", "", "", "", "", "", "n"]
    node = helper.make_node("MultiHeadAttention", inputs, ["y0"], domain="com.microsoft", num_heads=2)
    with pytest.raises(IngestError, match="a shared buffer for past and present"):
        tw.compile(built(node, {"a": "float[B, S, 16]", "n": "int32[1]"}, {}), {"B": (1, 2), "S": (1, 4)}, options=OPTIONS)


def test_a_cast_to_the_type_of_a_constant_of_four_bits_is_refused() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (y) { y = CastLike(x, like) }')
    model.graph.initializer.append(helper.make_tensor("like", onnx.TensorProto.INT4, [1], [1]))
    with pytest.raises(IngestError, match="element type INT4 is not compiled"):
        tw.compile(model, {"N": (1, 4)}, options=OPTIONS)
