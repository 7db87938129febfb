"""Stores of the first lanes under branches write what masked stores write."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from tilewright.compiler.builder.build import kernel_passes
from tilewright.compiler.builder.codegen import compile_object
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.passes.lowering.split_masked_stores import SplitMaskedStores
from tilewright.passes.mlir import ir
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.target import Target

NUMPY = {"f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "i8": np.int8}


def store(lanes: int, element: str) -> str:
    """out[:n] = in[:n] of one vector."""
    v, wide = f"vector<{lanes}x{element}>", f"vector<{lanes}xi64>"
    return f"""func.func @k(%in: !llvm.ptr, %out: !llvm.ptr, %n: i64) {{
      %x = llvm.load %in {{alignment = 1 : i64}} : !llvm.ptr -> {v}
      %ramp = arith.constant dense<{list(range(lanes))}> : {wide}
      %count = vector.broadcast %n : i64 to {wide}
      %mask = arith.cmpi slt, %ramp, %count : {wide}
      llvm.intr.masked.store %x, %out, %mask {{alignment = 1 : i32}} : {v}, vector<{lanes}xi1> into !llvm.ptr
      return }}"""


@pytest.mark.parametrize("element", NUMPY)
@pytest.mark.parametrize("lanes", [2, 8, 16, 64])
def test_every_count(lanes: int, element: str) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(store(lanes, element))
        SplitMaskedStores().run(module)
        assert "masked.store" not in str(module)
        code = HostDevice().load([compile_object(to_llvm_text(module), Target.parse("host"))])
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.address("k"))
    x = np.arange(1, lanes + 1).astype(NUMPY[element])
    for count in (-(2**63), -3, *range(lanes + 3), 2**62):
        out = np.zeros(lanes + 1, x.dtype)
        kernel(x.ctypes.data, out[:lanes].ctypes.data, count)
        some = min(max(count, 0), lanes)
        assert (out[:some] == x[:some]).all() and not out[some:].any()


@pytest.mark.parametrize(("target", "split"), [("host:x86-64-v2", True), ("host:x86-64-v3", True), ("host:x86-64-v4", False),
                                              ("cuda:sm_90a", False)])
def test_targets_with_fast_masked_stores_keep_them(target: str, split: bool) -> None:
    names = [p.name for p in kernel_passes("", "k", "", Target.parse(target))]
    assert (SplitMaskedStores.name in names) is split
