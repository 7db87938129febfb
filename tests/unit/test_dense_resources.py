"""Weights that a model holds as `dense_resource`: the way exporters write large constants."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.constants.dense_resources import resources_of
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import IngestError
from tilewright.runtime.target import Target

NAMES = ["w", "torch_tensor_24_16_torch.float32", '"a name: \\22quoted\\22"']


def blob(array: np.ndarray) -> str:
    return "0x04000000" + array.tobytes().hex().upper()


def model(name: str, data: str, element: str = "f32") -> str:
    return f"""
    func.func @main(%x: tensor<?x24x{element}> {{tw.dims = ["T", 24]}}) -> tensor<?x16x{element}> {{
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0.0 : {element}
      %w = arith.constant dense_resource<{name}> : tensor<24x16x{element}>
      %t = tensor.dim %x, %c0 : tensor<?x24x{element}>
      %e = tensor.empty(%t) : tensor<?x16x{element}>
      %z = linalg.fill ins(%zero : {element}) outs(%e : tensor<?x16x{element}>) -> tensor<?x16x{element}>
      %r = linalg.matmul ins(%x, %w : tensor<?x24x{element}>, tensor<24x16x{element}>) outs(%z : tensor<?x16x{element}>)
        -> tensor<?x16x{element}>
      return %r : tensor<?x16x{element}>
    }}
    {{-#
      dialect_resources: {{
        builtin: {{
          other: "0x0400000000000000",
          {name}: "{data}"
        }}
      }}
    #-}}"""


def compiled(source: str | Path | ir.Module) -> tw.CompiledFunction:  # type: ignore[name-defined]
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    return tw.compile(source, {"T": tw.Dim(1, 8)}, options=options)


@pytest.mark.parametrize("name,given", [(NAMES[0], "text"), (NAMES[1], "file"), (NAMES[2], "module")])
def test_the_weights_are_constants_of_the_function(name: str, given: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 24), np.float32), rng.standard_normal((24, 16), np.float32)
    text = model(name, blob(w))
    if given == "file":
        (tmp_path / "model.mlir").write_text(text)
        fn = compiled(tmp_path / "model.mlir")
    elif given == "module":
        with ir.Context(), ir.Location.unknown():
            fn = compiled(ir.Module.parse(text))
    else:
        fn = compiled(text)
    assert [a.name for a in fn.inputs] == ["arg0"]
    np.testing.assert_allclose(fn(x), x @ w, rtol=2e-5, atol=2e-5)
    fn.save(tmp_path / "model.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "model.tw")(x), fn(x))


def test_elements_of_16_bits() -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((5, 24), (24, 16)))
    found = np.asarray(compiled(model("w", blob(w), "bf16"))(x)).astype(np.float32)
    np.testing.assert_allclose(found, x.astype(np.float32) @ w.astype(np.float32), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("data,said", [
    ("0x04000000" + "00" * 12, "holds 12 bytes of data; wanted 1536"),
    ("0x04000000" + "00" * 1540, "holds 1540 bytes of data; wanted 1536"),
])
def test_data_of_another_size_is_refused(data: str, said: str) -> None:
    with pytest.raises(IngestError, match=said):
        compiled(model("w", data))


def test_data_that_was_left_out_is_named() -> None:
    text = model("w", blob(np.zeros((24, 16), np.float32)))
    with pytest.raises(IngestError, match=r"dense_resource<w> is not in the model.*constants="):
        compiled(text[: text.index("{-#")])


def test_sections_are_read_to_their_ends() -> None:
    text = 'x {-# dialect_resources: { builtin: { a: "0x01", "b c": "0x0203" } } #-} y {-# d: { e.f: "0x04" } #-} g: "0x05"'
    assert resources_of(text) == {"a": "01", "b c": "0203", "e.f": "04"}
    assert resources_of("func.func @main() { return }") == {}
