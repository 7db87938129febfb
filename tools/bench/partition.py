"""What a graph is cut into: launches, bytes and time of training-like graphs, against torch.compile and torch itself.

    python -m tools.bench partition [--names 'layernorm*'] [--threads 1] [--rows 1,64,512,2048] [--json out.jsonl]

Each workload is one function of torch, exported for ours with a dynamic number of rows. launches: of the host program, and loops
over memory in the code that Inductor writes; bytes: what the calls of the plan read and write, beside those of inputs and
results, which each have to be moved once. Times are ratios of turns taken one after the other; they need a quiet machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.runtime.host.benchmark import Timing, time_beside
from tilewright.runtime.program.program import Program
from tools.bench import command

Sizes = Sequence[Sequence["int | str"]]
MOST = 2048  # rows
_PARALLEL = re.compile(r"#pragma omp for|^ {4,8}for\(int64_t x0", re.MULTILINE)


@dataclass(frozen=True)
class Workload:
    """build(torch) gives the function; sizes of its arguments, "T" for rows; native: what torch has for it, or None."""

    name: str
    build: Callable[[Any], Callable[..., Any]]
    sizes: Sizes
    native: Callable[[Any], Callable[..., Any]] | None = None


def layernorm_backward(torch: Any) -> Callable[..., Any]:
    def run(x: Any, dy: Any, weight: Any, mean: Any, scale: Any) -> Any:
        normed, weighted = (x - mean) * scale, dy * weight
        first, second = weighted.mean(1, keepdim=True), (weighted * normed).mean(1, keepdim=True)
        return (weighted - first - normed * second) * scale, (dy * normed).sum(0), dy.sum(0)

    return run


def native_layernorm_backward(torch: Any) -> Callable[..., Any]:
    def run(x: Any, dy: Any, weight: Any, mean: Any, scale: Any) -> Any:
        return torch.ops.aten.native_layer_norm_backward(dy, x, [x.shape[1]], mean, scale, weight, weight, [True] * 3)

    return run


def rmsnorm_backward(torch: Any) -> Callable[..., Any]:
    def run(x: Any, dy: Any, weight: Any, scale: Any) -> Any:
        normed, weighted = x * scale, dy * weight
        return (weighted - normed * (weighted * normed).mean(1, keepdim=True)) * scale, (dy * normed).sum(0)

    return run


def gelu_bias_backward(torch: Any) -> Callable[..., Any]:
    def run(x: Any, bias: Any, dy: Any) -> Any:
        z = x + bias
        gradient = dy * (0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))
        return gradient, gradient.sum(0)

    return run


def softmax_backward(torch: Any) -> Callable[..., Any]:
    def run(y: Any, dy: Any, keep: Any) -> Any:
        inner = dy * keep * y
        return inner - y * inner.sum(1, keepdim=True)

    return run


def residual_layernorm(torch: Any) -> Callable[..., Any]:
    def run(x: Any, keep: Any, residual: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x * keep + residual, (x.shape[1],), weight, bias, 1e-5)

    return run


def cross_entropy_backward(torch: Any) -> Callable[..., Any]:
    def run(x: Any, wanted: Any, upstream: Any) -> Any:
        return (torch.softmax(x, 1) - wanted) * upstream

    return run


def column_sum(torch: Any) -> Callable[..., Any]:
    return lambda x: x.sum(0)


def clipped(torch: Any) -> Callable[..., Any]:
    def run(a: Any, b: Any) -> Any:
        factor = 1 / (torch.sqrt((a * a).sum() + (b * b).sum()) + 1e-6)
        return a * factor, b * factor

    return run


WORKLOADS = (
    Workload("layernorm_backward", layernorm_backward, [["T", 768], ["T", 768], [768], ["T", 1], ["T", 1]],
             native_layernorm_backward),
    Workload("rmsnorm_backward", rmsnorm_backward, [["T", 768], ["T", 768], [768], ["T", 1]]),
    Workload("gelu_bias_backward", gelu_bias_backward, [["T", 3072], [3072], ["T", 3072]]),
    Workload("softmax_dropout_backward", softmax_backward, [["T", 512]] * 3),
    Workload("residual_dropout_layernorm", residual_layernorm, [["T", 768], ["T", 768], ["T", 768], [768], [768]]),
    Workload("cross_entropy_backward", cross_entropy_backward, [["T", 30522], ["T", 30522], ["T", 1]]),
    Workload("column_sum", column_sum, [["T", 768]]),
    Workload("clip_by_norm", clipped, [["T", 768], [768, 768]]),
)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("partition", __doc__)
    parser.add_argument("--names", default="*", metavar="PATTERN", help="which workloads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,17,64,512,2048", help="rows at which they are timed")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time of a workload at a shape, for each peer")
    parser.add_argument("--counts", action="store_true", help="launches and bytes alone")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    import torch

    torch.set_num_threads(args.threads)
    rows = [int(n) for n in args.rows.split(",")]
    for workload in WORKLOADS:
        if fnmatch.fnmatch(workload.name, args.names):
            for record in measured(torch, workload, [] if args.counts else rows, args.threads, args.seconds):
                print(shown(record))
                if args.json:
                    with args.json.open("a") as out:
                        out.write(json.dumps(record) + "\n")
    return 0


def measured(torch: Any, workload: Workload, rows: Sequence[int], threads: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A record of counts, then one a shape."""
    function = workload.build(torch)
    module, example, dynamic = exported(torch, workload, function)
    ours = tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": threads})
    plan = outline(Compilation(module, {}, full_target("host"), example=ExampleInputs(example, None, dynamic))).plan
    yield {"workload": workload.name, "launches": len(plan.launches()), "bytes": moved(plan, ours.program, MOST),
           "least_bytes": least(ours.program, MOST), "inductor_loops": inductor_loops(torch, function, example)}
    theirs = torch.compile(function, dynamic=True)
    peers = {"inductor": theirs, **({"torch": workload.native(torch)} if workload.native else {"torch": function})}
    for count in rows:
        given = tensors(torch, workload, count)
        want = function(*(a.double() for a in given))
        got = ours(*given)
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-3 * max(1.0, float(b.abs().max())))
        own, timing = partial(ours, *given), Timing(longest=seconds)
        ratios = {name: statistics.median(time_beside(partial(peer, *given), own, timing)) for name, peer in peers.items()}
        yield {"workload": workload.name, "rows": count, "threads": threads, **ratios}


