"""Kernels of one expression over arrays, expanded, lowered and run, and what their results are held against."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.compiler.builder.codegen import compile_assembly, compile_object
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.passes.base import Pass
from tilewright.passes.mlir import ir
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.target import Target

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
          "i32": np.int32, "i64": np.int64, "i1": np.bool_}
Array = np.ndarray[Any, Any]


def assert_same(got: Array, wanted: Array, message: str = "") -> None:
    """Equal values, NaN in the same places."""
    if got.dtype == ml_dtypes.bfloat16:
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(got, wanted, message)


def kernel_text(name: str, body: str, operands: Sequence[str], result: str, lanes: int) -> str:
    """An llvm.func storing %y of `body` for every %x0, %x1, ...; {f32} stands for f32 or its vector, n counts those."""
    def typed(element: str) -> str:
        return element if lanes == 1 else f"vector<{lanes}x{element}>"

    types = {e: typed(e) for e in DTYPES}
    stored = "i8" if result == "i1" else result
    loads = "\n".join(
        f"    %p{i} = llvm.getelementptr %a{i}[%at] : (!llvm.ptr, i64) -> !llvm.ptr, {e}\n"
        f"    %x{i} = llvm.load %p{i} {{alignment = 1 : i64}} : !llvm.ptr -> {typed(e)}"
        for i, e in enumerate(operands))
    widen = f"%w = arith.extui %y : {typed('i1')} to {typed('i8')}" if result == "i1" else ""
    return f"""
llvm.func @run_{name}({", ".join(f"%a{i}: !llvm.ptr" for i in range(len(operands)))}, %out: !llvm.ptr, %n: i64) {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %lanes = arith.constant {lanes} : i64
  scf.for %i = %zero to %n step %one : i64 {{
    %at = arith.muli %i, %lanes : i64
{loads}
    {body.format(**types)}
    {widen}
    %q = llvm.getelementptr %out[%at] : (!llvm.ptr, i64) -> !llvm.ptr, {stored}
    llvm.store {"%w" if widen else "%y"}, %q {{alignment = 1 : i64}} : {typed(stored)}, !llvm.ptr
  }}
  llvm.return
}}"""


class Kernels:
    """A module of kernels, expanded, lowered and loaded; `run` calls one of them."""

    def __init__(self, specs: dict[str, tuple[str, tuple[str, ...], str]], passes: Sequence[Pass],
                 lanes: int = 16, target: str = "host") -> None:
        self.specs, self.lanes = specs, lanes
        text = "\n".join(kernel_text(name, *spec, lanes) for name, spec in specs.items())
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            for step in passes:
                step.run(module)
                module.operation.verify()
            self.expanded = str(module)
            text = to_llvm_text(module)
        self.assembly = compile_assembly(text, Target.parse(target))
        self._code = load_native([compile_object(text, Target.parse(target))])

    def run(self, name: str, *arguments: Array) -> Array:
        _, operands, result = self.specs[name]
        count = len(arguments[0])
        padded = -(-count // self.lanes) * self.lanes
        arrays = []
        for a, element in zip(arguments, operands, strict=True):
            assert a.dtype == DTYPES[element]
            arrays.append(np.concatenate([a, np.zeros(padded - count, a.dtype)]))
        out = np.empty(padded, DTYPES[result])
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in [*arrays, out]]
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers), ctypes.c_int64)
        signature(self._code.address(f"run_{name}"))(*pointers, padded // self.lanes)
        return out[:count]


def unary(op: str, element: str = "f32", flags: str = "") -> tuple[str, tuple[str, ...], str]:
    return f"%y = math.{op} %x0 {flags} : {{{element}}}", (element,), element


def binary(op: str, element: str, flags: str = "") -> tuple[str, tuple[str, ...], str]:
    return f"%y = {op} %x0, %x1 {flags} : {{{element}}}", (element, element), element


def cast(op: str, source: str, target: str) -> tuple[str, tuple[str, ...], str]:
    return f"%y = arith.{op} %x0 : {{{source}}} to {{{target}}}", (source,), target


def samples() -> Array:
    """f32: random bit patterns, a dense sweep of moderate numbers, and the special ones."""
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    moderate = (np.exp(rng.uniform(-20, 5.5, 200_000)) * rng.choice([-1, 1], 200_000)).astype(np.float32)
    near_one = (1 + rng.uniform(-0.5, 0.5, 50_000)).astype(np.float32)
    tiny = np.finfo(np.float32).smallest_subnormal
    turns = (np.arange(1, 90_000) * (np.pi / 2)).astype(np.float32)  # next to zeros of sines
    marks = np.array([0, 1, tiny, 2.0**-126, 2.0**-149, 0.5, 2, 3.92, 9.02, 10, 88, 88.72283, 88.72284, 87.33654,
                      87.3366, 103.9, 104, 126, 127.99999, 128, 129, 150, 3.4e38, np.inf, np.nan], np.float32)
    return np.concatenate([patterns, moderate, near_one, turns, -turns * 65536, marks, -marks])


def ulps(value: Array, exact: Array, bits: int = 24, least: int = -126) -> Array:
    """Error of `value` in units of the last place of `exact`, for a format of `bits` bits of mantissa."""
    exponent = np.maximum(np.frexp(exact)[1] - 1, least)
    return np.abs(value.astype(np.float64) - exact) / np.ldexp(1.0, exponent - bits + 1)
