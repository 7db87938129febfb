"""Kernels in llvm, scf, arith, vector and math become object code that runs and gives the right numbers."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tilewright.compiler.builder.codegen import compile_assembly, compile_object, host_target, limits, optimise, runtime_object
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import BuildError, DeviceError, OptionError
from tilewright.runtime.host.cpu import HostDevice, OrcCode
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.object_symbols import undefined_symbols
from tilewright.runtime.target import Target

HOST = Target.parse("host")
X86 = pytest.mark.skipif(machine() != "x86_64", reason="runs x86-64 code")

SUM = """
llvm.func @sum(%slots: !llvm.ptr, %begin: i64, %end: i64, %workspace: !llvm.ptr) {
  %step = arith.constant 16 : i64
  %in = llvm.load %slots : !llvm.ptr -> !llvm.ptr
  %second = llvm.getelementptr %slots[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %out = llvm.load %second : !llvm.ptr -> !llvm.ptr
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %tenth = arith.constant dense<0.1> : vector<16xf32>
  %total = scf.for %i = %begin to %end step %step iter_args(%sum = %zero) -> (vector<16xf32>) : i64 {
    %left = arith.subi %end, %i : i64
    %count = arith.index_cast %left : i64 to index
    %mask = vector.create_mask %count : vector<16xi1>
    %p = llvm.getelementptr %in[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %v = llvm.intr.masked.load %p, %mask, %zero {alignment = 4 : i32}
      : (!llvm.ptr, vector<16xi1>, vector<16xf32>) -> vector<16xf32>
    %w = vector.fma %v, %tenth, %sum : vector<16xf32>
    scf.yield %w : vector<16xf32>
  }
  %r = vector.reduction <add>, %total fastmath<reassoc> : vector<16xf32> into f32
  llvm.store %r, %out : f32, !llvm.ptr
  llvm.return
}
"""


def lower(source: str) -> str:
    with ir.Context(), ir.Location.unknown():
        return to_llvm_text(ir.Module.parse(source))


def run(source: str, *arrays: np.ndarray, target: Target = HOST, symbol: str = "k") -> None:
    """Call a function of pointers."""
    code = HostDevice().load([compile_object(lower(source), target)])
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(code.address(symbol))(*[a.ctypes.data for a in arrays])


def unary(op: str, count: int, kind: str) -> str:
    """out[:count] = op(in[:count]) on one vector."""
    v = f"vector<{count}x{kind}>"
    return f"""func.func @k(%in: !llvm.ptr, %out: !llvm.ptr) {{
      %x = llvm.load %in {{alignment = 1 : i64}} : !llvm.ptr -> {v}
      %y = {op} %x : {v}
      llvm.store %y, %out {{alignment = 1 : i64}} : {v}, !llvm.ptr
      return }}"""


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
def test_a_masked_vector_loop(size: int) -> None:
    x, out = np.arange(size, dtype=np.float32), np.zeros(1, np.float32)
    code = HostDevice().load([compile_object(lower(SUM), HOST)])
    slots = np.array([x.ctypes.data, out.ctypes.data], np.uint64)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        code.address("sum")
    )
    kernel(slots.ctypes.data, 0, size, None)
    assert out[0] == pytest.approx(0.1 * x.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("math.sin", np.sin),
        ("math.cos", np.cos),
        ("math.log", np.log),
        ("math.log2", np.log2),
        ("math.tanh", np.tanh),
        ("math.exp", np.exp),
        ("math.expm1", np.expm1),
        ("math.log1p", np.log1p),
        ("math.erf", np.vectorize(math.erf)),
        ("math.cbrt", np.cbrt),
        ("math.atan", np.arctan),
        ("math.sqrt", np.sqrt),
        ("math.rsqrt", lambda x: 1 / np.sqrt(x)),
        ("math.floor", np.floor),
        ("math.ceil", np.ceil),
        ("math.trunc", np.trunc),
        ("math.roundeven", np.rint),
        ("math.absf", np.abs),
        ("arith.negf", np.negative),
    ],
)
def test_functions_of_vectors(op: str, reference: object) -> None:
    x = np.linspace(0.1, 3.9, 8, dtype=np.float32)
    out = np.zeros_like(x)
    run(unary(op, 8, "f32"), x, out)
    np.testing.assert_allclose(out, reference(x.astype(np.float64)), rtol=3e-7)  # type: ignore[operator]


def test_integer_functions() -> None:
    x = np.array([-5, 0, 1, 1 << 30], np.int32)
    for op, wanted in {
        "math.absi": [5, 0, 1, 1 << 30],
        "math.ctpop": [31, 0, 1, 1],
        "math.ctlz": [0, 32, 31, 1],
        "math.cttz": [0, 32, 0, 30],
    }.items():
        out = np.zeros_like(x)
        run(unary(op, 4, "i32"), x, out)
        assert out.tolist() == wanted, op


@pytest.mark.parametrize("level", ["host", pytest.param("host:x86-64", marks=X86)])
@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_half_conversions(level: str, kind: str, dtype: type) -> None:
    """All 16-bit patterns to f32, and f32 and f64 back with ties, overflow and subnormals, also without instructions.

    The bf16 instruction of avx512bf16 takes numbers below 2^-126 for 0, whatever the floating-point environment says.
    """
    n = 1 << 16
    source = f"""func.func @k(%narrow: !llvm.ptr, %wide: !llvm.ptr, %from: !llvm.ptr, %double: !llvm.ptr,
                             %back: !llvm.ptr, %back2: !llvm.ptr) {{
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      %n = arith.constant {n} : i64
      scf.for %i = %zero to %n step %one : i64 {{
        %p0 = llvm.getelementptr %narrow[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
        %x = llvm.load %p0 : !llvm.ptr -> {kind}
        %y = arith.extf %x : {kind} to f32
        %p1 = llvm.getelementptr %wide[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        llvm.store %y, %p1 : f32, !llvm.ptr
        %p2 = llvm.getelementptr %from[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %u = llvm.load %p2 : !llvm.ptr -> f32
        %v = arith.truncf %u : f32 to {kind}
        %p3 = llvm.getelementptr %back[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
        llvm.store %v, %p3 : {kind}, !llvm.ptr
        %p4 = llvm.getelementptr %double[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f64
        %d = llvm.load %p4 : !llvm.ptr -> f64
        %w = arith.truncf %d : f64 to {kind}
        %p5 = llvm.getelementptr %back2[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
        llvm.store %w, %p5 : {kind}, !llvm.ptr
      }}
      return }}"""
    narrow = np.arange(n, dtype=np.uint16).view(dtype)
    exact = narrow.astype(np.float32)
    rng = np.random.default_rng(0)
    halfway = exact.copy()
    with np.errstate(all="ignore"):
        halfway[:-1] = (exact[:-1].astype(np.float64) + exact[1:]) / 2
        spread = halfway * (1 + rng.integers(-1, 2, n) * 2.0**-20).astype(np.float32)
    values = np.where(rng.random(n) < 0.5, halfway, spread).astype(np.float32)
    wide, back, back2 = np.zeros(n, np.float32), np.zeros(n, np.uint16), np.zeros(n, np.uint16)
    run(source, narrow, wide, values, values.astype(np.float64), back, back2, target=Target.parse(level))
    with np.errstate(all="ignore"):
        wanted = values.astype(dtype)
    if kind == "bf16" and "avx512bf16" in host_target(Target.parse(level)).required():
        for result in (back, back2, wanted.view(np.uint16)):
            result[np.abs(values) < 2.0**-126] &= 0x8000
    for found, reference in (
        (wide, exact),
        (back.view(dtype).astype(np.float32), wanted.astype(np.float32)),
        (back2.view(dtype).astype(np.float32), wanted.astype(np.float32)),
    ):
        np.testing.assert_array_equal(found, reference)
        number = ~np.isnan(reference)
        np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(reference[number]))


@X86
def test_doubles_round_once() -> None:
    """1 + 2^-11 + 2^-40 is above the tie between two halves, which f32 in between would hide."""
    x, out = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11, 1e300, 2.0**-30]), np.zeros(4, np.float16)
    source = """func.func @k(%in: !llvm.ptr, %out: !llvm.ptr) {
      %x = llvm.load %in : !llvm.ptr -> vector<4xf64>
      %y = arith.truncf %x : vector<4xf64> to vector<4xf16>
      llvm.store %y, %out {alignment = 2 : i64} : vector<4xf16>, !llvm.ptr
      return }""".replace("llvm.load %in :", "llvm.load %in {alignment = 8 : i64} :")
    run(source, x, out, target=Target.parse("host:x86-64"))
    assert out.tolist() == [1 + 2**-10, 1.0, np.inf, 0.0]


def test_left_over_ops_are_named() -> None:
    source = """func.func @k(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"""
    with pytest.raises(BuildError, match=r"func\.func"):
        lower(source)
    with pytest.raises(BuildError, match=r"tensor\.empty at loc"):
        lower(
            "func.func @k(%n: index) -> index { %t = tensor.empty(%n) : tensor<?xf32>\n"
            "%c = arith.constant 0 : index\n%d = tensor.extract %t[%c] : tensor<?xf32>\n"
            "%i = arith.fptosi %d : f32 to i64\n%r = arith.index_cast %i : i64 to index\nreturn %r : index }"
        )


def test_unknown_callees_are_refused() -> None:
    with pytest.raises(BuildError, match="nosuch"):
        compile_object("declare void @nosuch()\ndefine void @f() {\n call void @nosuch()\n ret void\n}", HOST)
    with pytest.raises(BuildError, match=r"llvm\.nosuch"):
        compile_object(
            "declare void @llvm.nosuch.i64()\ndefine void @f() {\n call void @llvm.nosuch.i64()\n ret void\n}", HOST
        )


def test_bad_text_is_a_build_error() -> None:
    with pytest.raises(BuildError, match="LLVM does not accept") as caught:
        compile_object("define void @f() { ret i32 0 }", HOST)
    assert "define void @f" in caught.value.log


@pytest.mark.parametrize(
    ("text", "vector", "registers"),
    [("host:x86-64", 16, 16), ("host:x86-64-v3", 32, 16), ("host:x86-64-v4", 64, 32), ("host:aarch64", 16, 32)],
)
def test_limits(text: str, vector: int, registers: int) -> None:
    found = limits(Target.parse(text))
    assert (found.vector_bytes, found.vector_registers) == (vector, registers)
    assert 0 < found.l1 < found.l2 <= found.l3


def test_host_limits() -> None:
    found = limits(HOST)
    assert found.cores >= 1 and found.vector_bytes in (16, 32, 64) and found.l1 >= 8192
    assert "prefer-256-bit" not in host_target(HOST).required()


@pytest.mark.parametrize("text", ["host:pentium", "cuda:sm_90a"])
def test_unknown_targets(text: str) -> None:
    with pytest.raises(OptionError, match="wanted host"):
        compile_object("", Target.parse(text))


def test_full_vectors_are_used() -> None:
    assert "zmm" in compile_assembly(lower(SUM), Target.parse("host:x86-64-v4"))
    assert "zmm" not in compile_assembly(lower(SUM), Target.parse("host:x86-64-v3"))


@X86
def test_innermost_loops_begin_on_a_cache_line() -> None:
    text = compile_assembly(lower(SUM), Target.parse("host:x86-64-v3"))
    heads = set(re.findall(r"^\s+j\w+\s+(\S+)$", text, re.M))
    aligned = re.findall(r"\.p2align\s+6.*\n(?:\s*#.*\n)*(\.\S+):", text)
    assert heads & set(aligned)


def test_loops_stay_as_written() -> None:
    """No vectorisation and no unrolling: one scalar fadd in the optimised loop."""
    text = """define float @f(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %s = phi float [ 0.0, %entry ], [ %s1, %loop ]
  %q = getelementptr float, ptr %p, i64 %i
  %x = load float, ptr %q
  %s1 = fadd reassoc float %s, %x
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %exit
exit:
  ret float %s1
}"""
    assert optimise(text, HOST).count("fadd") == 1


def test_cross_compilation() -> None:
    code = compile_object(lower(SUM), Target.parse("host:aarch64"))
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 183
    assert runtime_object(Target.parse("host:aarch64"))[:4] == b"\x7fELF"


def test_the_runtime_object_suits_every_machine() -> None:
    assert runtime_object(HOST) == runtime_object(HOST)
    assert "pthread_create" in undefined_symbols(runtime_object(HOST))
    if machine() == "x86_64":
        assert runtime_object(HOST) == runtime_object(Target.parse("host:x86-64-v3"))


def test_llvm_loads_it_too() -> None:
    """OrcCode is what other machines use."""
    code = OrcCode([compile_object(lower(unary("math.sin", 4, "f32")), HOST)])
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("k"))(x.ctypes.data, out.ctypes.data)
    np.testing.assert_allclose(out, np.sin(x), rtol=1e-6)
    with pytest.raises(KeyError):
        code.address("nothing")


def test_a_missing_symbol_is_a_device_error() -> None:
    llvm = pytest.importorskip("llvmlite.binding")
    target = host_target(HOST)
    module = llvm.parse_assembly("declare void @nosuch()\ndefine void @f() {\n call void @nosuch()\n ret void\n}")
    module.triple = target.triple
    tm = llvm.Target.from_triple(target.triple).create_target_machine(reloc="pic", codemodel="small")
    code = tm.emit_object(module)
    with pytest.raises(DeviceError):
        HostDevice().load([code])
    with pytest.raises(DeviceError):
        OrcCode([code]).address("f")


REFUSED = """
import gc, sys
from tilewright.compiler.builder.codegen import compile_object
from tilewright.compiler.builder.ptx import to_ptx
from tilewright.runtime.errors import BuildError
from tilewright.runtime.target import Target

gc.disable()
for n in range(20):
    for build in (lambda: to_ptx("define void @k() { call void @__nv_none() ret void }\\ndeclare void @__nv_none()", "sm_90a"),
                  lambda: to_ptx("define void @k() { %x = add i32 %x, 1 ret void }", "sm_90a"),
                  lambda: compile_object("define void @k() { %x = add i32 %x, 1 ret void }", Target.parse("host"))):
        try:
            build()
        except BuildError as error:
            kept = [error]
            kept.append(kept)
gc.collect()
print("alive")
"""


def test_refused_modules_are_collected_in_any_order() -> None:
    """A traceback in a circle holds modules and their contexts, which the collector ends in any order."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "alive\n", done.stderr[-2000:]
