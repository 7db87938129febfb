"""Runs hand-written PTX on the emulator: one instruction over arrays, or a whole kernel body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.emulator import ALL_CHECKS, EmulatorDevice, Finding
from tilewright.runtime.emulator.ptx_program import PtxProgram

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
    .reg .pred %p<16>;
    .reg .b16 %rs<32>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<64>;
    .reg .f32 %f<32>;
    .reg .f64 %fd<16>;
"""


def kernel(body: str, pointers: int = 1, integers: int = 0, shared: str = "", module: str = "") -> str:
    """PTX of kernel `k`: %rd0... hold the pointers, then %r60 downward the integers, %r0 the thread."""
    names = [f".param .u64 p{i}" for i in range(pointers)] + [f".param .u32 n{i}" for i in range(integers)]
    loads = [f"ld.param.b64 %rd{i}, [p{i}];" for i in range(pointers)]
    loads += [f"ld.param.b32 %r{60 - i}, [n{i}];" for i in range(integers)]
    lines = "\n    ".join([*loads, "mov.u32 %r0, %tid.x;"])
    return f"{HEADER}{module}\n.visible .entry k({', '.join(names)})\n{{{REGISTERS}{shared}\n    {lines}\n{body}\n    ret;\n}}\n"


def run(
    text: str,
    inputs: Sequence[np.ndarray[Any, Any]] = (),
    outputs: Sequence[tuple[tuple[int, ...], Any]] = (),
    integers: Sequence[int] = (),
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared: int = 0,
    **options: Any,
) -> list[np.ndarray[Any, Any]]:
    """Launch kernel `k` of `text` with the inputs' and outputs' addresses and the integers; the outputs."""
    device = EmulatorDevice(**options)
    addresses = [device.upload(a) for a in inputs]
    results = [device.alloc(int(np.prod(shape)) * np.dtype(kind).itemsize) for shape, kind in outputs]
    program = device.load(text).kernel("k")
    device.launch(program, grid, block, shared, slots(program, [*addresses, *results, *integers]))
    return [device.copy_out(a, shape, kind) for a, (shape, kind) in zip(results, outputs, strict=True)]


def slots(program: PtxProgram, given: list[int]) -> list[int]:
    """The launch arguments; pointers that a test does not use are null."""
    return given + [0] * (len(program.parameters) - len(given))


def findings(text: str, *args: Any, **options: Any) -> list[Finding]:
    """What all checks find in a launch as in `run`; nothing is raised but what is fatal."""
    device = EmulatorDevice(collect=True, **{k: options.pop(k) for k in ("checks", "seed", "budget") if k in options})
    inputs, outputs = (*args, (), ())[:2]
    addresses = [device.upload(a) for a in inputs]
    results = [device.alloc(int(np.prod(shape)) * np.dtype(kind).itemsize) for shape, kind in outputs]
    block = options.get("block", (32, 1, 1))
    program = device.load(text).kernel("k")
    given = slots(program, [*addresses, *results, *options.get("integers", ())])
    device.launch(program, options.get("grid", (1, 1, 1)), block, options.get("shared", 0), given)
    for address, (shape, kind) in zip(results, outputs, strict=True):
        device.copy_out(address, shape, kind)
    return device.report.findings


def apply(instruction: str, result: Any, *sources: Any, checks: Any = ALL_CHECKS, setup: str = "") -> np.ndarray[Any, Any]:
    """One instruction per element: `{d}` is the result register, `{0}`, `{1}`... hold the sources, `{t}` is a predicate."""
    arrays = [np.ascontiguousarray(a) for a in sources]
    count, kind = len(arrays[0]), np.dtype(result)
    lines = [f".reg .b{max(16, 8 * kind.itemsize)} %d;"]
    lines += [f".reg .b{max(16, 8 * a.dtype.itemsize)} %a{i};" for i, a in enumerate(arrays)]
    lines += ["mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;", "mad.lo.u32 %r0, %r1, %r2, %r0;"]
    lines += [f"setp.ge.u32 %p15, %r0, {count};", "@%p15 bra DONE;"]
    for i, a in enumerate(arrays):
        width = a.dtype.itemsize
        lines += [f"mad.wide.u32 %rd60, %r0, {width}, %rd{i};", f"ld.global.b{8 * width} %a{i}, [%rd60];"]
    lines.append(setup)
    lines.append(instruction.format(*(f"%a{i}" for i in range(len(arrays))), d="%d", t="%p1"))
    lines.append(f"mad.wide.u32 %rd60, %r0, {kind.itemsize}, %rd{len(arrays)};")
    lines += [f"st.global.b{8 * kind.itemsize} [%rd60], %d;", "DONE:"]
    grid = (-(-count // 64), 1, 1)
    text = kernel("\n    ".join(lines), pointers=len(arrays) + 1)
    return run(text, arrays, [((count,), kind)], grid=grid, block=(64, 1, 1), checks=checks)[0]
