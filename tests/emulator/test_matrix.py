"""ldmatrix, stmatrix, movmatrix and mma.sync against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator.harness import findings, kernel, run

from tilewright.runtime.emulator import KernelCheck

SHARED = ".shared .align 16 .b8 buffer[4096];"
FILL = """
    mul.wide.u32 %rd10, %r0, 16; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10; add.s64 %rd12, %rd0, %rd10;
    ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd12]; st.shared.v4.b32 [%rd11], {{%r2, %r3, %r4, %r5}}; {sync}
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count: int, transposed: bool) -> None:
    registers = [f"%r{20 + i}" for i in range(count)]
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 {{{', '.join(registers)}}}, [%rd11];"
    body = FILL.format(sync="bar.warp.sync -1;") + load + f"mul.wide.u32 %rd10, %r0, {4 * count};add.s64 %rd13, %rd1, %rd10;"
    body += "".join(f"st.global.b32 [%rd13+{4 * i}], {r};" for i, r in enumerate(registers))
    data = np.arange(256, dtype=np.uint16)
    got = run(kernel(body, 2, shared=SHARED), [data], [((32, count, 2), np.uint16)])[0]
    matrices = data.reshape(4, 8, 8)
    for lane in range(32):
        for i in range(count):
            matrix = matrices[i].T if transposed else matrices[i]
            assert got[lane, i].tolist() == matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].tolist()


def test_stmatrix_inverts_ldmatrix() -> None:
    body = FILL.format(sync="bar.warp.sync -1;") + """
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r20, %r21, %r22, %r23}, [%rd11]; bar.warp.sync -1;
    movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r20;
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%rd11+1024], {%r20, %r21, %r22, %r23}; bar.warp.sync -1;
    ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%rd11+1024]; add.s64 %rd13, %rd1, %rd10;
    st.global.v4.b32 [%rd13], {%r2, %r3, %r4, %r5};
    """  # fmt: skip
    data = np.arange(256, dtype=np.uint16)
    got = run(kernel(body, 2, shared=SHARED), [data], [((4, 8, 8), np.uint16)])[0]
    wanted = data.reshape(4, 8, 8).copy()
    wanted[0] = wanted[0].T
    np.testing.assert_array_equal(got, wanted)


def test_matrix_loads_are_checked() -> None:
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%rd11{o}];"
    data = np.arange(256, dtype=np.uint16)
    for sync, offset, wanted in [
        ("bar.warp.sync -1;", "", []),
        ("bar.warp.sync -1;", "+8", [KernelCheck.ALIGNMENT]),
        ("bar.warp.sync -1;", "+4096", [KernelCheck.BOUNDS]),
        ("bar.warp.sync -1;", "+1024", [KernelCheck.UNINITIALISED]),
    ]:
        text = kernel(FILL.format(sync=sync) + load.replace("{o}", offset), 2, shared=SHARED)
        assert [f.check for f in findings(text, [data])] == wanted, offset
    half = FILL.format(sync="") + "setp.lt.u32 %p1, %r0, 16; @%p1 " + load.replace("{o}", "")
    assert KernelCheck.WARP in [f.check for f in findings(kernel(half, 2, shared=SHARED), [data])]


KINDS: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8,
                         "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


