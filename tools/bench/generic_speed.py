"""How fast the family `generic` runs the operators that fall to it: one operator a model, at a shape of a real one.

    python -m tools.bench generic [--threads 1] [--json out.jsonl]

GB/s counts each operand once; GFLOP/s counts the scalar operations of the workload.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.benchmark import Timing, time_call
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType
from tilewright.search.protocols import BuildResult
from tools.bench import command

Build = Callable[..., ops.Tensor]
ROWS = [2048, 1024]
IMAGE, PIXELS = [4, 64, 56, 56], [4, 56, 56, 64]
CASES: tuple[tuple[str, Build, Sequence[Sequence[int]], Sequence[str]], ...] = (
    ("add f32", ops.add, [ROWS, ROWS], ["f32"]),
    ("add bias f32", ops.add, [ROWS, [1024]], ["f32"]),
    ("add f16", ops.add, [ROWS, ROWS], ["f16"]),
    ("add i64", ops.add, [ROWS, ROWS], ["i64"]),
    ("gelu f32", ops.gelu, [ROWS], ["f32"]),
    ("exp f32", ops.exp, [ROWS], ["f32"]),
    ("exp f64", ops.exp, [ROWS], ["f64"]),
    ("sin f32", lambda x: x.graph.pointwise("sin", lambda v: v.math("sin"), x), [ROWS], ["f32"]),
    ("cast f32 to bf16", lambda x: ops.cast(x, "bf16"), [ROWS], ["f32"]),
    ("transpose f32", ops.transpose, [ROWS], ["f32"]),
    ("concat f32", lambda x, y: ops.concat([x, y], 1), [ROWS, ROWS], ["f32"]),
    ("pad f32", lambda x: ops.pad(x, [0, 3], [0, 5]), [ROWS], ["f32"]),
    ("slice by 2 f32", lambda x: ops.slice(x, [None, None], [None, None], [1, 2]), [ROWS], ["f32"]),
    ("gather f32", ops.gather, [[512, 256], [2048]], ["f32", "i32"]),
    ("sum i32", lambda x: ops.sum(x, 1), [ROWS], ["i32"]),
    ("max i8", lambda x: ops.max(x, 1), [ROWS], ["i8"]),
    ("max_pool2d nchw", lambda x: ops.max_pool2d(x, 3, 2, 1), [IMAGE], ["f32"]),
    ("max_pool2d nhwc", lambda x: ops.max_pool2d(x, 3, 2, 1, layout="nhwc"), [PIXELS], ["f32"]),
    ("avg_pool2d nhwc", lambda x: ops.avg_pool2d(x, 2, layout="nhwc"), [PIXELS], ["f32"]),
    ("conv2d depthwise nhwc", lambda x, w: ops.conv2d(x, w, padding=1, groups=64, layout="nhwc"), [PIXELS, [3, 3, 1, 64]],
     ["f32"]),
    ("conv2d grouped nchw", lambda x, w: ops.conv2d(x, w, padding=1, groups=4), [IMAGE, [64, 16, 3, 3]], ["f32"]),
    ("matvec f32", lambda w, x: ops.reshape(ops.matmul(w, ops.reshape(x, [1024, 1])), [2048]), [ROWS, [1024]], ["f32"]),
)


@dataclass
class Recorder:
    """Builds in this process and keeps the workloads with the family that took each."""

    inner: LocalBuilder = field(default_factory=lambda: LocalBuilder(Target.parse("host")))
    taken: dict[str, tuple[Workload, str]] = field(default_factory=dict)

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        results = self.inner.build(candidates, seconds)
        for (workload, config), result in zip(candidates, results, strict=True):
            if result.kernel is not None:
                self.taken[workload.key] = (workload, config.family)
        return results


def measure(name: str, build: Build, shapes: Sequence[Sequence[int]], kinds: Sequence[str], threads: int) -> dict[str, object]:
    """Best time of a call and what it comes to."""
    g = ops.Graph()
    dtypes = [DType(kinds[min(i, len(kinds) - 1)]) for i in range(len(shapes))]
    g.output(build(*(g.input(f"x{i}", s, t) for i, (s, t) in enumerate(zip(shapes, dtypes, strict=True)))))
    recorder = Recorder()
    fn = tw.compile(g, {}, options=tw.CompileOptions(builder=recorder))
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 2, s).astype(t.numpy) if not t.is_float else rng.random(s, np.float32).astype(t.numpy)
             for s, t in zip(shapes, dtypes, strict=True)]
    outs = [np.empty([Expr.parse(d).evaluate({}) for d in o.dims or ()], o.dtype.numpy) for o in fn.outputs]
    seconds = min(time_call(lambda: fn(*given, out=outs[0], threads=threads), Timing(batch=0.02)))
    families = {c.family for c in fn.explain().calls}
    moved = math.fsum(a.nbytes for a in (*given, *outs))
    flops = sum(w.flops.evaluate({}) for w, _ in recorder.taken.values() if not w.flops.symbols)
    rates = {"GB/s": round(moved / seconds / 1e9, 2), "GFLOP/s": round(flops / seconds / 1e9, 2)}
    return {"operator": name, "families": sorted(families), "ms": round(seconds * 1e3, 4), **rates}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("generic", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append a record per operator to this file")
    given = parser.parse_args(argv)
    print(f"{'operator':24}{'family':28}{'ms':>10}{'GB/s':>9}{'GFLOP/s':>9}")
    for name, build, shapes, kinds in CASES:
        record = measure(name, build, shapes, kinds, given.threads)
        shown = ", ".join(map(str, record["families"]))  # type: ignore[call-overload]
        print(f"{name:24}{shown:28}{record['ms']:>10}{record['GB/s']:>9}{record['GFLOP/s']:>9}", flush=True)
        if given.json is not None:
            with given.json.open("a") as file:
                file.write(json.dumps({**record, "threads": given.threads}) + "\n")
    return 0
