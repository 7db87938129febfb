"""The ONNX importer: dims by their names, shapes folded symbolically, functions, external data, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.reference import evaluate
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Dim

onnx = pytest.importorskip("onnx")

from tilewright.compiler.frontends.onnx.importer import OnnxGraph, import_onnx, onnx_graph  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1, "local": 1]>\n'
RANGES = {"B": (1, 4), "S": (1, 16)}


def model(text: str) -> Any:
    return onnx.parser.parse_model(HEAD + text)


def built(text: str, dims: dict[str, Any] | None = None, constants: dict[str, Any] | None = None) -> OnnxGraph:
    used = {n: r for n, r in RANGES.items() if n in text.partition("=>")[0]}
    return onnx_graph(model(text), used if dims is None else dims, constants)


def results(made: OnnxGraph, *inputs: np.ndarray) -> list[np.ndarray]:
    given, constants = iter(inputs), made.graph.constants
    text = made.graph.module_text()
    count = text.split("->")[0].count("%arg")
    return evaluate(text, [constants[f"arg{i}"] if f"arg{i}" in constants else next(given) for i in range(count)])


def shapes(made: OnnxGraph) -> list[str]:
    return [", ".join(map(str, t.dims)) for t in made.graph._outputs]


def test_chains_of_shape_operators_leave_no_operation() -> None:
    made = built("""g (float[B, S, 12] x) => (y) {
        s = Shape(x)
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        axis = Constant<value_ints = [0]>()
        b = Gather(s, zero)
        n = Gather(s, one)
        b1 = Unsqueeze(b, axis)
        n1 = Unsqueeze(n, axis)
        four = Constant<value_ints = [4]>()
        rest = Constant<value_ints = [-1]>()
        shape = Concat<axis = 0>(b1, n1, four, rest)
        h = Reshape(x, shape)
        t = Transpose<perm = [0, 2, 1, 3]>(h)
        all = Size(x)
        flat = Unsqueeze(all, axis)
        y = Reshape(t, flat)
    }""")
    assert shapes(made) == ["12*B*S"]
    assert "arith.muli" not in made.graph.module_text().split("linalg.transpose")[0]
    (y,) = results(made, x := np.arange(48.0, dtype=np.float32).reshape(2, 2, 12))
    assert (y == x.reshape(2, 2, 4, 3).transpose(0, 2, 1, 3).reshape(-1)).all()


def test_comparisons_of_sizes_are_decided_by_the_ranges() -> None:
    made = built("""g (float[B, 1] x) => (y) <int64[2] wanted = {-1, 5}, int64 minus = {-1}> {
        s = Shape(x)
        open = Equal(wanted, minus)
        shape = Where(open, s, wanted)
        y = Expand(x, shape)
    }""")
    assert shapes(made) == ["B, 5"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s = Shape(x) m = ReduceProd<keepdims = 1>(s) y = ConstantOfShape(m)", "12*B*S"),
        (
            "s = Shape<start = 1, end = 2>(x) two = Constant<value_ints = [2]>() h = Div(s, two) y = ConstantOfShape(h)",
            "floordiv(S, 2)",
        ),
        (
            "z = Constant<value_int = 0>() n = Constant<value_int = 2>() s = Shape(x) i = Constant<value_int = 1>() "
            "l = Gather(s, i) y = Range(z, l, n)",
            "floordiv(S + 1, 2)",
        ),
        (
            "a = Constant<value_ints = [1]>() e = Constant<value_ints = [9223372036854775807]>() y = Slice(x, a, e, a)",
            "B, S - 1, 12",
        ),
        (
            "s = Shape<start = 1, end = 2>(x) m = Constant<value_ints = [-2]>() h = Mod(m, s) y = ConstantOfShape(h)",
            "mod(-2, S)",
        ),
    ],
)
def test_shapes_over_dims(text: str, wanted: str) -> None:
    assert shapes(built(f"g (float[B, S, 12] x) => (y) {{ {text} }}")) == [wanted]


def test_dim_names() -> None:
    text = "g (float[N, M] x, float[?, K] z) => (y) { a = Relu(x) b = Relu(z) c = Concat<axis = 0>(a, b) y = Neg(c) }"
    loaded = model(text)
    axes = loaded.graph.input[0].type.tensor_type.shape.dim
    axes[0].dim_param, axes[1].dim_param = "batch-size", "K + 1"
    loaded.graph.node[2].op_type, loaded.graph.node[2].attribute[0].i = "MatMul", 0
    del loaded.graph.node[2].attribute[:]
    with pytest.raises(IngestError, match=r"batch_size +axis 0 of x"):
        onnx_graph(loaded, {"K": (1, 4), "z_0": (1, 5)})
    made = onnx_graph(loaded, {"batch-size": Dim(1, 8), "K": (1, 4), "z_0": (2, 5)})
    assert "the dim 'batch-size' is called batch_size here" in made.notes
    assert made.graph.dims == ("batch_size", "K")  # z_0 gave way to K + 1
    assert shapes(made) == ["batch_size, K"]
    assert made.consumed == {"batch-size", "z_0"}


def test_axes_that_have_a_multiple_of_a_dim() -> None:
    """As torch.onnx.export writes 2 * Dim("h"): where a range of h is given, else they are dims by themselves."""
    loaded = model("g (float[N, H] x) => (y) { y = Relu(x) }")
    loaded.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "2*h"
    assert shapes(onnx_graph(loaded, {"N": (1, 4), "h": (1, 8)})) == ["N, 2*h"]
    assert shapes(onnx_graph(loaded, {"N": (1, 4), "2*h": (1, 8)})) == ["N, dim_2_h"]


def test_named_dims_that_have_to_be_equal() -> None:
    made = built(
        "g (float[past, 4] p, float[new, 4] x, float[total] m) => (y) { a = Concat<axis = 0>(p, x) "
        "b = ReduceSum<keepdims = 0, noop_with_empty_axes = 0>(a, one) y = Add(b, m) }".replace(
            "=> (y) {", "=> (y) <int64[1] one = {1}> {"
        ),
        {"past": (0, 8), "new": (1, 4), "total": (1, 12)},
    )
    assert shapes(made) == ["new + past"]
    assert any("total = new + past" in n for n in made.notes)


def test_dims_by_place() -> None:
    text = "g (float[?, 4] x, float[?, 4] z) => (y) { y = Add(x, z) }"
    assert shapes(built(text, {"rows": Dim(2, 5, at=("x.0",)), "z.0": (2, 5)})) == ["rows, 4"]


def test_range_of_one_value_is_static() -> None:
    assert shapes(built("g (float[B, S] x) => (y) { y = Relu(x) }", {"B": (3, 3), "S": (1, 9)})) == ["3, S"]


def test_undeclared_dims_are_listed_with_a_line_to_paste() -> None:
    with pytest.raises(IngestError) as error:
        built("g (float[B, S] x) => (y) { y = Relu(x) }", {"B": (1, 8)})
    assert "no range is given for S" in str(error.value)
    assert 'paste and edit: dynamic_dims={"B": tw.Dim(1, 8), "S": tw.Dim(1, 128)}' in str(error.value)


def test_inputs_that_decide_shapes_are_bound() -> None:
    text = "g (float[B, 6] x, int64[2] shape) => (y) { y = Reshape(x, shape) }"
    with pytest.raises(IngestError, match=r"'shape'\) is computed from data, and decides a shape.*constants="):
        built(text, {"B": (1, 4)})
    made = built(text, {"B": (1, 4)}, {"shape": np.array([-1, 3])})
    assert shapes(made) == ["2*B, 3"]
    assert made.consumed == {"shape"}


def test_local_functions_and_function_bodies() -> None:
    loaded = onnx.parser.parse_model(
        HEAD
        + """g (float[B, 4] x) => (y) { a = local.twice<scale = 3.0>(x) y = MeanVarianceNormalization<axes = [1]>(a) }
        <domain: "local", opset_import: ["": 18]> twice <scale: float> (v) => (w) {
            s = Constant<value_float: float = @scale>() t = Mul(v, s) w = local.again(t) }
        <domain: "local", opset_import: ["": 18]> again (v) => (w) { w = Add(v, v) }"""
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (y,) = results(onnx_graph(loaded, {"B": (1, 4)}), x)
    assert np.allclose(y, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), atol=1e-5)


def test_branch_with_a_constant_condition() -> None:
    made = built(
        """g (float[B, 4] x) => (y) <bool c = {0}> {
        y = If<then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Neg(x) }>(c) }""",
        {"B": (1, 4)},
    )
    (y,) = results(made, np.ones((2, 4), np.float32))
    assert (y == -1).all()


def external(tmp_path: Path, **entries: str) -> Path:
    loaded = model("g (float[B, 2] x) => (y) { y = MatMul(x, w) }")
    tensor = loaded.graph.initializer.add(name="w", data_type=1, dims=[2, 2], data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(b"pad!" + np.arange(4, dtype=np.float32).tobytes())
    path = tmp_path / "m.onnx"
    path.write_bytes(loaded.SerializeToString())
    return path


def test_external_data_is_mapped(tmp_path: Path) -> None:
    made = onnx_graph(external(tmp_path, location="w.bin", offset="4", length="16"), {"B": (1, 4)})
    (array,) = made.graph.constants.values()
    base = array
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    (y,) = results(made, np.eye(2, dtype=np.float32))
    assert y.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({"location": "../w.bin"}, "not inside of the model's folder"),
        ({"location": "/etc/passwd"}, "not inside of the model's folder"),
        ({"location": "link", "length": "16"}, "not inside of the model's folder"),
        ({"location": "none.bin"}, "does not exist"),
        ({"location": "w.bin", "offset": "8"}, "needs 16 bytes"),
        ({"location": "w.bin", "length": "4"}, "needs 16 bytes"),
        ({"location": "w.bin", "offset": "x"}, "no numbers"),
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, str], wanted: str) -> None:
    path = external(tmp_path, **entries)
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(IngestError, match=wanted):
        onnx_graph(path, {"B": (1, 4)})


ONE = "g (float[B, S] x) => (y) { y = Relu(x) }"


def _node(m: Any, op: str, inputs: list[str], outputs: list[str]) -> None:
    m.graph.node.append(onnx.helper.make_node(op, inputs, outputs))


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (lambda m: setattr(m.opset_import[0], "version", 99), "of opset 99; wanted 13 to"),
        (lambda m: m.graph.ClearField("output"), "no graph with an output"),
        (lambda m: setattr(m.graph.output[0], "name", "z"), "'z' is made by no node"),
        (lambda m: (_node(m, "Add", ["x", "b"], ["a"]), _node(m, "Neg", ["a"], ["b"])), "the graph has a cycle"),
        (lambda m: _node(m, "Neg", ["x"], ["y"]), "makes the value 'y', which is there already"),
        (lambda m: _node(m, "Neg", ["nothing"], ["z"]), "reads the value 'nothing'"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs 'x'"),
        (lambda m: m.graph.node[0].input.append("x"), "it has 2 inputs; wanted 1 to 1"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -3), "has the extent -3"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1 << 60), "may have .* elements"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 8), "of element type STRING"),
        (lambda m: m.graph.initializer.add(name="w", data_type=1, dims=[1 << 40], raw_data=b"1234"), "needs 4398046511104 bytes"),
        (lambda m: m.graph.sparse_initializer.add(), "sparse initializers"),
    ],
)
def test_unsound_models(edit: Callable[[Any], object], wanted: str) -> None:
    loaded = model(ONE)
    edit(loaded)
    with pytest.raises(IngestError, match=wanted):
        onnx_graph(loaded, {"S": (1, 4)} if loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_value else RANGES)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Foo(x)", r'this operator is not known. Add it with tw.frontends.register\("onnx", "Foo"\)'),
        ("y = local.Foo(x)", r'tw.frontends.register\("onnx", "local.Foo"\)'),
        ("y = RandomNormalLike(x)", "random numbers are not compiled"),
        ("y = NonZero(x)", "the shape of its result depends on data"),
        ("y = SequenceConstruct(x)", "sequences and optional values"),
        (
            "c = Cast<to = 9>(x) "
            "y = If<then_branch = t () => (p) { p = Relu(x) }, else_branch = e () => (q) { q = Neg(x) }>(c)",
            r"its condition has shape \[B, S\]; wanted one element",
        ),
        ("y = Relu<newer = 3>(x)", "its attribute newer is not compiled"),
        ("y = Softmax<axis = 5>(x)", "axis 5 of a tensor of rank 2"),
        ("y = Add(x, z)", "needs the extents 7 and B to be equal"),
        ("y = local.f(x)", "nested more than 32 deep"),
    ],
)
def test_refused_nodes(body: str, wanted: str) -> None:
    text = f"g (float[B, S] x, float[7, 3] z) => (y) {{ {body} }}"
    if "local.f(" in body:
        text += '\n<domain: "local", opset_import: ["": 18, "local": 1]> f (a) => (b) { b = local.f(a) }'
    with pytest.raises(IngestError, match=wanted):
        built(text, {"B": (1, 4), "S": (4, 16)})


@pytest.mark.parametrize("data", [b"", b"no model at all", b"\x08\x09\x12\xff"])
def test_files_that_are_no_models(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(IngestError, match="is no ONNX model"):
        import_onnx(path)


def test_attention_stays_whole() -> None:
    loaded = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 23]>\n'
                                     "g (float[B, S, 64] q, float[B, S, 32] k, float[B, S, 32] v, float[S, S] m) => (y) "
                                     "{ y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v, m) }")  # fmt: skip
    made = onnx_graph(loaded, {"B": (1, 4), "S": (1, 16)})
    text = made.graph.module_text()
    assert (shapes(made), text.count("linalg.softmax")) == (["B, S, 64"], 1)
    rng = np.random.default_rng(1)
    q, k, v, m = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, 64), (2, 5, 32), (2, 5, 32), (5, 5)))
    heads = [np.moveaxis(a.reshape(2, 5, -1, 16), 1, 2) for a in (q, k, v)]
    scores = heads[0] @ np.moveaxis(np.repeat(heads[1], 2, 1), 2, 3) / 4 + m
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ np.repeat(heads[2], 2, 1)
    (got,) = results(made, q, k, v, m)
    assert np.allclose(got, np.moveaxis(want, 1, 2).reshape(2, 5, 64), atol=1e-5)


def test_operators_of_old_opsets() -> None:
    old = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["": 11]>\ng (float[B, 4] x) => (y) { a = Relu(x) y = Unsqueeze<axes = [0]>(a) }'
    )
    assert shapes(onnx_graph(old, {"B": (1, 4)})) == ["1, B, 4"]
    changed = onnx.parser.parse_model('<ir_version: 7, opset_import: ["": 11]>\ng (float[B, 4] x) => (y) { y = Softmax(x) }')
    with pytest.raises(IngestError, match="version_converter"):
        onnx_graph(changed, {"B": (1, 4)})
