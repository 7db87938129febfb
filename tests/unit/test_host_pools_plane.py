"""Convolutions of whole numbers with filters out of pools, pixels side by side: exact at every width, stride and strip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from codes_workloads import rounded
from kernel_harness import at_edge, guarded, load
from matmul_workloads import AVX2

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.constants.stored_constants import packed
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.dispatch_creation.pack_constants import PackConstants
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig, space, why_invalid
from tilewright.passes.spaces.host.host_pools_heuristics import default
from tilewright.passes.spaces.host.pool_plane import Plane, PlaneShape
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import HostLimits

RNG = np.random.default_rng(11)
AVX2 = replace(AVX2, byte_products=2)
VNNI = replace(AVX2, vector_bytes=64, vector_registers=32, byte_products=4, byte_permutes=True)
needs_vnni = pytest.mark.skipif("avx512vnni" not in cpu_features(), reason="the CPU has no AVX-512 VNNI")
# images, height, width, channels, filters, window, strides, padding, books, entries
CASES = ((2, 9, 7, 24, 40, (3, 3), (1, 1), 1, 1, 64), (1, 16, 16, 16, 33, (3, 3), (2, 2), 1, 2, 17),
         (1, 6, 20, 8, 70, (2, 3), (2, 1), 0, 1, 256), (3, 4, 4, 32, 32, (1, 1), (1, 1), 0, 1, 5))


class Case:
    """A model of A bits, and what it gives in integers."""

    def __init__(self, images: int, height: int, width: int, channels: int, filters: int, window: tuple[int, int],
                 strides: tuple[int, int], padding: int, books: int, entries: int) -> None:
        self.window, self.strides, self.padding = window, strides, padding
        self.x = RNG.standard_normal((images, height, width, channels)).astype(np.float32)
        self.index = [RNG.integers(0, entries, (filters, *window, channels // 8), dtype=np.uint8) for _ in range(books)]
        self.pools = [RNG.integers(-128, 128, (entries, 8)).astype(np.int8) for _ in range(books)]
        self.pools[0][0], self.pools[0][1] = -128, 127
        self.weight = sum(p.astype(np.int64)[i].reshape(filters, *window, channels)
                          for p, i in zip(self.pools, self.index, strict=True))

    def graph(self, bits: int | None = None) -> ops.Graph:
        g = ops.Graph()
        given = g.input("x", ["B", *self.x.shape[1:]])
        values, _ = ops.round_to_bits(given, g.dim("A") if bits is None else bits)
        w = ops.decode_pool([g.constant(i) for i in self.index], [g.constant(p) for p in self.pools])
        y = ops.conv2d(values, ops.transpose(w, (1, 2, 3, 0)), layout="nhwc", stride=self.strides, padding=self.padding)
        g.output(y)
        return g

    def wanted(self, bits: int) -> np.ndarray:
        whole = rounded(self.x.reshape(1, -1), bits)[0].reshape(self.x.shape).astype(np.int64)
        edge = (self.padding, self.padding)
        whole = np.pad(whole, ((0, 0), edge, edge, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(whole, self.window, (1, 2))[:, ::self.strides[0], ::self.strides[1]]
        return np.einsum("bhwcij,fijc->bhwf", windows, self.weight)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", [pytest.param("host", marks=needs_vnni), "host:x86-64-v3"])
def test_every_width_is_exact(case: tuple, target: str) -> None:
    made = Case(*case)
    fn = tw.compile(made.graph(), {"B": (1, 4), "A": tw.Dim(1, 8)}, target=target)
    for bits in range(1, 9):
        assert np.array_equal(fn(made.x, bits), made.wanted(bits)), bits
    texts = [str(fn.explain(B=1, A=bits)) for bits in (3, 4, 5, 8)]
    assert all("plane=" in t for t in texts)
    served = [int(t.partition(" bits=")[2].partition(" ")[0]) for t in texts]
    assert served == sorted(served) and served[-1] == 8 and (case[4] < 40 or served[0] < 8)
    assert "sub_sub" in texts[0]  # the rounded image is read as bytes, not stored as floats


def workload(made: Case, bits: int) -> Workload:
    """Of the convolution, its indices laid out."""
    g = made.graph(bits)
    bound, _ = bind_constants(ingest(g.module_text(), {"B": (1, 4)}), g.constants)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(bound.text)
        PassPipeline([*recover_passes(), *graph_passes(), PackConstants(32, 16)]).run(module)
        return next(replace(w, name="plane") for w in workloads_of(module).values() if any(o.panel for o in w.inputs))


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
    made = Case(*CASES[0])
    found, codes, zero = workload(made, 5), RNG.integers(0, 32, made.x.shape, dtype=np.uint8), np.array(7, np.uint8)
    edge = np.pad(codes.astype(np.int64) - 7, ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = np.einsum("bhwcij,fijc->bhwf", np.lib.stride_tricks.sliding_window_view(edge, (3, 3), (1, 2)), made.weight)
    for groups, columns, chunk, bits in ((1, 32, 1, 5), (2, 64, 9, 8), (4, 32, 3, 5)):
        config = HostPoolsConfig(8, groups, columns, chunk, bits, plane=size, dot=dot)
        assert why_invalid(config, found, limits) is None
        kernel, given = load(found.ir, config_text(config), target), []
        for o in found.inputs:
            if o.panel:
                given.append(at_edge(packed(made.index[0], (o.panel, 1, 0, 1, 2, 3))))
            else:
                given.append(at_edge(codes if len(o.dims) == 4 else made.pools[0] if o.dims else zero))
        out = guarded(want.shape, np.dtype(np.float32))
        kernel(given, {d: len(codes) for d in found.dims}, [out], 3)
        assert np.array_equal(out, want), config
