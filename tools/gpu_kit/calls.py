"""Calls of an artifact on a GPU: under a graph, on several streams, and what they cost the host.

    python -m tools.gpu_kit.calls FILE.tw --json out.jsonl
    python -m tools.gpu_kit.calls FILE.tw --once 4096       # one call on zeros, for a profiler
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

_CALLS = 500


def arrays(fn: tw.CompiledFunction, at: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """Seeded arguments of small values where every dim has the value `at`."""
    rng, found = np.random.default_rng(seed), []
    sizes = {d.name: at for d in fn.program.dims}
    for a in fn.inputs:
        values = rng.standard_normal([e.evaluate(sizes) for e in a.spec().dims])
        found.append((values * 0.05).astype(a.dtype.numpy))
    return found


def once(fn: tw.CompiledFunction, at: int) -> None:
    """One call on host arrays, which are copied in and out."""
    fn(*arrays(fn, at, 0))


def checks(fn: tw.CompiledFunction, at: int) -> list[dict[str, Any]]:
    """Records of the graph, of two streams, and of the host's cost; of the call on host arrays alone where there is no torch."""
    given = [arrays(fn, at, seed) for seed in (0, 1)]
    wanted = [np.asarray(_first(fn(*x))) for x in given]
    again = np.asarray(_first(fn(*given[0])))
    found = [{"record": "call", "T": at, "what": "equal calls", "ok": again.tobytes() == wanted[0].tobytes()}]
    try:
        import torch
    except ImportError:
        return found
    if not hasattr(torch, "from_numpy") or not torch.cuda.is_available():
        return found
    tensors = [[torch.from_numpy(a).cuda() for a in x] for x in given]
    static = [t.clone() for t in tensors[0]]
    _first(fn(*static))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = _first(fn(*static))
    for number, values in enumerate(tensors):
        for mine, value in zip(static, values, strict=True):
            mine.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        found.append(_same(at, f"graph {number}", result, wanted[number]))
    streams = [torch.cuda.Stream() for _ in tensors]
    results: list[list[Any]] = [[], []]
    for _ in range(20):
        for stream, values, into in zip(streams, tensors, results, strict=True):
            with torch.cuda.stream(stream):
                into.append(_first(fn(*values)))
    torch.cuda.synchronize()
    for number, into in enumerate(results):
        found += [_same(at, f"stream {number}", r, wanted[number]) for r in (into[0], into[-1])]
    cost = round(_host(lambda: fn(*tensors[0]), torch), 3)
    found.append({"record": "figure", "name": "host", "T": at, "value": cost, "unit": "us"})
    return found


def _middling(fn: tw.CompiledFunction) -> int:
    """A value that every dim of the artifact may have, of those up to 128 the largest."""
    sizes = fn.program.dims
    most = min([128, *(d.hi for d in sizes)])
    return max([1, *(max(d.lo, most // d.multiple_of * d.multiple_of) for d in sizes)])


def _same(at: int, what: str, got: Any, wanted: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"record": "call", "T": at, "what": what, "ok": got.cpu().numpy().tobytes() == wanted.tobytes()}


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _host(call: Callable[[], Any], torch: Any) -> float:
    """Microseconds that the host spends in a call, the best of five batches."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        best = min(best, (time.perf_counter() - start) / _CALLS)
    torch.cuda.synchronize()
    return best * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.gpu_kit.calls", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--once", type=int, help="call once at this extent")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    fn = tw.load(args.artifact)
    if args.once is not None:
        once(fn, args.once)
        return 0
    failed = 0
    for record in checks(fn, _middling(fn)):
        failed += record.get("ok") is False
        text = json.dumps({"artifact": args.artifact.name, **record})
        print(text, flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(text + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