def exported(torch: Any, workload: Workload, function: Callable[..., Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """The function as a module, arguments, and which axes of them are any number of rows."""
    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            return function(*given)

    rows = torch.export.Dim("T", min=1, max=MOST)
    dynamic = (tuple({0: rows} if size[0] == "T" else None for size in workload.sizes),)
    return Module().eval(), tensors(torch, workload, 64), dynamic


def tensors(torch: Any, workload: Workload, rows: int) -> tuple[Any, ...]:
    """Arguments of so many rows."""
    torch.manual_seed(rows)
    return tuple(torch.rand([rows if n == "T" else int(n) for n in size]) for size in workload.sizes)


def moved(plan: HostPlan, program: Program, rows: int) -> int:
    """Bytes that the calls read and write when there are so many rows."""
    dims = {d.name: rows for d in program.dims}
    local = [dict(zip(call.workload.dims, (e.evaluate(dims) for e in call.dims), strict=True)) for call in plan.calls]
    return sum(call.workload.bytes.evaluate(at) for call, at in zip(plan.calls, local, strict=True))


def least(program: Program, rows: int) -> int:
    """Bytes of inputs and results."""
    dims = {d.name: rows for d in program.dims}
    return sum(a.dtype.bytes * math.prod(e.evaluate(dims) for e in a.spec().dims) for a in (*program.inputs, *program.outputs))


def inductor_loops(torch: Any, function: Callable[..., Any], given: Sequence[Any]) -> int:
    """Loops over memory in the code that Inductor writes: the outermost loops of its kernels."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    _, codes = run_and_get_code(torch.compile(function, dynamic=True), *given)
    return sum(len(_PARALLEL.findall(code)) for code in codes)


def shown(record: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in record.items())
