"""Texts of contractions of narrow elements, with their references: what tensor-core families compute."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from gpu_workloads import Case, generic, windows
from kernel_harness import NUMPY, Dim, T, empty, filled, workload

SUMS = {"f16": "f32", "bf16": "f32", "f32": "f32", "i8": "i32", "f8E4M3FN": "f32", "f8E5M2": "f32"}
EPILOGUES = {
    "relu": ("%s = arith.addf %x0, %x1 : f32\n %zero = arith.constant 0.0 : f32\n %r = arith.maximumf %s, %zero : f32",
             lambda v: np.maximum(v, 0)),
    "tanh": ("%s = arith.addf %x0, %x1 : f32\n %r = math.tanh %s : f32", np.tanh),
    "gelu": ("""%s = arith.addf %x0, %x1 : f32
 %root = arith.constant 1.4142135 : f32
 %one = arith.constant 1.0 : f32
 %half = arith.constant 0.5 : f32
 %d = arith.divf %s, %root : f32
 %erf = math.erf %d : f32
 %up = arith.addf %erf, %one : f32
 %p = arith.mulf %up, %half : f32
 %r = arith.mulf %p, %s : f32""",
             lambda v: v * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(v / np.float32(1.4142135)))),
}


def shortened(x: np.ndarray) -> np.ndarray:
    """What tensor cores read of f32 as tf32: 10 bits of mantissa, the rest cut off."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def widened(element: str) -> str:
    """The body acc + x0 * x1 of factors that are widened first."""
    wide = SUMS[element]
    if element == wide:
        cast, a, b = "", "%x0", "%x1"
    else:
        name = "extsi" if element == "i8" else "extf"
        cast = "\n".join(f"%w{i} = arith.{name} %x{i} : {element} to {wide}" for i in range(2))
        a, b = "%w0", "%w1"
    f = "f" if wide[0] == "f" else "i"
    return f"{cast}\n %p = arith.mul{f} {a}, {b} : {wide}\n %s = arith.add{f} %acc, %p : {wide}\n linalg.yield %s : {wide}"


def product(maps: str, element: str = "f16", sizes: Mapping[str, Dim] | None = None, epilogue: str = "", out: str = "",
            computed: bool = False) -> Case:
    """maps: "b m k,b k n,b m n" over the loops of their letters, k reduced.

    epilogue: of EPILOGUES, on the sum and a bias, a residual added. out: the result is rounded to it. computed: the left operand
    is rounded from f32 in the region and multiplied by two.
    """
    letters = [x.split() for x in maps.split(",")]
    order = [x for x in "bmn" if x in letters[2]] + ["k"]
    names = {x: f"d{i}" for i, x in enumerate(order)}
    written = [f"({', '.join(names.values())}) -> ({', '.join(names[x] for x in m)})" for m in letters]
    extents: dict[str, Dim] = {x: x.upper() for x in order} | dict(sizes or {})
    wide = SUMS[element]
    shapes = [tuple(extents[x] for x in m) for m in letters]
    a, b, c = T("f32" if computed else element, shapes[0]), T(element, shapes[1]), T(wide, shapes[2])
    body = filled("z", c, "0.0" if wide[0] == "f" else "0") + "\n"
    inputs: dict[str, T] = {"a": a, "b": b}
    left = {"a": a}
    if computed:
        narrow = T(element, shapes[0])
        ident = f"({', '.join(f'd{i}' for i in range(len(shapes[0])))})"
        body += empty("ne", narrow) + "\n" + generic(
            "na", [f"{ident} -> {ident}"] * 2, "p" * len(shapes[0]), {"a": a}, ("ne", narrow),
            f"%d = arith.addf %x0, %x0 : f32\n %t = arith.truncf %d : f32 to {element}\n linalg.yield %t : {element}") + "\n"
        left = {"na": narrow}
    body += generic("m", written, "p" * (len(order) - 1) + "r", {**left, "b": b}, ("z", c), widened(element))
    result, final = "m", T(out or wide, shapes[2])
    loops = f"({', '.join(f'd{i}' for i in range(len(c.dims)))})"
    ident, last = f"{loops} -> {loops}", f"{loops} -> (d{len(c.dims) - 1})"
    if epilogue or out:
        text, given, listed = "", {"m": c}, [ident]
        value = "%x0"
        if epilogue:
            bias, residual = T("f32", c.dims[-1:]), T("f32", c.dims)
            inputs |= {"bias": bias, "x": residual}
            given |= {"bias": bias, "x": residual}
            listed += [last, ident]
            text = EPILOGUES[epilogue][0] + "\n %o = arith.addf %r, %x2 : f32\n"
            value = "%o"
        if out:
            text += f"%t = arith.truncf {value} : f32 to {out}\n"
            value = "%t"
        body += "\n" + empty("e", final) + "\n" + generic("r", [*listed, ident], "p" * len(c.dims), given, ("e", final),
                                                          f"{text} linalg.yield {value} : {final.element}")
        result = "r"
    sums = "->".join([",".join("".join(m) for m in letters[:2]), "".join(letters[2])])

    def reference(x: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None, r: np.ndarray | None = None) -> np.ndarray:
        total = np.einsum(sums, (2 * x).astype(NUMPY[element]).astype(np.float64) if computed else x, y)
        return total if bias is None else EPILOGUES[epilogue][1](total + bias) + r

    dims = [e for e in extents.values() if isinstance(e, str)]
    return Case(workload(inputs, dims, body, {result: final}), tuple(inputs.values()), (final,), reference)


def convolution(stride: int = 1, pad: int = 1, channels: int = 8, features: int = 16, size: int = 9,
                element: str = "f16") -> Case:
    """A 3 x 3 convolution of B channels-last images; the pad is part of the region."""
    out, wide = (size + 2 * pad - 3) // stride + 1, size + 2 * pad
    a, p = T(element, ("B", size, size, channels)), T(element, ("B", wide, wide, channels))
    b, c = T(element, (3, 3, channels, features)), T("f32", ("B", out, out, features))
    body, source = filled("z", c, "0.0") + "\n", "a"
    if pad:
        sides = f"[0, {pad}, {pad}, 0]"
        body += f"""%zero = arith.constant 0.0 : {element}
          %padded = tensor.pad %a low{sides} high{sides} {{ ^bb0(%i: index, %j: index, %k: index, %l: index):
            tensor.yield %zero : {element} }} : {a.type()} to {p.type()}\n"""
        source = "padded"
    loops = "(n, h, w, f, y, x, c)"
    maps = [f"{loops} -> (n, h * {stride} + y, w * {stride} + x, c)", f"{loops} -> (y, x, c, f)", f"{loops} -> (n, h, w, f)"]
    body += generic("m", maps, "pppprrr", {source: p if pad else a, "b": b}, ("z", c), widened(element))

    def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        return np.einsum("nhwyxc,yxcf->nhwf", windows(x, stride, out), w)

    return Case(workload({"a": a, "b": b}, ["B"], body, {"m": c}), (a, b), (c,), reference)
