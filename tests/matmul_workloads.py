"""Texts of matmul workloads and their check against NumPy: what the family host_matmul computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from hand_workloads import with_loops
from kernel_harness import NUMPY, Dim, T, at_edge, filled, guarded, load, workload

from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

AVX512 = HostLimits(64, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 2)
AVX2 = HostLimits(32, 16)
TOLERANCE = {"f32": 2e-6, "f64": 1e-14, "f16": 2e-3, "bf16": 1.6e-2, "i32": 0.0, "i64": 0.0}


def generic(out: str, maps: Sequence[str], kinds: str, ins: Mapping[str, T], init: tuple[str, T], body: str) -> str:
    """A linalg.generic; kinds is one letter a loop: p or r; block arguments are x0, x1, ..., acc."""
    iterators = ", ".join({"p": '"parallel"', "r": '"reduction"'}[k] for k in kinds)
    listed = ", ".join(f"affine_map<{m}>" for m in maps)
    arguments = ", ".join([*(f"%x{i}: {t.element}" for i, t in enumerate(ins.values())), f"%acc: {init[1].element}"])
    return f"""%{out} = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{iterators}]}}
      ins({", ".join(f"%{n}" for n in ins)} : {", ".join(t.type() for t in ins.values())})
      outs(%{init[0]} : {init[1].type()}) {{ ^bb0({arguments}): {body} }} -> {init[1].type()}"""


def multiply_add(t: str) -> str:
    f = "f" if "f" in t else "i"
    return f"""%p = arith.mul{f} %x0, %x1 : {t}
      %s = arith.add{f} %acc, %p : {t}
      linalg.yield %s : {t}"""


def matmul(a: T, b: T, c: T, maps: str, kinds: str = "pppr", inputs: Mapping[str, T] | None = None, after: str = "",
           results: Mapping[str, T] | None = None, dims: Sequence[str] | None = None, body: str = "") -> str:
    """A workload around one generic contraction of %a and %b; maps: "b m k, k n, b m n" over loops b, m, n, k."""
    loops = "(d0, d1, d2, d3)" if len(kinds) == 4 else "(d0, d1, d2)"
    names = dict(zip("bmnk" if len(kinds) == 4 else "mnk", ("d0", "d1", "d2", "d3"), strict=False))
    written = [f"{loops} -> ({', '.join(names[x] for x in m.split())})" for m in maps.split(",")]
    f = "0.0" if "f" in c.element else "0"
    text = filled("z", c, f) + "\n" + generic("m", written, kinds, {"a": a, "b": b}, ("z", c), body or multiply_add(c.element))
    named = [d for t in (a, b, c) for d in t.dims if isinstance(d, str)]
    return workload(inputs or {"a": a, "b": b}, dims or list(dict.fromkeys(named)), text + "\n" + after, results or {"m": c})


def random(t: T, dims: Mapping[str, int], seed: int = 0) -> np.ndarray:
    """Memory order: the unit axis last."""
    rng = np.random.default_rng(seed + 17 * len(t.dims))
    shape = t.shape(dims)
    most = 128 if t.element == "i8" else 8
    values = rng.integers(-most, most, shape) if t.element[0] == "i" else rng.standard_normal(shape)
    found = values.astype(NUMPY[t.element])
    if t.unit is not None and t.dims:
        found = np.moveaxis(np.ascontiguousarray(np.moveaxis(found, t.unit, -1)), -1, t.unit)
    return at_edge(found)


def check(text: str, config: str, inputs: Mapping[str, T], results: Sequence[T], dims: Mapping[str, int],
          reference: Callable[..., object], parts: int = 1, target: str = "host") -> list[np.ndarray]:
    arrays = [random(t, dims, seed) for seed, t in enumerate(inputs.values())]
    outputs = []
    for t in results:
        made = guarded(t.shape(dims), np.dtype(NUMPY[t.element]))
        unit = len(t.dims) - 1 if t.unit is None else t.unit % len(t.dims)
        order = [a for a in range(len(t.dims)) if a != unit] + [unit]
        outputs.append(made.reshape([t.shape(dims)[a] for a in order]).transpose(np.argsort(order)))
    load(text, config, target)(arrays, dims, outputs, parts)
    exact = [x.astype(np.float64 if t.element[0] != "i" else np.int64) for x, t in zip(arrays, inputs.values(), strict=True)]
    wanted = reference(*exact)
    for t, got, want in zip(results, outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert got.shape == want.shape
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        error = np.abs(got.astype(np.float64) - want).max(initial=0) / scale
        assert error <= TOLERANCE[t.element], (config, dims, error)
    return outputs


LAYOUTS = {"nn": (("M", "K"), ("K", "N"), "m k,k n,m n"), "nt": (("M", "K"), ("N", "K"), "m k,n k,m n"),
           "tn": (("K", "M"), ("K", "N"), "k m,k n,m n"), "tt": (("K", "M"), ("N", "K"), "k m,n k,m n"),
           "transposed_result": (("M", "K"), ("K", "N"), "m k,k n,n m")}


def windows(x: np.ndarray, kh: int, kw: int, stride: int, dilation: int) -> np.ndarray:
    """[n, h, w, c] -> [n, oh, ow, kh, kw, c]."""
    oh = (x.shape[1] - dilation * (kh - 1) - 1) // stride + 1
    ow = (x.shape[2] - dilation * (kw - 1) - 1) // stride + 1
    found = np.empty((x.shape[0], oh, ow, kh, kw, x.shape[3]), x.dtype)
    for i in range(kh):
        for j in range(kw):
            corner = x[:, i * dilation :, j * dilation :]
            found[:, :, :, i, j] = corner[:, : (oh - 1) * stride + 1 : stride, : (ow - 1) * stride + 1 : stride]
    return found


def described(m: Dim, n: Dim, k: Dim, unit: int = 1, transposed: bool = False, across: bool = False) -> Workload:
    """[m, k] x [k, n], or [n, k] when transposed, [k, m] where it lies across; unit: the axis of unit stride of the result."""
    def size(d: Dim) -> Expr:
        return Expr.of(d) if isinstance(d, int) else Expr.dim(d)

    a, c = (size(k), size(m)) if across else (size(m), size(k)), (size(m), size(n))
    b = (size(n), size(k)) if transposed else (size(k), size(n))
    operands = [Operand(DType.F32, d, 1) for d in (a, b)]
    loops = (Loop("m", size(m)), Loop("n", size(n)), Loop("k", size(k)))
    found = Workload("key", "dense", Kind.CONTRACTION, "", ("M", "N", "K"), tuple(operands), (Operand(DType.F32, c, unit),),
                     loops, size(m) * size(n) * size(k) * 2, Expr.of(0))
    return with_loops(found, f"{'k m' if across else 'm k'},{'n k' if transposed else 'k n'},m n")


def prepacked_work(rows: Dim, tile: int, columns: int = 2304) -> Workload:
    """Rows times constant columns in panels of `tile`."""
    work = described(rows, columns, 768)
    packed = Operand(DType.F32, (Expr.of(columns // tile), Expr.of(768), Expr.of(tile)), 2, True, tile)
    return dataclasses.replace(work, inputs=(work.inputs[0], packed))
