"""The family host_window: windows over images give what NumPy does, for every layout, size, type, padding and configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from kernel_harness import NUMPY, Dim, T, at_edge, empty, filled, guarded, load, workload
from matmul_workloads import AVX2, AVX512, generic, multiply_add
from window_workloads import WindowCase

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.codegen import compile_assembly
from tilewright.passes.spaces.host.host_window import HostWindowConfig, Layer, space, takes, why_invalid
from tilewright.passes.spaces.host.host_window_cost import extents, kernel_cost
from tilewright.passes.spaces.host.host_window_heuristics import default
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.runtime.errors import BuildError
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf
from tilewright.runtime.target import Target

MAX = {"f32": ("arith.maximumf", "0xFF800000"), "f64": ("arith.maximumf", "0xFFF0000000000000"),
       "f16": ("arith.maximumf", "0xFC00"), "bf16": ("arith.maximumf", "0xFF80"), "i8": ("arith.maxsi", "-128"),
       "i32": ("arith.maxsi", "-2147483648")}
CONFIGS = ("host_window{pixels=1 nv=1 lanes=8}", "host_window{pixels=3 nv=2 lanes=4 chunk=4}",
           "host_window{pixels=4 nv=1 lanes=16}")


@dataclass(frozen=True)
class Case(WindowCase):
    """An image [2, C, H, W] or, channels last, [2, H, W, C] and its window. what: "max", "sum" or "filter" of each channel."""

    what: str = "max"
    last: bool = False
    channels: int = 5

    @property
    def kind(self) -> str:
        return "contraction" if self.what == "filter" else "generic"

    def image(self, height: Dim, width: Dim) -> T:
        return T(self.element, (2, height, width, self.channels) if self.last else (2, self.channels, height, width))

    def text(self) -> str:
        x, y = self.image(*self.named[:2]), self.image(*self.named[2:])
        spatial = (1, 2) if self.last else (2, 3)
        low, high = ([self.pads[2 * spatial.index(a) + side] if a in spatial else 0 for a in range(4)] for side in (0, 1))
        whole = [d + a + b if isinstance(d, int) else "P" for d, a, b in zip(x.dims, low, high, strict=True)]
        padded = T(self.element, tuple(whole))
        join, start = MAX[self.element] if self.what == "max" else ("arith.add" + ("f" if "f" in self.element else "i"),
                                                                   "0.0" if "f" in self.element else "0")
        loops = [f"d{d}" for d in range(6)]
        outer = ("d0", "d1", "d2", "d3")
        read = [f"{outer[a]} * {self.stride} + d{4 + spatial.index(a)} * {self.dilation}" if a in spatial else outer[a]
                for a in range(4)]
        w = T(self.element, (*self.kernel, self.channels) if self.last else (self.channels, *self.kernel))
        k = T(self.element, self.kernel)
        factor = ("d4, d5, d3" if self.last else "d1, d4, d5") if self.what == "filter" else "d4, d5"
        all_ = f"({', '.join(loops)})"
        maps = [f"{all_} -> ({', '.join(read)})", f"{all_} -> ({factor})", f"{all_} -> ({', '.join(outer)})"]
        body = multiply_add(self.element) if self.what == "filter" else \
            f"%s = {join} %acc, %x0 : {self.element}\nlinalg.yield %s : {self.element}"
        zero = f"%fill = arith.constant {start} : {self.element}\n"
        pad = f"%image = tensor.pad %x low{low} high{high} {{ ^bb0(%i: index, %j: index, %k: index, %l: index): " \
              f"tensor.yield %fill : {self.element} }} : {x.type()} to {padded.type()}\n"
        ins = {"image" if any(self.pads) else "x": padded if any(self.pads) else x, "w": w if self.what == "filter" else k}
        shape = "" if self.what == "filter" else empty("w", k) + "\n"
        text = zero + (pad if any(self.pads) else "") + shape + filled("z", y, start) + "\n" + \
            generic("y", maps, "pppprr", ins, ("z", y), body)
        return workload({"x": x, "w": w} if self.what == "filter" else {"x": x}, list(self.dims), text, {"y": y})

    def operands(self) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        t = NUMPY[self.element]
        shape = self.image(*self.size).shape({})
        taps = (*self.kernel, self.channels) if self.last else (self.channels, *self.kernel)
        whole = self.element[0] == "i"
        x, w = ((rng.integers(-7, 8, s) if whole else rng.standard_normal(s)).astype(t) for s in (shape, taps))
        if self.what == "max" and not whole:
            x.reshape(-1)[::29] = np.nan
        return [x, w] if self.what == "filter" else [x]

    def want(self, operands: Sequence[np.ndarray]) -> np.ndarray:
        x = operands[0] if self.last else operands[0].transpose(0, 2, 3, 1)
        whole = self.element[0] == "i"
        x = x.astype(np.int64 if whole else np.float64)
        low = (-128 if self.element == "i8" else -2**31) if whole else -np.inf
        x = np.pad(x, [(0, 0), self.pads[:2], self.pads[2:], (0, 0)], constant_values=low if self.what == "max" else 0)
        found = []
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                at = [d * self.dilation for d in (i, j)]
                part = x[:, at[0] :: self.stride, at[1] :: self.stride][:, : self.out[0], : self.out[1]]
                if self.what == "filter":
                    w = operands[1] if self.last else operands[1].transpose(1, 2, 0)
                    part = part * w[i, j].astype(part.dtype)
                found.append(part)
        total = np.max(found, axis=0) if self.what == "max" else np.sum(found, axis=0)
        return total if self.last else total.transpose(0, 3, 1, 2)


SHAPES = [
    Case((9, 21)), Case((9, 37), stride=2), Case((3, 2), pads=(0, 1, 2, 0)), Case((12, 40), (2, 2), 2, (0, 0, 0, 0)),
    Case((8, 19), (5, 3), 1, (4, 4, 2, 2), 2), Case((11, 50), (1, 3), 3, (0, 0, 1, 1)), Case((7, 23), (3, 1), 2, (1, 1, 0, 0)),
    Case((30, 20), (9, 9), 1, (4, 4, 4, 4)), Case((1, 1)), Case((6, 34), (3, 3), 5, (0, 2, 0, 0)),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda c: f"{c.size}")
def test_sizes(shape: Case, dynamic: bool) -> None:
    """Maxima with channels first, filters with channels last and first, each with a configuration of its own."""
    for n, (what, last) in enumerate([("max", False), ("filter", True), ("filter", False)]):
        config = CONFIGS[(n + SHAPES.index(shape)) % len(CONFIGS)]
        if not (dynamic and any(shape.pads) and last):
            replace(shape, what=what, last=last, dynamic=dynamic, channels=19 if last else 3).check(config)


@pytest.mark.parametrize("element", ["f64", "f16", "bf16", "i8", "i32"])
def test_element_types(element: str) -> None:
    for what, last in (("max", False), ("sum", True)):
        Case((7, 33), stride=2, what=what, last=last, element=element).check(CONFIGS[0])


def test_a_target_without_avx512() -> None:
    for what, last in (("max", False), ("filter", True), ("filter", False)):
        Case((10, 30), stride=2, what=what, last=last, channels=20).check("host_window{nv=2 lanes=8}", "host:x86-64-v3")


@pytest.mark.parametrize("columns", [3, 8, 12, 21])
def test_columns_beside_whole_vectors(columns: int) -> None:
    """Of an unknown number: fewer than a vector, one, two that overlap, and what a block and another one leave over."""
    for what in ("filter", "max"):
        Case((9, columns), (5, 5), pads=(2, 2, 2, 2), what=what, dynamic=True, channels=3).check(
            "host_window{pixels=4 nv=2 lanes=8 chunk=16}", "host:x86-64-v3")


PLANES = [Case((37, 4), (5, 5), pads=(2, 2, 2, 2)), Case((5, 7), (3, 5), pads=(0, 0, 1, 3)), Case((9, 3), pads=(2, 0, 1, 1)),
          Case((4, 4), (3, 1), pads=(1, 1, 0, 0)), Case((20, 40), (3, 3), 1, (2, 2, 2, 2), 2),
          Case((30, 2), (7, 7), pads=(3, 3, 3, 3))]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", PLANES, ids=lambda c: f"{c.size}")
def test_vectors_that_run_on_from_row_to_row(shape: Case, dynamic: bool) -> None:
    """All rows in one run and two at a time, by vectors of a line and of half a one."""
    for n, what in enumerate(("filter", "max")):
        case = replace(shape, what=what, dynamic=dynamic, channels=3)
        case.check(f"host_window{{pixels=1 nv=1 lanes=16 chunk={2 * n} flat=true}}")
        case.check(f"host_window{{pixels=1 nv=1 lanes=8 chunk={2 - 2 * n} flat=true}}", "host:x86-64-v3")
    replace(shape, what="sum", dynamic=dynamic, element="f64").check("host_window{pixels=1 nv=1 lanes=8 flat=true}")


def test_runs_end_with_rows_that_lie_apart() -> None:
    case = Case((11, 4), (3, 3), what="filter", channels=3)
    operands, want = case.operands(), case.want(case.operands())
    wide, out = np.zeros((2, 3, 11, 9), np.float32), guarded((2, 3, 11, 4), np.dtype(np.float32))
    wide[..., :4] = operands[0]
    wide[..., 4:] = np.nan
    config = "host_window{pixels=1 nv=1 lanes=16 flat=true}"
    load(case.text(), config)([wide[..., :4], operands[1]], {}, [out], 1)
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_narrow_images_are_passed_over_as_one_run() -> None:
    """Where their length is not known, few columns are told from many at run time."""
    for columns, flat in ((4, True), (5, False)):
        assert default(Case((37, columns), (5, 5), pads=(2, 2, 2, 2), what="filter").workload(), AVX512)[0][0].flat == flat
    assert default(Case((37, 6), what="filter").workload(), AVX512)[0][0].flat
    assert not default(Case((37, 6), what="filter", stride=2).workload(), AVX512)[0][0].flat
    kernels, tree = default(Case((37, 4), what="filter", dynamic=True).workload(), AVX512)
    assert [k.flat for k in kernels] == [False, True, False] and tree != Leaf(0)


@pytest.mark.parametrize(("case", "rule"), [
    (Case((9, 6), stride=2), "plane-rows"), (Case((9, 6), pads=(1, 1, 1, 2)), "plane-rows"), (Case((9, 1)), "plane-columns"),
    (Case((30, 20), (9, 9), 1, (4, 4, 4, 4)), "plane-taps"), (Case((9, 6), what="filter", last=True), "flat-filters")])
def test_images_that_are_no_one_run(case: Case, rule: str) -> None:
    found = why_invalid(HostWindowConfig(1, 1, 16, flat=True), case.workload(), AVX512)
    assert found is not None and found.startswith(rule)


def test_other_padding_than_the_start_is_refused() -> None:
    case = Case((9, 21))
    text = case.text().replace("tensor.yield %fill", "%c = arith.constant 0.0 : f32\ntensor.yield %c")
    with pytest.raises(BuildError, match="padded with another value"):
        load(text, CONFIGS[0])


def test_another_family_pools_along_one_axis_under_other_padding() -> None:
    """A reduction with a second operand, as ranks have, but over floats from -inf on."""
    x, k, y = T("f32", ("N", 7)), T("f32", (3,)), T("f32", ("N", 4))
    pooled = generic("y", ["(n, i, j) -> (n, i * 2 + j)", "(n, i, j) -> (j)", "(n, i, j) -> (n, i)"], "ppr",
                     {"p": T("f32", ("N", 9)), "k": k}, ("z", y), "%m = arith.maximumf %x0, %acc : f32\nlinalg.yield %m : f32")
    text = workload({"x": x}, ["N"], f"""{empty("k", k)}
    %c = arith.constant -2.0 : f32
    %p = tensor.pad %x low[0, 1] high[0, 1] {{ ^bb0(%a: index, %b: index):
      tensor.yield %c : f32 }} : {x.type()} to tensor<?x9xf32>
    {filled("z", y, MAX["f32"][1])}
    {pooled}""", {"y": y})
    data = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32) - 3
    padded = np.pad(data, ((0, 0), (1, 1)), constant_values=-2)
    wanted = np.stack([padded[:, 2 * i:2 * i + 3].max(1) for i in range(4)], 1)
    out = guarded((5, 4), np.dtype(np.float32))
    load(text, "generic{chunk=256}")([at_edge(data)], {"N": 5}, [out], 1)
    np.testing.assert_array_equal(out, wanted)


def test_what_the_family_takes() -> None:
    assert takes(Case((9, 21)).workload(), AVX512, PLAIN) is None
    assert takes(Case((9, 21), what="filter", last=True).workload(), AVX2, PLAIN) is None


@pytest.mark.parametrize("limits", [AVX512, AVX2])
@pytest.mark.parametrize("case", [Case((9, 21)), Case((64, 64), stride=2, what="filter", last=True, channels=32)])
def test_every_legal_configuration_has_a_cost(case: Case, limits: HostLimits) -> None:
    work = case.workload()
    named = set(extents(work))
    configs, _ = default(work, limits)
    every = list(space(work, limits))
    assert every and all(why_invalid(c, work, limits) is None for c in configs)
    for config in every:
        cost = kernel_cost(config, work, limits)
        assert {*cost.tiles, *cost.pads, *cost.units} <= named


@pytest.mark.parametrize("config,rule", [
    (HostWindowConfig(lanes=3), "lanes-fit"), (HostWindowConfig(pixels=0), "counts-positive"),
    (HostWindowConfig(9, 4), "register-budget"),
    (HostWindowConfig(7, 1), "pixels-used"), (HostWindowConfig(2, 1, chunk=1), "chunk-whole-blocks"),
    (HostWindowConfig(2, 1, chunk=8), "chunk-used"), (HostWindowConfig(2, 3), "vectors-used")])
def test_rules_have_names(config: HostWindowConfig, rule: str) -> None:
    found = why_invalid(config, Case((6, 21)).workload(), AVX512)
    assert found is not None and found.startswith(rule)


def test_vectors_of_pixels_are_narrower_where_a_row_fills_half_of_one() -> None:
    """Also where it is read in steps: masked elements come out of whole vectors."""
    for size, lanes in ((28, 16), (18, 16), (16, 8), (10, 8), (8, 4)):
        wide = Case((size, size), stride=2).workload()
        layer = Layer.of(wide)
        assert layer is not None and wide.loops[layer.along].extent.constant == size // 2
        assert default(wide, AVX512)[0][0].lanes == lanes
    assert default(Case((14, 14)).workload(), AVX512)[0][0].lanes == 16


@pytest.mark.parametrize(("size", "stride", "config"), [((5, 5), 2, "pixels=4 nv=2"), ((7, 7), 1, "pixels=4 nv=4")])
def test_elements_go_from_the_image_to_their_products(size: tuple[int, int], stride: int, config: str) -> None:
    """Hardly any by the stack, where vectors are whole lines."""
    case = Case((56, 56), size, stride, (size[0] // 2,) * 4, what="filter", channels=3)
    built = build_kernel(case.text(), "", "kernel", f"host_window{{{config} lanes=16}}", Target.parse("host:x86-64-v4"))
    lines = compile_assembly(built.llvm_ir, Target.parse("host:x86-64-v4")).splitlines()
    products = sum("vfmadd" in line for line in lines)
    stored = [line for line in lines if re.search(r"vmov\w+\s+%zmm\d+, \d*\(%rsp\)", line)]
    assert products > 100 and len(stored) < products // 8 and all("vmovaps" in line for line in stored)
