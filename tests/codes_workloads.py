"""Products with weights in few bits: models, their workloads with panels laid out, and the weights in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.constants.stored_constants import packed
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.dispatch_creation.pack_constants import PACK, PackConstants
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits


@dataclass(frozen=True)
class Coded:
    """x [M, k] @ W^T, W [n, k]. zero: "middle", "u8" or "f32" for zero points of their own, or a number for all of them.
    rows: values of k that share a scale of x, 0 for all, where x is bytes."""

    n: int
    k: int
    bits: int = 4
    group: int = 32
    zero: str | float = "middle"
    seed: int = 0
    rows: int | None = None

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """Codes, scales and zero points if there are some."""
        rng, groups = np.random.default_rng(self.seed), -(-self.k // (self.group or max(1, self.k)))
        codes = rng.integers(0, 256, (self.n, -(-self.k * self.bits // 8)), dtype=np.uint8)
        scale = ((rng.random((self.n, groups)) + 0.5) / 8).astype(np.float32)
        points = {"u8": rng.integers(0, 1 << self.bits, (self.n, groups), dtype=np.uint8),
                  "f32": rng.normal(2, 1, (self.n, groups)).astype(np.float32)}
        found = [scale, *([points[self.zero]] if self.zero in points else [])]
        return [codes, *(a if groups > 1 else a[:, 0] for a in found)]

    @property
    def weight(self) -> np.ndarray:
        """W in float64."""
        codes, scale, *points = (a if a.ndim > 1 else a[:, None] for a in self.arrays)
        spread = np.stack([(codes >> s) & ((1 << self.bits) - 1) for s in range(0, 8, self.bits)], -1)
        group = np.arange(self.k) // (self.group or max(1, self.k))
        point = points[0].astype(np.float64)[:, group] if points else float(
            1 << (self.bits - 1)) if self.zero == "middle" else float(self.zero)
        return (spread.reshape(self.n, -1)[:, : self.k].astype(np.float64) - point) * scale.astype(np.float64)[:, group]

    def graph(self, rows: int | str = "M", bias: np.ndarray | None = None) -> ops.Graph:
        g = ops.Graph()
        x, (codes, scale, *points) = self._x(g, rows), (g.constant(a) for a in self.arrays)
        zero = points[0] if points else None if self.zero == "middle" else float(self.zero)
        w = ops.decode(codes, scale, zero, bits=self.bits, group=self.group, depth=self.k)
        g.output(ops.dense(x, w, None if bias is None else g.constant(bias), transposed=True))
        return g

    def _x(self, g: ops.Graph, rows: int | str) -> ops.Tensor:
        if self.rows is None:
            return g.input("x", [rows, self.k])
        scale = g.input("s", [rows, self.k // self.rows] if self.rows else [rows])
        return ops.decode(g.input("x", [rows, self.k], "i8"), scale, bits=8, group=self.rows)

    def workload(self, limits: HostLimits) -> tuple[Workload, list[np.ndarray | None]]:
        """As outlined and laid out, with what is bound to each tensor argument; None for x."""
        graph = self.graph()
        model, bound = bind_constants(ingest(graph.module_text(), {"M": (0, 99)}), graph.constants)
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(model.text)
            packing = PackConstants(limits.vector_bytes, limits.vector_registers)
            PassPipeline([*recover_passes(), *graph_passes(), packing]).run(module)
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
