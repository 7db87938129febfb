"""Convolutions of images of few bits by filters out of pools of bytes: models, workloads, and what they give in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from codes_workloads import rounded
from kernel_harness import at_edge, guarded, load

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
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig
from tilewright.passes.spaces.workload import Workload

RNG = np.random.default_rng(11)


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
        return self.products(rounded(self.x.reshape(1, -1), bits)[0].reshape(self.x.shape).astype(np.int64))

    def products(self, whole: np.ndarray) -> np.ndarray:
        """Of an image of whole numbers."""
        edge = (self.padding, self.padding)
        whole = np.pad(whole, ((0, 0), edge, edge, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(whole, self.window, (1, 2))[:, ::self.strides[0], ::self.strides[1]]
        return np.einsum("bhwcij,fijc->bhwf", windows, self.weight)


def workload(made: Case, bits: int) -> Workload:
    """Of the convolution, its indices laid out."""
    g = made.graph(bits)
    bound, _ = bind_constants(ingest(g.module_text(), {"B": (1, 4)}), g.constants)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(bound.text)
        PassPipeline([*recover_passes(), *graph_passes(), PackConstants(32, 16)]).run(module)
        return next(replace(w, name="plane") for w in workloads_of(module).values() if any(o.panel for o in w.inputs))



def check(made: Case, found: Workload, config: HostPoolsConfig, target: str, bits: int, zero: int) -> None:
    """A kernel on an image of codes of so many bits, all operands at the edge of memory, in three parts."""
    codes, given = RNG.integers(0, 1 << bits, made.x.shape, dtype=np.uint8), []
    codes.flat[:2] = 0, (1 << bits) - 1
    kernel = load(found.ir, config_text(config), target)
    places: Mapping[int, list[np.ndarray]] = {1: list(made.index), 0: list(made.pools)}
    for o in found.inputs:
        if o.panel:
            given.append(at_edge(packed(places[1].pop(0), (o.panel, 1, 0, 1, 2, 3))))
        elif len(o.dims) == 4:
            given.append(at_edge(codes))
        else:
            given.append(at_edge(places[0].pop(0) if o.dims else np.array(zero, np.uint8)))
    want = made.products(codes.astype(np.int64) - zero)
    out = guarded(want.shape, np.dtype(np.float32))
    kernel(given, {d: len(codes) for d in found.dims}, [out], 3)
    assert np.array_equal(out, want), (config, bits, zero)