def fragments(matrix: np.ndarray, per: int, rows: int) -> np.ndarray:
    """[lane, register] of A (rows = 16) or of B given as [n, k] (rows = 8), as the ISA's figures lay them out."""
    k = matrix.shape[1]
    out = np.zeros((32, rows // 8 * k // (4 * per), per), dtype=matrix.dtype)
    for lane in range(32):
        for register in range(out.shape[1]):
            half, chunk = (register % 2, register // 2) if rows == 16 else (0, register)
            for element in range(per):
                out[lane, register, element] = matrix[lane // 4 + 8 * half, (lane % 4) * per + element + 4 * per * chunk]
    return np.ascontiguousarray(out).view(np.uint32)[..., 0]


@pytest.mark.parametrize(
    ("k", "kind", "accumulator"),
    [(16, "f16", "f32"), (8, "f16", "f32"), (16, "f16", "f16"), (16, "bf16", "f32"), (8, "tf32", "f32"), (4, "tf32", "f32"),
     (32, "s8", "s32"), (16, "u8", "s32"), (32, "e4m3", "f32"), (32, "e5m2", "f32")],
)  # fmt: skip
def test_mma(k: int, kind: str, accumulator: str) -> None:
    rng = np.random.default_rng(0)
    dtype = np.dtype(KINDS[kind])
    if dtype.kind in "iu":
        a, b = (rng.integers(-100 if kind == "s8" else 0, 100, (r, k)).astype(dtype) for r in (16, 8))
    else:
        a, b = (rng.standard_normal((r, k)).astype(np.float32) for r in (16, 8))
        a, b = ((v.view(np.uint32) & 0xFFFFE000).view(np.float32) if kind == "tf32" else v.astype(dtype) for v in (a, b))
    wide = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[accumulator]
    c = (rng.standard_normal((16, 8)) * 4).astype(wide)
    per, words = 4 // dtype.itemsize, 2 if accumulator == "f16" else 4
    fa, fb = fragments(a, per, 16), fragments(b, per, 8)
    ra, rb = ([f"%r{base + i}" for i in range(f.shape[1])] for base, f in ((10, fa), (20, fb)))
    rc = [f"%r{30 + i}" for i in range(words)]
    body = ""
    for pointer, registers in ((0, ra), (1, rb), (2, rc)):
        body += f"mul.wide.u32 %rd10, %r0, {4 * len(registers)}; add.s64 %rd11, %rd{pointer}, %rd10;"
        body += "".join(f"ld.global.b32 {r}, [%rd11+{4 * i}];" for i, r in enumerate(registers))
    lists = [", ".join(r) for r in (rc, ra, rb, rc)]
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.{accumulator}.{kind}.{kind}.{accumulator}"
    body += f"{opcode} {{{lists[0]}}}, {{{lists[1]}}}, {{{lists[2]}}}, {{{lists[3]}}};"
    body += f"mul.wide.u32 %rd10, %r0, {4 * words}; add.s64 %rd11, %rd3, %rd10;"
    body += "".join(f"st.global.b32 [%rd11+{4 * i}], {r};" for i, r in enumerate(rc))
    rows = np.arange(32)[:, None] // 4 + 8 * (np.arange(4) // 2)
    columns = 2 * (np.arange(32)[:, None] % 4) + np.arange(4) % 2
    fc = np.ascontiguousarray(c[rows, columns])
    got = run(kernel(body, 4), [fa, fb, fc], [((32, 4), wide)])[0]
    wanted = a.astype(np.float64) @ b.astype(np.float64).T + c
    np.testing.assert_array_equal(got, wanted.astype(wide)[rows, columns])


def test_mma_of_doubles() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((8, 4)), rng.standard_normal((8, 4)), rng.standard_normal((8, 8))
    body = """
    mul.wide.u32 %rd10, %r0, 8; add.s64 %rd11, %rd0, %rd10; add.s64 %rd12, %rd1, %rd10; ld.global.f64 %fd1, [%rd11];
    ld.global.f64 %fd2, [%rd12]; mul.wide.u32 %rd10, %r0, 16; add.s64 %rd13, %rd2, %rd10; add.s64 %rd14, %rd3, %rd10;
    ld.global.v2.f64 {%fd3, %fd4}, [%rd13];
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd3, %fd4}, {%fd1}, {%fd2}, {%fd3, %fd4};
    st.global.v2.f64 [%rd14], {%fd3, %fd4};
    """
    got = run(kernel(body, 4), [a, b, c], [((8, 8), np.float64)])[0]
    np.testing.assert_allclose(got, a @ b.T + c, rtol=1e-14)
