"""Convolutions of whole numbers with filters out of pools, pixels side by side: exact at every width, stride and strip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matmul_workloads import AVX2
from pooled_images import Case, check, workload

import tilewright as tw
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig, space, why_invalid
from tilewright.passes.spaces.host.host_pools_heuristics import default
from tilewright.passes.spaces.host.pool_plane import Plane, PlaneShape
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import HostLimits

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(11)
AVX2 = replace(AVX2, byte_products=2)
VNNI = replace(AVX2, vector_bytes=64, vector_registers=32, byte_products=4, byte_permutes=True)
needs_vnni = pytest.mark.skipif("avx512vnni" not in cpu_features(), reason="the CPU has no AVX-512 VNNI")
# images, height, width, channels, filters, window, strides, padding, books, entries
CASES = ((2, 9, 7, 24, 40, (3, 3), (1, 1), 1, 1, 64), (1, 16, 16, 16, 33, (3, 3), (2, 2), 1, 2, 17),
         (1, 6, 20, 8, 70, (2, 3), (2, 1), 0, 1, 256), (3, 4, 4, 32, 32, (1, 1), (1, 1), 0, 1, 5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", [pytest.param("host", marks=needs_vnni), "host:x86-64-v3"])
def test_every_width_is_exact(case: tuple, target: str) -> None:
    made = Case(*case)
    fn = tw.compile(made.graph(), {"B": (1, 4), "A": tw.Dim(1, 8)}, target=target)
    for bits in range(1, 9):
        assert np.array_equal(fn(made.x, bits), made.wanted(bits)), bits
    texts = [str(fn.explain(B=1, A=bits)) for bits in (3, 4, 5, 8)]
    if target == "host":
        assert all("decoded=" in t for t in texts)
        return
    assert all("plane=" in t for t in texts)
    served = [int(t.partition(" bits=")[2].partition(" ")[0]) for t in texts]
    assert served == sorted(served) and served[-1] == 8 and (case[4] < 40 or served[0] < 8)
    assert "sub_sub" in texts[0]  # the rounded image is read as bytes, not stored as floats


def test_a_strip_has_whole_rows_of_an_image() -> None:
    shape = PlaneShape(9, 7, (3, 3), (1, 1))
    plane = Plane(shape, 3, 32, 2)
    assert (plane.wide, plane.tall, plane.blocks, plane.phases) == (9, 5, 1, [(0, 0)])
    assert plane.vectors * 32 >= plane.tall * plane.wide and plane.stride * 2 % 128 == 64
    assert plane.place(2, 1) == (0, 19)
    strided = Plane(PlaneShape(8, 8, (3, 3), (2, 2)), 8, 32, 2)
    assert len(strided.phases) == 4 and strided.place(2, 1) == (1, strided.wide)


def test_configurations_that_are_no_kernel_say_why() -> None:
    found = workload(Case(*CASES[0]), 4)
    config = HostPoolsConfig(8, 1, 64, 3, 4, plane=64, dot=4)
    assert PlaneShape.of(found) == PlaneShape(9, 7, (3, 3), (1, 1)) and why_invalid(config, found, VNNI) is None
    for bad, limits, rule in ((replace(config, mc=2), VNNI, "strips: "), (config, AVX2, "plane-vectors: "),
                              (replace(config, bits=0), VNNI, "plane: "), (replace(config, rows=4), VNNI, "plane: "),
                              (replace(config, dot=2, plane=48), VNNI, "plane-vectors: "),
                              (replace(config, groups=4096), VNNI, "plane-in-cache: ")):
        assert str(why_invalid(bad, found, limits)).startswith(rule), bad
    assert any(c.plane for c in space(found, AVX2)) and {c.plane for c in space(found, VNNI)} >= {32, 64}
    configs, _ = default(found, AVX2)
    assert [c.bits for c in configs] == [4] and configs[0].plane == 32


@pytest.mark.parametrize("limits,target,size,dot", [(AVX2, "host:x86-64-v3", 32, 2),
                                                    pytest.param(VNNI, "host", 64, 4, marks=needs_vnni)])
def test_kernels_keep_to_their_operands(limits: HostLimits, target: str, size: int, dot: int) -> None:
    for number, case in enumerate(CASES[:3]):
        made = Case(*case)
        for groups, columns, rows, bits in ((1, 32, 1, 5), (2, 64, case[1], 8), (4, 32, 1, 3))[: 3 if number == 0 else 2]:
            found = workload(made, bits)
            shape = PlaneShape.of(found)
            assert shape is not None
            config = HostPoolsConfig(8, groups, columns, min(rows, shape.height), bits, plane=size, dot=dot)
            assert why_invalid(config, found, limits) is None
            check(made, found, config, target, bits, 1)


def test_fewer_bits_have_kernels_where_these_are_faster() -> None:
    """By AVX2, of 3x3: at 5 bits 64-64 at 16 took 147 us where 8 bits took 171, but 128-128 at 8 105 where 8 took 87."""
    for size, channels, wanted in ((16, 64, 5), (8, 128, 8)):
        configs, _ = default(workload(Case(1, size, size, channels, channels, (3, 3), (1, 1), 1, 1, 64), 5), AVX2)
        assert [c.bits for c in configs if isinstance(c, HostPoolsConfig)] == [wanted]
