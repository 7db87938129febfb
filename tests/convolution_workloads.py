"""Texts and operands of convolution workloads over padded channels-last images."""

from __future__ import annotations

import numpy as np
from kernel_harness import NUMPY, Dim, T, filled, workload
from matmul_workloads import generic, multiply_add

from tilewright.passes.dispatch_creation.outlined import workload_of
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.workload import Workload

Zeros = tuple[tuple[int, int], tuple[int, int]]
WHOLE = ((0, 0), (0, 0))


def image(height: Dim, width: Dim, channels: int, zeros: Zeros, element: str = "f32") -> T:
    """A padded image: the first and last `zeros` of its rows and columns are zero."""
    return Padded(element, ("B", height, width, channels), -1, (0, 0, *zeros[0], *zeros[1], 0, 0))


class Padded(T):
    """A tensor whose attributes tell of zeros."""

    def __init__(self, element: str, dims: tuple[Dim, ...], unit: int | None, zeros: tuple[int, ...]) -> None:
        super().__init__(element, dims, unit)
        object.__setattr__(self, "zeros", zeros)

    def attributes(self) -> str:
        return f"{super().attributes()[:-1]}, tw.zeros = {list(self.zeros)}}}"


def convolution(x: T, kernel: tuple[int, int], filters: int, stride: int, dilation: int, out: tuple[Dim, Dim]) -> str:
    """The text of a workload; loops image, row, column, filter, then window row, window column, channel."""
    w = T(x.element, (*kernel, x.dims[3], filters))
    y = T(x.element, ("B", *out, filters))
    loops = "(d0, d1, d2, d3, d4, d5, d6)"
    read = ", ".join(f"d{1 + i} * {stride} + d{4 + i} * {dilation}" for i in (0, 1))
    maps = [f"{loops} -> (d0, {read}, d6)", f"{loops} -> (d4, d5, d6, d3)", f"{loops} -> (d0, d1, d2, d3)"]
    body = filled("z", y, "0.0") + "\n" + generic("y", maps, "pppprrr", {"x": x, "w": w}, ("z", y), multiply_add(x.element))
    named = [d for t in (x, y) for d in t.dims if isinstance(d, str)]
    return workload({"x": x, "w": w}, list(dict.fromkeys(named)), body, {"y": y})


def values(shape: tuple[int, ...], seed: int, element: str = "f32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[element])


def padded(batch: int, size: tuple[int, int], channels: int, zeros: Zeros, element: str = "f32") -> np.ndarray:
    return np.pad(values((batch, *size, channels), 1, element), [(0, 0), *zeros, (0, 0)])


def layer(channels: int, filters: int, size: int, zeros: Zeros = ((1, 1), (1, 1)), stride: int = 1) -> Workload:
    """A 3x3 convolution of a square image as a workload."""
    height, width = (size + a + b for a, b in zeros)
    x = image(height, width, channels, zeros) if zeros != WHOLE else T("f32", ("B", height, width, channels))
    out = tuple((n - 3) // stride + 1 for n in (height, width))
    text = convolution(x, (3, 3), filters, stride, 1, out)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        fn = next(functions(module))
        fn.attributes["tw.kind"], fn.attributes["tw.key"] = ir.StringAttr.get("contraction"), ir.StringAttr.get("key")
        return workload_of(fn, "workload")
