"""Texts of workloads for the tests of GPU families, with their references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from kernel_harness import Dim, T, empty, filled, workload

RELU = """%s = arith.addf %x0, %x1 : f32
      %zero = arith.constant 0.0 : f32
      %r = arith.maximumf %s, %zero : f32
      %o = arith.addf %r, %x2 : f32
      linalg.yield %o : f32"""
TANH = """%s = arith.addf %x0, %x1 : f32
      %r = math.tanh %s : f32
      %o = arith.addf %r, %x2 : f32
      linalg.yield %o : f32"""


@dataclass(frozen=True)
class Case:
    """A workload with its operands and what it computes."""

    text: str
    inputs: tuple[T, ...]
    results: tuple[T, ...]
    reference: Callable[..., object]


def generic(out: str, maps: Sequence[str], kinds: str, ins: Mapping[str, T], init: tuple[str, T], body: str) -> str:
    """A linalg.generic; kinds is one letter a loop: p or r; block arguments are x0, x1, ..., acc."""
    iterators = ", ".join({"p": '"parallel"', "r": '"reduction"'}[k] for k in kinds)
    listed = ", ".join(f"affine_map<{m}>" for m in maps)
    arguments = ", ".join([*(f"%x{i}: {t.element}" for i, t in enumerate(ins.values())), f"%acc: {init[1].element}"])
    given = f"ins({', '.join(f'%{n}' for n in ins)} : {', '.join(t.type() for t in ins.values())})" if ins else ""
    return f"""%{out} = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{iterators}]}}
      {given}
      outs(%{init[0]} : {init[1].type()}) {{ ^bb0({arguments}): {body} }} -> {init[1].type()}"""


def multiply_add(t: str) -> str:
    f = "f" if "f" in t else "i"
    return f"""%p = arith.mul{f} %x0, %x1 : {t}
      %s = arith.add{f} %acc, %p : {t}
      linalg.yield %s : {t}"""


def contraction(maps: str, element: str = "f32", sizes: Mapping[str, Dim] | None = None, epilogue: str = "",
                computed: str = "") -> Case:
    """maps: "b m k,b k n,b m n" over the loops of their letters, k reduced; epilogue: a body over (sum, bias, residual).
    computed: the operands, of "a" and "b", that are x * x of an argument."""
    letters = [x.split() for x in maps.split(",")]
    order = [x for x in "bmn" if x in letters[2]] + ["k"]
    names = {x: f"d{i}" for i, x in enumerate(order)}
    written = [f"({', '.join(names.values())}) -> ({', '.join(names[x] for x in m)})" for m in letters]
    extents: dict[str, Dim] = {x: x.upper() for x in order} | dict(sizes or {})
    a, b, c = (T(element, tuple(extents[x] for x in m)) for m in letters)
    body = filled("z", c, "0.0" if "f" in element else "0") + "\n"
    read = {}
    for name, t in (("a", a), ("b", b)):
        read[f"{name}2" if name in computed else name] = t
        if name in computed:
            whole = f"({', '.join(f'd{i}' for i in range(len(t.dims)))})"
            square = f"%s = arith.mul{'f' if 'f' in element else 'i'} %x0, %x0 : {element}\n linalg.yield %s : {element}"
            body += empty(f"{name}e", t) + "\n" + generic(f"{name}2", [f"{whole} -> {whole}"] * 2, "p" * len(t.dims), {name: t},
                                                          (f"{name}e", t), square) + "\n"
    body += generic("m", written, "p" * (len(order) - 1) + "r", read, ("z", c), multiply_add(element))
    inputs, result = {"a": a, "b": b}, "m"
    if epilogue:
        bias = T(element, c.dims[-1:])
        loops = f"({', '.join(f'd{i}' for i in range(len(c.dims)))})"
        ident, last = f"{loops} -> {loops}", f"{loops} -> (d{len(c.dims) - 1})"
        body += "\n" + empty("e", c) + "\n" + generic("r", [ident, last, ident, ident], "p" * len(c.dims),
                                                      {"m": c, "bias": bias, "x": c}, ("e", c), epilogue)
        inputs |= {"bias": bias, "x": c}
        result = "r"
    sums = "->".join([",".join("".join(m) for m in letters[:2]), "".join(letters[2])])

    def reference(x: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None, r: np.ndarray | None = None) -> np.ndarray:
        total = np.einsum(sums, x * x if "a" in computed else x, y * y if "b" in computed else y)
        if bias is None:
            return total
        return (np.tanh if "tanh" in epilogue else lambda v: np.maximum(v, 0))(total + bias) + r

    dims = [e for e in extents.values() if isinstance(e, str)]
    return Case(workload(inputs, dims, body, {result: c}), tuple(inputs.values()), (c,), reference)


def rows(kind: str, columns: Dim = "N", element: str = "f32") -> Case:
    """"sum", "sum0" (along the other axis), "softmax" or "layernorm" of an M x N tensor."""
    x, r = T(element, ("M", columns)), T(element, ("M",))
    full, row, column, one = "(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)", "(d0, d1) -> (d1)", "(d0) -> (d0)"
    e = element
    add = f"%a = arith.addf %x0, %acc : {e}\n linalg.yield %a : {e}"
    zero, space = filled("z", r, "0.0"), empty("e", x) + "\n" + empty("re", r)
    dims = ["M", *([columns] if isinstance(columns, str) else [])]

    def total(out: str, of: str) -> str:
        return generic(out, [full, row], "pr", {of: x}, ("z", r), add)

    def case(body: Sequence[str], inputs: Mapping[str, T], result: str, t: T, reference: Callable[..., object]) -> Case:
        return Case(workload(inputs, dims, "\n".join(body), {result: t}), tuple(inputs.values()), (t,), reference)

    if kind == "sum":
        return case([zero, total("r", "x")], {"x": x}, "r", r, lambda a: a.sum(1))
    if kind == "sum0":
        c = T(element, (columns,))
        body = [filled("z", c, "0.0"), generic("r", [full, column], "rp", {"x": x}, ("z", c), add)]
        return case(body, {"x": x}, "r", c, lambda a: a.sum(0))
    if kind == "softmax":
        low = {"f32": "0xFF800000", "f16": "0xFC00", "bf16": "0xFF80", "f64": "0xFFF0000000000000"}[e]
        largest = f"%a = arith.maximumf %x0, %acc : {e}\n linalg.yield %a : {e}"
        body = [filled("low", r, low), zero, space, generic("m", [full, row], "pr", {"x": x}, ("low", r), largest)]
        body += [
                 generic("p", [full, row, full], "pp", {"x": x, "m": r}, ("e", x),
                         f"%a = arith.subf %x0, %x1 : {e}\n %b = math.exp %a : {e}\n linalg.yield %b : {e}"),
                 total("s", "p"),
                 generic("y", [full, row, full], "pp", {"p": x, "s": r}, ("e", x),
                         f"%a = arith.divf %x0, %x1 : {e}\n linalg.yield %a : {e}")]

        def softmax(a: np.ndarray) -> np.ndarray:
            p = np.exp(a - a.max(1, keepdims=True, initial=-np.inf))
            return p / p.sum(1, keepdims=True)

        return case(body, {"x": x}, "y", x, softmax)
    g = T(element, (columns,))
    count = f"%n0 = arith.index_cast %N : index to i32\n %nf = arith.sitofp %n0 : i32 to {e}" if isinstance(columns, str) \
        else f"%nf = arith.constant {float(columns)} : {e}"
    body = [zero, space, count, total("s", "x"),
            generic("mu", [one, one], "p", {"s": r}, ("re", r), f"%a = arith.divf %x0, %nf : {e}\n linalg.yield %a : {e}"),
            generic("v", [full, row, row], "pr", {"x": x, "mu": r}, ("z", r),
                    f"%a = arith.subf %x0, %x1 : {e}\n %b = arith.mulf %a, %a : {e}\n %c = arith.addf %b, %acc : {e}\n "
                    f"linalg.yield %c : {e}"),
            generic("d", [one, one], "p", {"v": r}, ("re", r),
                    f"%a = arith.divf %x0, %nf : {e}\n %eps = arith.constant 1.0e-5 : {e}\n %b = arith.addf %a, %eps : {e}\n "
                    f"%c = math.rsqrt %b : {e}\n linalg.yield %c : {e}"),
            generic("y", [full, row, row, column, column, full], "pp", {"x": x, "mu": r, "d": r, "gain": g, "bias": g}, ("e", x),
                    f"%a = arith.subf %x0, %x1 : {e}\n %f = arith.mulf %a, %x2 : {e}\n %h = arith.mulf %f, %x3 : {e}\n "
                    f"%k = arith.addf %h, %x4 : {e}\n linalg.yield %k : {e}")]

    def layernorm(a: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
        mean = a.mean(1, keepdims=True)
        return (a - mean) / np.sqrt(((a - mean) ** 2).mean(1, keepdims=True) + 1e-5) * g + b

    return case(body, {"x": x, "gain": g, "bias": g}, "y", x, layernorm)


def windows(x: np.ndarray, stride: int, out: int) -> np.ndarray:
    """[n, h, w, c] -> [n, oh, ow, 3, 3, c]."""
    found = np.empty((x.shape[0], out, out, 3, 3, x.shape[3]), x.dtype)
    last = (out - 1) * stride + 1
    for i in range(3):
        for j in range(3):
            found[:, :, :, i, j] = x[:, i:, j:][:, :last:stride, :last:stride]
    return found


def convolution(layout: str = "nhwc", stride: int = 1, pad: int = 0, channels: int = 8, features: int = 19,
                size: int = 9) -> Case:
    """A 3 x 3 convolution of B images; the pad is part of the region."""
    out = (size + 2 * pad - 3) // stride + 1
    nhwc = layout == "nhwc"
    a = T("f32", ("B", size, size, channels) if nhwc else ("B", channels, size, size))
    wide = size + 2 * pad
    p = T("f32", ("B", wide, wide, channels) if nhwc else ("B", channels, wide, wide))
    b = T("f32", (3, 3, channels, features) if nhwc else (features, channels, 3, 3))
    c = T("f32", ("B", out, out, features) if nhwc else ("B", features, out, out))
    body = filled("z", c, "0.0") + "\n"
    source = "a"
    if pad:
        sides = f"[0, {pad}, {pad}, 0]" if nhwc else f"[0, 0, {pad}, {pad}]"
        body += f"""%zero = arith.constant 0.0 : f32
          %p = tensor.pad %a low{sides} high{sides} {{ ^bb0(%i: index, %j: index, %k: index, %l: index):
            tensor.yield %zero : f32 }} : {a.type()} to {p.type()}\n"""
        source = "p"
    op = "conv_2d_nhwc_hwcf" if nhwc else "conv_2d_nchw_fchw"
    body += f"""%m = linalg.{op} {{strides = dense<{stride}> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}}
      ins(%{source}, %b : {p.type() if pad else a.type()}, {b.type()}) outs(%z : {c.type()}) -> {c.type()}"""

    def reference(x: np.ndarray, f: np.ndarray) -> np.ndarray:
        y = x if nhwc else x.transpose(0, 2, 3, 1)
        y = np.pad(y, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        return np.einsum("nhwijc,ijcf->nhwf" if nhwc else "nhwijc,fcij->nfhw", windows(y, stride, out), f)

    return Case(workload({"a": a, "b": b}, ("B",), body, {"m": c}), (a, b), (c,), reference)


def pointwise(body: str, reference: Callable[..., object], element: str = "f32") -> Case:
    """A body over (x, bias of the last axis) on M x N."""
    x, b = T(element, ("M", "N")), T(element, ("N",))
    ident = "(d0, d1) -> (d0, d1)"
    text = empty("e", x) + "\n" + generic("r", [ident, "(d0, d1) -> (d1)", ident], "pp", {"x": x, "b": b}, ("e", x), body)
    return Case(workload({"x": x, "b": b}, ("M", "N"), text, {"r": x}), (x, b), (x,), reference)


def transpose(element: str = "f32", plus: bool = False) -> Case:
    """N x M from M x N; `plus` adds an N x M tensor."""
    x, y = T(element, ("M", "N")), T(element, ("N", "M"))
    ident, flip = "(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1, d0)"
    inputs = {"x": x, "w": y} if plus else {"x": x}
    body = f"%s = arith.addf %x0, %x1 : {element}\n linalg.yield %s : {element}" if plus else f"linalg.yield %x0 : {element}"
    maps = [flip, ident, ident] if plus else [flip, ident]
    text = empty("e", y) + "\n" + generic("r", maps, "pp", inputs, ("e", y), body)
    return Case(workload(inputs, ("M", "N"), text, {"r": y}), tuple(inputs.values()), (y,),
                (lambda a, w: a.T + w) if plus else (lambda a: a.T))


def over_operands(case: Case) -> Case:
    """The same; results may lie where inputs do that they follow from element by element."""
    head, body = case.text.split(" {\n", 1)
    return replace(case, text=f"{head} attributes {{tw.in_place}} {{\n{body}")


def gather(element: str = "f32", index: str = "i64") -> Case:
    """Rows of an M x N table by indices."""
    table, at, out = T(element, ("M", "N")), T(index, ("K",)), T(element, ("K", "N"))
    body = empty("e", out) + "\n" + generic(
        "r", ["(d0, d1) -> (d0)", "(d0, d1) -> (d0, d1)"], "pp", {"at": at}, ("e", out),
        f"""%i = arith.index_cast %x0 : {index} to index
        %j = linalg.index 1 : index
        %v = tensor.extract %table[%i, %j] : {table.type()}
        linalg.yield %v : {element}""")
    return Case(workload({"table": table, "at": at}, ("M", "N", "K"), body, {"r": out}), (table, at), (out,),
                lambda a, i: a[i])


def selective_scan(states: int = 16) -> Case:
    """h = a * h + x[t] * b[t] of M x `states`, and at each of T steps the sum of c[t] * h over the states."""
    x, out = T("f32", ("T", "M")), T("f32", ("T", "M"))
    rows, a, whole = T("f32", ("T", states)), T("f32", ("M", states)), T("f32", ("T", "M", states))
    inputs = {"x": x, "a": a, "b": rows, "c": rows}
    here, body = "(d0, d1, d2)", """%s = linalg.index 3 : index
        %t = linalg.index 0 : index
        %k = arith.mulf %x1, %acc : f32
        %u = arith.mulf %x0, %x2 : f32
        %n = arith.addf %k, %u : f32
        %g = arith.cmpi sle, %s, %t : index
        %v = arith.select %g, %n, %acc : f32
        linalg.yield %v : f32"""
    text = "\n".join([
        empty("e", whole), "%z = arith.constant 0.0 : f32",
        f"%f = linalg.fill ins(%z : f32) outs(%e : {whole.type()}) -> {whole.type()}",
        generic("h", ["(d0, d1, d2, d3) -> (d3, d1)", "(d0, d1, d2, d3) -> (d1, d2)", "(d0, d1, d2, d3) -> (d3, d2)",
                      f"(d0, d1, d2, d3) -> {here}"], "pppr", {"x": x, "a": a, "b": rows}, ("f", whole), body),
        empty("o", out), f"%p = linalg.fill ins(%z : f32) outs(%o : {out.type()}) -> {out.type()}",
        generic("r", [f"{here} -> {here}", f"{here} -> (d0, d2)", f"{here} -> (d0, d1)"], "ppr", {"h": whole, "c": rows},
                ("p", out),
                """%m = arith.mulf %x0, %x1 : f32
        %v = arith.addf %acc, %m : f32
        linalg.yield %v : f32""")])

    def reference(x: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        h, found = np.zeros_like(a), np.empty_like(x)
        for t in range(len(x)):
            h = a * h + x[t][:, None] * b[t]
            found[t] = h @ c[t]
        return found

    return Case(workload(inputs, ("T", "M"), text, {"r": out}), tuple(inputs.values()), (out,), reference)


def concat() -> Case:
    """M x N beside M x 8 beside M x N."""
    x, y, out = T("f32", ("M", "N")), T("f32", ("M", 8)), T("f32", ("M", "L"))
    body = f"%r = tensor.concat dim(1) %x, %y, %x : ({x.type()}, {y.type()}, {x.type()}) -> {out.type()}"
    text = workload({"x": x, "y": y}, ("M", "N"), body, {"r": out}).replace('"L"', '"2*N + 8"')
    return Case(text, (x, y), (out,), lambda a, b: np.concatenate([a, b, a], 1))


def padded() -> Case:
    """M x N with two columns of 1.5 before and two behind, doubled."""
    x, out = T("f32", ("M", "N")), T("f32", ("M", "L"))
    body = f"""%one = arith.constant 1.5 : f32
      %p = tensor.pad %x low[0, 2] high[0, 2] {{ ^bb0(%i: index, %j: index):
        tensor.yield %one : f32 }} : {x.type()} to {out.type()}
      %c1 = arith.constant 1 : index
      %l = tensor.dim %p, %c1 : {out.type()}
      %e = tensor.empty(%M, %l) : {out.type()}
      """ + generic("r", ["(d0, d1) -> (d0, d1)"] * 2, "pp", {"p": out}, ("e", out),
                    "%s = arith.addf %x0, %x0 : f32\n linalg.yield %s : f32")
    text = workload({"x": x}, ("M", "N"), body, {"r": out}).replace('"L"', '"N + 4"')
    return Case(text, (x,), (out,), lambda a: 2 * np.pad(a, ((0, 0), (2, 2)), constant_values=1.5))


def diagonals() -> Case:
    """Sums along the diagonals of M x N, a scatter: the result's map is no permutation."""
    x, out = T("f32", ("M", "N")), T("f32", ("L",))
    body = """%c1 = arith.constant 1 : index
      %s0 = arith.addi %M, %N : index
      %l = arith.subi %s0, %c1 : index
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty(%l) : tensor<?xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
      """ + generic("r", ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0 + d1)"], "rr", {"x": x}, ("z", out),
                    "%s = arith.addf %x0, %acc : f32\n linalg.yield %s : f32")
    text = workload({"x": x}, ("M", "N"), body, {"r": out}).replace('"L"', '"M + N - 1"')
    return Case(text, (x,), (out,),
                lambda a: np.array([np.trace(a[:, ::-1], a.shape[1] - 1 - i) for i in range(sum(a.shape) - 1)]))
