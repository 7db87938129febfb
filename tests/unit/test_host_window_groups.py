"""The family host_window: convolutions in groups give what NumPy does, for every size, stride, padding and type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from kernel_harness import NUMPY, T, filled, workload
from matmul_workloads import AVX2, AVX512, generic, multiply_add
from window_workloads import WindowCase

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.host.host_window import NEAR_FACTORS, HostWindowConfig, Layer, space, takes, why_invalid
from tilewright.passes.spaces.host.host_window_cost import extents, kernel_cost
from tilewright.passes.spaces.host.host_window_heuristics import default
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.passes.spaces.option_text import spec_of
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select

_MAPS = ("(d0, d1, d5, d3 * {s} + d6 * {d}, d4 * {s} + d7 * {d})", "(d1, d2, d5, d6, d7)", "(d0, d1, d2, d3, d4)")


@dataclass(frozen=True)
class Groups(WindowCase):
    """An image [2, groups, channels, H, W] and filters [groups, filters, channels, kernel...]."""

    groups: int = 2
    channels: int = 3
    filters: int = 4

    @property
    def kind(self) -> str:
        return "contraction"

    def text(self) -> str:
        before, after = self.named[:2], self.named[2:]
        x, y = (T(self.element, (2, self.groups, n, *hw)) for n, hw in ((self.channels, before), (self.filters, after)))
        w = T(self.element, (self.groups, self.filters, self.channels, *self.kernel))
        low, high = [0, 0, 0, *self.pads[::2]], [0, 0, 0, *self.pads[1::2]]
        ends = zip(x.dims, low, high, strict=True)
        whole = T(self.element, tuple(d + a + b if isinstance(d, int) else "P" for d, a, b in ends))
        start = "0.0" if "f" in self.element else "0"
        places = ", ".join(f"%p{a}: index" for a in range(5))
        text = f"%fill = arith.constant {start} : {self.element}\n"
        if any(self.pads):
            text += f"%image = tensor.pad %x low{low} high{high} {{ ^bb0({places}): tensor.yield %fill : {self.element} }} : " \
                    f"{x.type()} to {whole.type()}\n"
        maps = [f"(d0, d1, d2, d3, d4, d5, d6, d7) -> {m.format(s=self.stride, d=self.dilation)}" for m in _MAPS]
        ins = {"image" if any(self.pads) else "x": whole if any(self.pads) else x, "w": w}
        text += filled("z", y, start) + "\n" + generic("y", maps, "ppppprrr", ins, ("z", y), multiply_add(self.element))
        return workload({"x": x, "w": w}, list(self.dims), text, {"y": y})

    def operands(self) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        shapes = (2, self.groups, self.channels, *self.size), (self.groups, self.filters, self.channels, *self.kernel)
        return [(rng.integers(-7, 8, s) if self.element[0] == "i" else rng.standard_normal(s)).astype(NUMPY[self.element])
                for s in shapes]

    def want(self, operands: list[np.ndarray]) -> np.ndarray:
        x, w = (a.astype(np.int64 if self.element[0] == "i" else np.float64) for a in operands)
        x = np.pad(x, [(0, 0), (0, 0), (0, 0), self.pads[:2], self.pads[2:]])
        total = np.zeros((2, self.groups, self.filters, *self.out), x.dtype)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                part = x[..., i * self.dilation :: self.stride, j * self.dilation :: self.stride]
                total += np.einsum("ngchw,gfc->ngfhw", part[..., : self.out[0], : self.out[1]], w[..., i, j])
        return total


SHAPES = [
    Groups((9, 21)), Groups((7, 37), stride=2, channels=5, filters=6), Groups((3, 2), pads=(0, 1, 2, 0), filters=2),
    Groups((8, 19), (5, 3), 1, (4, 4, 2, 2), 2), Groups((11, 50), (1, 3), 3, (0, 0, 0, 0)), Groups((1, 1), groups=1),
    Groups((6, 20), (3, 1), 1, (1, 1, 0, 0)), Groups((12, 16), (2, 2), 2, (0, 0, 0, 0), filters=8),
    Groups((15, 40), (7, 7), 2, (3, 3, 3, 3)), Groups((19, 37), (3, 17), 1, (1, 1, 8, 8), channels=1),
    Groups((9, 23), (5, 4), 1, dilation=2),
]
CONFIGS = ("host_window{pixels=1 nv=2 lanes=8 filters=1}", "host_window{pixels=2 nv=1 lanes=4 chunk=4 filters=2}")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda c: f"{c.size}")
def test_sizes(shape: Groups, dynamic: bool) -> None:
    case, number = replace(shape, dynamic=dynamic), SHAPES.index(shape)
    case.check(CONFIGS[number % 2] if dynamic else spec_of("host_window", default(case.workload(), AVX512)[0][0]))


@pytest.mark.parametrize("element", ["f64", "bf16", "i32"])
def test_element_types(element: str) -> None:
    Groups((7, 13), stride=2, element=element).check("host_window{pixels=1 nv=1 lanes=8 filters=4}")


FLAT = ("host_window{pixels=1 nv=2 lanes=16 filters=2 flat=true}",
        "host_window{pixels=1 nv=3 lanes=8 chunk=2 filters=1 flat=true}",
        "host_window{pixels=1 nv=1 lanes=4 filters=2 flat=true}")
NARROW = [Groups((37, 4)), Groups((74, 8), stride=2), Groups((7, 7)), Groups((5, 1), (5, 5), pads=(2, 2, 2, 2)),
          Groups((13, 9), (3, 5), 2, (1, 1, 2, 2), dilation=2), Groups((9, 3), stride=3),
          Groups((15, 5), (1, 17), pads=(0, 0, 8, 8))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [*NARROW, *SHAPES], ids=lambda c: f"{c.size}")
def test_rows_end_to_end(shape: Groups, dynamic: bool) -> None:
    case, number = replace(shape, dynamic=dynamic), [*NARROW, *SHAPES].index(shape)
    legal = [c for c in FLAT if why_invalid(parse_config(c), case.workload(), AVX512) is None]
    case.check(legal[number % len(legal)])


@pytest.mark.parametrize("element", ["f64", "bf16", "i32"])
def test_element_types_of_rows_end_to_end(element: str) -> None:
    Groups((10, 5), stride=2, element=element).check("host_window{pixels=1 nv=2 lanes=8 filters=2 flat=true}")


def test_narrow_images_have_their_rows_end_to_end() -> None:
    """Where the extent is known and where it is not; rows of whole vectors stay as they are."""
    for width, flat in ((4, True), (64, False)):
        config = default(Groups((40, width), filters=16).workload(), AVX512)[0][0]
        assert isinstance(config, HostWindowConfig) and config.flat is flat
    configs, node = default(Groups((40, 16), filters=16, dynamic=True).workload(), AVX512)
    chosen = [configs[select(node, {"OW": width}).kernel] for width in (2, 4, 16, 64, 1000)]
    assert [c.flat for c in chosen if isinstance(c, HostWindowConfig)] == [True, True, False, False, False]


def test_narrow_images_by_avx2_have_half_vectors() -> None:
    """A masked store takes AVX2 long, so rows of a vector and less are stored each by itself."""
    work = Groups((40, 16), groups=1, filters=32, stride=2, pads=(1, 1, 1, 1), dynamic=True).workload()
    configs, node = default(work, AVX2)
    column = work.loops[4].extent
    chosen = [configs[select(node, {str(column): n}).kernel] for n in (4, 8, 9, 64)]
    assert not any(c.flat for c in configs if isinstance(c, HostWindowConfig))
    assert [c.lanes for c in chosen if isinstance(c, HostWindowConfig)] == [4, 8, 8, 8]


def test_a_target_without_avx512() -> None:
    Groups((10, 30), channels=2, filters=4).check("host_window{pixels=1 nv=2 lanes=8 filters=4}", "host:x86-64-v3")


@pytest.mark.parametrize("kernel,taps", [((3, 3), (3, 3)), ((4, 4), (4, 4)), ((5, 5), (1, 5)), ((7, 7), (1, 7)),
                                         ((1, 16), (1, 16)), ((3, 17), (3, 1)), ((17, 17), (1, 1))])
def test_filters_that_share_loads_have_few_taps_unrolled(kernel: tuple[int, int], taps: tuple[int, int]) -> None:
    """Those along a row first. A window over each channel by itself has more, and those of the pixels first."""
    work = Groups((40, 40), kernel).workload()
    layer = Layer.of(work)
    assert layer is not None and layer.taps(work) == taps


@pytest.mark.parametrize("channels,least,most", [(1, 8, 11), (2, 12, 24)])
def test_results_of_more_products_are_more_at_a_time(channels: int, least: int, most: int) -> None:
    config = default(Groups((40, 64), channels=channels, filters=64).workload(), AVX512)[0][0]
    assert isinstance(config, HostWindowConfig)
    assert least <= config.filters * config.nv * config.pixels <= most


def test_what_the_family_takes() -> None:
    assert takes(Groups((9, 21)).workload(), AVX512, PLAIN) is None
    found = takes(Groups((9, 21), channels=NEAR_FACTORS // 16, filters=32).workload(), AVX512, PLAIN)
    assert found is not None and found.startswith("factors-near")


@pytest.mark.parametrize("limits", [AVX512, AVX2])
def test_every_legal_configuration_has_a_cost(limits: HostLimits) -> None:
    work = Groups((14, 14), filters=8).workload()
    named, (configs, _) = set(extents(work)), default(work, limits)
    assert configs[0].filters * configs[0].nv * configs[0].pixels >= 8
    assert all(why_invalid(c, work, limits) is None for c in configs)
    for config in space(work, limits):
        cost = kernel_cost(config, work, limits)
        assert {*cost.tiles, *cost.pads, *cost.units} <= named


@pytest.mark.parametrize("config,rule", [
    (HostWindowConfig(1, 1, filters=3), "filters-whole"), (HostWindowConfig(4, 3, filters=4), "register-budget"),
    (HostWindowConfig(1, 1, filters=0), "counts-positive"), (HostWindowConfig(2, 1, flat=True), "flat-filters")])
def test_rules_have_names(config: HostWindowConfig, rule: str) -> None:
    found = why_invalid(config, Groups((14, 40)).workload(), AVX512)
    assert found is not None and found.startswith(rule)


def test_blocks_of_known_rows_leave_no_vector_over() -> None:
    """Rows of seven vectors, of which the last block of several would compute some twice."""
    case = Groups((224, 224), (7, 7), 2, (3, 3, 3, 3), groups=1, filters=64)
    (config,), _ = default(case.workload(), AVX512)
    assert isinstance(config, HostWindowConfig) and config.nv in (1, 7) and config.filters * config.pixels >= 12
