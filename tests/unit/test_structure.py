"""Structure: nested arguments and results of programs, and what front ends give `tw.compile`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.runtime.errors import DTypeError, IngestError, OptionError
from tilewright.runtime.program.structure import NONE, Structure
from tilewright.runtime.target import Target

pytestmark = pytest.mark.usefixtures("built_here")

leaf = Structure.leaf
NESTED = Structure.mapping({
    "x": leaf(0),
    "weights": Structure.sequence([leaf(1), Structure.mapping({"bias": leaf(2)})], "list"),
    "mask": NONE,
})
RESULTS = Structure.mapping({"logits": leaf(1), "parts": Structure.sequence([leaf(0), leaf(1), NONE])})
RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 8), (8, 4), (4,)))


def model(inputs: Structure | None = NESTED, outputs: Structure | None = RESULTS, **rest: Any) -> ImportedModel:
    graph = ops.Graph()
    x, w, b = graph.input("x", ["T", 8]), graph.input("w", [8, 4]), graph.input("b", [4])
    product = ops.matmul(x, w)
    graph.output(product, product + b)
    return ImportedModel(graph.module_text(), {"T": tw.Dim(1, 9)}, input_structure=inputs, output_structure=outputs, **rest)


@pytest.fixture(scope="module")
def fn() -> Any:
    return tw.compile(model())


def test_a_structure_is_plain_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(NESTED), type=Structure) == NESTED
    assert NESTED.describe() == "{x: #0, weights: [#1, {bias: #2}], mask: None}"


def test_flatten_and_unflatten() -> None:
    value = {"x": 1, "weights": (2, {"bias": 3}), "mask": None}
    assert NESTED.flatten(value) == [1, 2, 3]
    assert NESTED.unflatten([1, 2, 3]) == {"x": 1, "weights": [2, {"bias": 3}], "mask": None}
    assert RESULTS.unflatten("ab") == {"logits": "b", "parts": ("a", "b", None)}


def test_leaves_that_are_bound_leave_their_container() -> None:
    assert NESTED.renumbered({0: 0, 2: 1}).describe() == "{x: #0, weights: [{bias: #1}], mask: None}"
    assert leaf(3).renumbered({}) == NONE


@pytest.mark.parametrize(("args", "named"), [
    ((X, [W, {"bias": B}]), {}), ((X, (W, {"bias": B}), None), {}), ((X,), {"weights": [W, {"bias": B}], "mask": None}),
])  # fmt: skip
def test_nested_calls(fn: Any, args: tuple[Any, ...], named: dict[str, Any], tmp_path: Path) -> None:
    fn.save(tmp_path / "fn.tw")
    for function in (fn, tw.load(tmp_path / "fn.tw")):
        found = function(*args, **named)
        assert list(found) == ["logits", "parts"] and type(found["parts"]) is tuple and found["parts"][2] is None
        assert found["parts"][1] is found["logits"]
        np.testing.assert_allclose(found["logits"], X @ W + B, rtol=1e-5, atol=1e-6)


def test_out_is_nested_too(fn: Any) -> None:
    logits, product = np.empty((3, 4), np.float32), np.empty((3, 4), np.float32)
    found = fn(X, [W, {"bias": B}], out={"logits": logits, "parts": (product, logits, None)})
    assert found["logits"] is logits and found["parts"][0] is product
    np.testing.assert_allclose(product, X @ W, rtol=1e-5, atol=1e-6)


def test_results_are_of_the_kind_of_the_arguments(fn: Any) -> None:
    torch = pytest.importorskip("torch")
    found = fn(torch.from_numpy(X), [torch.from_numpy(W), {"bias": torch.from_numpy(B)}])
    assert isinstance(found["logits"], torch.Tensor) and isinstance(found["parts"][0], torch.Tensor)


@pytest.mark.parametrize(("args", "named", "message"), [
    ((X,), {}, r"wanted 3 arguments \(x: f32\[T, 8\], weights: \[w: .*, got 1; pass weights too"),
    ((X, W), {}, r"argument weights: wanted a list of 2 as in \[#1, {bias: #2}\], got ndarray"),
    ((X, [W]), {}, "argument weights: wanted a list of 2 .* got a list of 1"),
    ((X, [W, {"b": B}]), {}, r"argument weights\[1\]: wanted a dict with bias, got one with b"),
    ((X, [W, B]), {}, r"argument weights\[1\]: wanted a dict with bias, got ndarray"),
    ((X, [W, {"bias": B}]), {"mask": B}, "argument mask: wanted None"),
    ((X, [W, {"bias": B}]), {"out": X}, "out: wanted a dict with logits, parts, got ndarray"),
    ((X, [W.T, {"bias": B}]), {}, "argument w, axis 0: wanted extent 8"),
])  # fmt: skip
def test_a_call_nested_otherwise(fn: Any, args: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises((DTypeError, tw.errors.ShapeError), match=message):
        fn(*args, **named)


def test_numbers_among_arguments_and_results() -> None:
    inputs = Structure.mapping({"x": leaf(0), "k": Structure.constant(3), "more": Structure.sequence([Structure.constant("a")])})
    results = Structure.sequence([leaf(1), leaf(0, is_number=True), Structure.constant(7)])
    kept = inputs.renumbered({0: 5})
    assert kept == Structure.mapping({**dict(zip(inputs.keys, inputs.items, strict=True)), "x": leaf(5)})
    assert inputs.describe() == "{x: #0, k: 3, more: ('a',)}"
    assert inputs.flatten({"x": X, "k": 3, "more": [None]})[0] is X
    for given, said in (({"x": X, "k": 4, "more": ["a"]}, r"value\['k'\]: wanted 3, as the model was compiled for, got 4; leave "
                         "it out or pass 3, or compile the model for 4"),
                        ({"x": X, "k": X, "more": ["a"]}, "wanted 3, as the model was compiled for, got ndarray; leave it")):
        with pytest.raises(DTypeError, match=said):
            inputs.flatten(given)
    found = results.unflatten([np.float32(2.5).reshape(()), X])
    assert found[0] is X and type(found[1]) is float and found[1:] == (2.5, 7)
    assert msgspec.json.decode(msgspec.json.encode(results), type=Structure) == results


def test_a_structure_that_says_nothing_is_none() -> None:
    flat = Structure.mapping({"x": leaf(0), "w": leaf(1), "b": leaf(2)})
    fn = tw.compile(model(flat, Structure.sequence([leaf(0), leaf(1)])))
    assert fn.program.input_structure is None and fn.program.output_structure is None
    assert tw.compile(model(None, None)).program == fn.program


def test_a_structure_without_a_leaf_for_an_argument() -> None:
    with pytest.raises(IngestError, match="has no leaf for the arguments b"):
        tw.compile(model(Structure.mapping({"x": leaf(0), "w": leaf(1)})))


def test_constants_of_the_model_and_of_the_caller() -> None:
    inputs = Structure.mapping({"x": leaf(0), "more": Structure.sequence([leaf(2)])})
    fn = tw.compile(model(inputs, None, constants={"w": W}))
    np.testing.assert_allclose(fn(X, (B,))[1], X @ W + B, rtol=1e-5, atol=1e-6)
    both = tw.compile(model(inputs, None, constants={"w": W}), constants={"b": B})
    np.testing.assert_allclose(both(X, ())[1], X @ W + B, rtol=1e-5, atol=1e-6)


def test_dims_of_the_model_are_defaults() -> None:
    assert str(tw.compile(model()).dims["T"]) == "1..9"
    assert str(tw.compile(model(), {"T": (2, 4)}).dims["T"]) == "2..4"
    assert str(tw.compile(model(), {"x.0": (2, 5)}).dims["T"]) == "2..5"


def test_donations_of_the_model() -> None:
    graph = ops.Graph()
    graph.output(graph.input("cache", ["T"]) + 1.0)
    fn = tw.compile(ImportedModel(graph.module_text(), {"T": tw.Dim(1, 9)}, donate=("cache",)))
    given = np.zeros(3, np.float32)
    assert fn(given) is given and list(given) == [1, 1, 1]


def test_the_key_tells_models_apart() -> None:
    base = model(constants={"w": W}, inputs=None)
    others = [replace(base, text=base.text + "\n"), replace(base, dims={"T": tw.Dim(1, 8)}), replace(base, donate=("x",)),
              replace(base, constants={"w": 2 * W}), replace(base, constants={"b": B}), replace(base, output_structure=None)]
    keys = [Compilation(m, {}, Target.parse("host")).key() for m in (base, replace(base), *others)]
    assert keys[0] == keys[1] and len(set(keys)) == len(keys) - 1


def fake_library(monkeypatch: pytest.MonkeyPatch, library: str, taken: list[Any]) -> None:
    """A front end that notes what comes, in place of the real one."""
    module: Any = ModuleType("importer")

    def take(*args: Any) -> ImportedModel:
        taken.append(args)
        return model()

    setattr(module, f"import_{library}", take)
    monkeypatch.setitem(sys.modules, f"tilewright.compiler.frontends.{library}", ModuleType("package"))
    monkeypatch.setitem(sys.modules, f"tilewright.compiler.frontends.{library}.importer", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def made_class(library: str, name: str) -> Any:
    return type(name, (), {"__module__": f"{library}.inside"})


def test_models_of_torch_go_to_its_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    fake_library(monkeypatch, "torch", taken)
    module = type("Mine", (made_class("torch", "Module"),), {})()
    fn = tw.compile(module, {"T": (1, 4)}, args=(1,), kwargs={"b": 2}, dynamic_shapes={"x": None})
    assert taken == [(module, (1,), {"b": 2}, {"x": None}, {"T": tw.Dim(1, 4)})] and str(fn.dims["T"]) == "1..4"
    exported = made_class("torch", "ExportedProgram")()
    tw.compile(exported)
    assert taken[1:] == [(exported, None, None, None, {})]
    with pytest.raises(OptionError, match=r"Mine is a torch.nn.Module: wanted args=\(...\) or kwargs="):
        tw.compile(module)


def test_models_of_onnx_go_to_its_front_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[Any] = []
    fake_library(monkeypatch, "onnx", taken)
    path = tmp_path / "m.onnx"
    path.touch()
    proto = made_class("onnx", "ModelProto")()
    for given in (path, str(path), proto):
        tw.compile(given, {"T": (1, 4)})
    assert taken == [(m, {"T": tw.Dim(1, 4)}, {}) for m in (path, path, proto)]
    with pytest.raises(IngestError, match=r"no model at '.*none.onnx': wanted the path of a file, and there is none"):
        tw.compile(tmp_path / "none.onnx")


def test_arguments_for_what_is_no_module() -> None:
    with pytest.raises(OptionError, match=r"args=, kwargs= and dynamic_shapes= are for a torch.nn.Module.*got ImportedModel"):
        tw.compile(model(), args=(1,))


@pytest.mark.parametrize(("library", "name"), [("torch", "ExportedProgram"), ("onnx", "ModelProto")])
def test_a_library_that_is_not_installed(library: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(IngestError, match=rf'needs {library}, which is not installed: pip install "tilewright\[{library}\]"'):
        tw.compile(made_class(library, name)())
