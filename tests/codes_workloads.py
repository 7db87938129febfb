"""Products with weights in few bits: models, their workloads with panels laid out, and the weights in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from gpu_operands import NUMPY

from tilewright.compiler import ops
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.constants.stored_constants import packed
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.ops.codes import planes
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.dispatch_creation.pack_constants import PACK, PackConstants
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.workload import Workload
from tilewright.passes.transforms.distribute_codes import DistributeCodes
from tilewright.passes.transforms.find_codes import FindCodes
from tilewright.runtime.limits import HostLimits


@dataclass(frozen=True)
class Coded:
    """x [M, k] @ W^T, W [n, k]. zero: "middle", "u8" or "f32" for zero points of their own, or a number for all of them.
    rows: values of k that share a scale of x, 0 for all, where x is bytes. element: of x, and what W is rounded to.
    scales: their element type."""

    n: int
    k: int
    bits: int = 4
    group: int = 32
    zero: str | float = "middle"
    seed: int = 0
    rows: int | None = None
    element: str = "f32"
    scales: str = "f32"

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """Codes, of 3, 5, 6 and 7 bits in several tensors, scales and zero points if there are some."""
        rng, groups = np.random.default_rng(self.seed), -(-self.k // (self.group or max(1, self.k)))
        codes = [rng.integers(0, 256, (self.n, -(-self.k * b // 8)), dtype=np.uint8) for b in planes(self.bits)]
        scale = ((rng.random((self.n, groups)) + 0.5) / 8).astype(NUMPY[self.scales])
        points = {"u8": rng.integers(0, 1 << self.bits, (self.n, groups), dtype=np.uint8),
                  "f32": rng.normal(2, 1, (self.n, groups)).astype(np.float32)}
        found = [scale, *([points[self.zero]] if self.zero in points else [])]
        return [*codes, *(a if groups > 1 else a[:, 0] for a in found)]

    @property
    def weight(self) -> np.ndarray:
        """W in float64."""
        return self.decoded(self.arrays)

    def decoded(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """W in float64 of other arrays like `arrays`."""
        widths, held = planes(self.bits), [a if a.ndim > 1 else a[:, None] for a in arrays]
        (scale, *points), spread = held[len(widths) :], np.zeros((self.n, self.k))
        for i, (codes, bits) in enumerate(zip(held, widths, strict=False)):
            part = np.stack([(codes >> s) & ((1 << bits) - 1) for s in range(0, 8, bits)], -1).reshape(self.n, -1)
            spread += part[:, : self.k].astype(np.float64) * (1 << sum(widths[:i]))
        group = np.arange(self.k) // (self.group or max(1, self.k))
        point = points[0].astype(np.float64)[:, group] if points else float(
            1 << (self.bits - 1)) if self.zero == "middle" else float(self.zero)
        found = (spread - point) * scale.astype(np.float64)[:, group]
        return found if self.element == "f32" else found.astype(np.float32).astype(NUMPY[self.element]).astype(np.float64)

    def graph(self, rows: int | str = "M", bias: np.ndarray | None = None) -> ops.Graph:
        g = ops.Graph()
        x, given, count = self._x(g, rows), [g.constant(a) for a in self.arrays], len(planes(self.bits))
        codes, (scale, *points) = given[:count], given[count:]
        zero = points[0] if points else None if self.zero == "middle" else float(self.zero)
        w = ops.decode(codes, scale, zero, bits=self.bits, group=self.group, depth=self.k)
        w = w if self.element == "f32" else ops.cast(w, self.element)
        g.output(ops.dense(x, w, None if bias is None else g.constant(bias), transposed=True))
        return g

    def _x(self, g: ops.Graph, rows: int | str) -> ops.Tensor:
        if self.rows is None:
            return g.input("x", [rows, self.k], self.element)
        scale = g.input("s", [rows, self.k // self.rows] if self.rows else [rows])
        return ops.decode(g.input("x", [rows, self.k], "i8"), scale, bits=8, group=self.rows)

    def workload(self, limits: HostLimits | None) -> tuple[Workload, list[np.ndarray | None]]:
        """As outlined and laid out, with what is bound to each tensor argument; None for x. limits: None where nothing is laid
        out, as on GPUs."""
        return outlined(self.graph(), limits)


@dataclass(frozen=True)
class Pooled:
    """x [M, k] @ W^T, W [n, k] out of `books` pools of vectors of eight. scale: one for each output, or a number for all."""

    n: int
    k: int
    entries: int = 64
    books: int = 1
    element: str = "i8"
    scale: float | None = 0.25
    seed: int = 0

    @cached_property
    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Indices, pools, scales."""
        rng = np.random.default_rng(self.seed)
        index = [rng.integers(0, self.entries, (self.n, self.k // 8), dtype=np.uint8) for _ in range(self.books)]
        pools = [rng.integers(-128, 128, (self.entries, 8)) for _ in range(self.books)]
        kind = np.dtype({"i8": np.int8, "f16": np.float16, "f32": np.float32}[self.element])
        values = [(p if kind == np.int8 else p / 64).astype(kind) for p in pools]
        return index, values, (rng.random(self.n) + 0.5).astype(np.float32)

    @property
    def listed(self) -> list[np.ndarray]:
        """`arrays`, one after the other; of scales those that there are."""
        index, pools, scale = self.arrays
        return [*index, *pools, *([scale] if self.scale is None else [])]

    @property
    def weight(self) -> np.ndarray:
        """W in float64."""
        return self.decoded(self.listed)

    def decoded(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """W in float64 of other arrays like `listed`; indices behind the last vector are the last one's."""
        index, pools, scale = arrays[: self.books], arrays[self.books : 2 * self.books], arrays[-1]
        value = sum(p.astype(np.float64)[np.minimum(i, self.entries - 1).astype(int)].reshape(self.n, self.k)
                    for i, p in zip(index, pools, strict=True))
        return np.asarray(value * (scale.astype(np.float64)[:, None] if self.scale is None else self.scale))

    def graph(self, rows: int | str = "M") -> ops.Graph:
        g = ops.Graph()
        index, pools, scale = self.arrays
        factor = g.constant(scale) if self.scale is None else self.scale
        w = ops.decode_pool([g.constant(i) for i in index], [g.constant(p) for p in pools], factor)
        g.output(ops.dense(g.input("x", [rows, self.k]), w, transposed=True))
        return g

    def workload(self, limits: HostLimits | None) -> tuple[Workload, list[np.ndarray | None]]:
        """As `Coded.workload`."""
        return outlined(self.graph(), limits)


def outlined(graph: ops.Graph, limits: HostLimits | None, rows: int | None = None) -> tuple[Workload, list[np.ndarray | None]]:
    """The one workload of a model, laid out where there are limits, with what is bound to each tensor argument; None for x.
    rows: of x, None where they are the dim M."""
    dims = {"M": (0, 99)} if rows is None else {}
    model, bound = bind_constants(ingest(graph.module_text(), dims), graph.constants)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(model.text)
        packing = [] if limits is None else [PackConstants(limits.vector_bytes, limits.vector_registers)]
        graph_ = [replace(p, rounded=limits is None) if isinstance(p, FindCodes) else p for p in graph_passes()]
        graph_ = [replace(p, joined=limits is not None) if isinstance(p, DistributeCodes) else p for p in graph_]
        PassPipeline([*recover_passes(), *graph_, *packing]).run(module)
        found = next(iter(workloads_of(module).values()))
        main = next(f for f in functions(module) if ir.StringAttr(f.attributes["sym_name"]).value == "main")
        block = main.regions[0].blocks[0]
        call = next(op for op in operations(block) if op.name == "func.call")
        layouts = [read_dims(a[PACK]) if PACK in a else () for a in argument_attributes(main)]
        numbers = [list(block.arguments).index(v) for v in call.operands if isinstance(v.type, ir.RankedTensorType)]
    given: list[np.ndarray | None] = []
    for number in numbers:
        layout = [d.constant for d in layouts[number]]
        given.append(packed(bound[layout[0]], tuple(layout[1:])) if layout else bound.get(number))
    return replace(found, name="codes"), given


def rounded(x: np.ndarray, bits: int, per: str = "tensor",
            span: tuple[float, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers and scale that `ops.round_to_bits` makes of x, in the arithmetic of f32."""
    axis = None if per == "tensor" else -1
    low, high = (x.min(axis), x.max(axis)) if span is None else np.float32(span)
    top = np.float32((1 << bits) - 1)
    step = ((np.maximum(high, np.float32(0)) - np.minimum(low, np.float32(0))) / top).astype(np.float32)
    with np.errstate(divide="ignore"):
        by = np.where(step > 0, np.float32(1) / step, np.float32(0)).astype(np.float32)
    zero = np.rint(np.minimum(low, np.float32(0)) * by * np.float32(-1))
    wide = (lambda a: a) if per == "tensor" else (lambda a: a[:, None])
    return np.clip(np.rint(x * wide(by)) + wide(zero), 0, top) - wide(zero), step
