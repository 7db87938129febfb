"""CUDA graphs on one GPU: bytes, what updates and launches cost, loops on data, and what the driver allows of executables.

    python -m tools.bench gpu-graphs --build artifacts/            # anywhere: compiles our side, needs no GPU
    python -m tools.bench gpu-graphs --artifacts artifacts/ --json out.jsonl --budget 60

The second command needs torch and the runtime's packages, no compiler. The rules of graph_rules.py come first. Then layers of
GPT-2 small in f16 at lengths that grow by one: through our one graph, by our launches, by torch's launches, and by one graph of
torch a length. `host` is what a call takes of the CPU while the GPU is idle, `whole` until the GPU is done, `stream` a call of
many without a wait between them. Then a loop whose end depends on data: a WHILE node, launches that go by a byte, and torch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import DeviceError
from tools.bench import command
from tools.bench.gpu.compare_gpu import relative
from tools.bench.gpu.device_run import Records, build_or_run
from tools.bench.gpu.gpu_ragged import guarded
from tools.bench.gpu.graph_cases import FEW, LOOPS, Form, build, eager, file_of, weights_of
from tools.bench.gpu.graph_rules import WORDS, Rules, bytes_of

STARTS = (1, 100, 500, 1000)  # of lengths that grow by one
STEPS = 8
TURNS = (1, 2, 4, 8, 16)
STREAMS = 8
_TURNS_OF_A_SLOW_KERNEL = 20_000
Call = Callable[[int], Any]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu-graphs", __doc__)
    parser.add_argument("--build", type=Path, help="compile our side into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds of a part, after which it is given up")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no part is begun")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def spent(calls: Mapping[str, Call], points: Sequence[int], sync: Callable[[], object], rounds: int) -> dict[str, Any]:
    """Microseconds of each system's calls at the points in order, medians over points and rounds, after two rounds unseen."""
    found: dict[str, dict[str, list[float]]] = {n: {"host": [], "whole": [], "stream": []} for n in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            times: dict[str, list[float]] = {"host": [], "whole": []}
            kept: Any = None
            for point in points:
                sync()
                start = time.perf_counter()
                kept = call(point)
                times["host"].append(time.perf_counter() - start)
                sync()
                times["whole"].append(time.perf_counter() - start)
            start = time.perf_counter()
            for point in points:
                kept = call(point)
            sync()
            times["stream"] = [(time.perf_counter() - start) / len(points)]
            del kept
            if number >= 2:
                for kind, seconds in times.items():
                    found[name][kind].append(statistics.median(seconds))
    return {name: {f"{kind}_us": round(statistics.median(v) * 1e6, 2) for kind, v in of.items()} |
            {"host_rounds_us": [round(v * 1e6, 2) for v in of["host"]]} for name, of in found.items()}


def graph_bytes(fn: Any, call: Callable[[], Any], streams: Iterator[Any], sync: Callable[[], object]) -> dict[str, Any]:
    """What the graphs of a function take, one on each of these streams, which are entered as contexts."""
    for stream in streams:
        with stream:
            for _ in range(2):
                call()
        sync()
    report = fn.graphs()
    return {"nodes": max((s.nodes for s in report.streams), default=0), "bytes": [s.bytes for s in report.streams],
            "states": sorted({s.state for s in report.streams}), "why": report.why}


def updates(fn: Any, call: Call, points: Sequence[int], sync: Callable[[], object]) -> list[int]:
    """Nodes that are told something new at each point after the first."""
    counts = []
    for point in points:
        call(point)
        counts.append(sum(s.updates for s in fn.graphs().streams))
    sync()
    return [b - a for a, b in pairwise(counts)]


class TorchGraphs:
    """One graph of torch for each length, over one placeholder and one pool of memory."""

    def __init__(self, torch: Any, run: Callable[[Any], Any], buffer: Any) -> None:
        self._torch, self._run, self._buffer = torch, run, buffer
        self._graphs: dict[int, tuple[Any, Any, Any]] = {}
        self._pool: Any = None
        self.bytes: list[int] = []  # of GPU memory that each took beside what torch's allocator keeps

    def capture(self, length: int) -> None:
        torch, placed = self._torch, self._buffer[:, :length].clone()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._run(placed)
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._run(placed)
        graph.replay()
        torch.cuda.synchronize()
        self.bytes.append(before - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved())
        self._pool = graph.pool()
        self._graphs[length] = graph, placed, result

    def replay(self, length: int) -> Any:
        """Of what the placeholder holds."""
        graph, _, result = self._graphs[length]
        graph.replay()
        return result

    def call(self, length: int) -> Any:
        """As a server calls it: the input is copied to the placeholder."""
        graph, placed, result = self._graphs[length]
        placed.copy_(self._buffer[:, :length])
        graph.replay()
        return result


def layer_parts(torch: Any, form: Form, fns: Mapping[str, Any], device: str, rounds: int,
                sync: Callable[[], object]) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """What is told of the layers, part by part, and what makes it. fns: `on` and `off`."""
    weights = weights_of(torch, form, device)
    buffer = torch.randn(1, form.longest, form.width, device=device).half()
    ours = {f"graphs {mode}": partial(_called, fn, buffer, weights) for mode, fn in fns.items()}

    def by_torch(length: int) -> Any:
        return eager(torch, form, buffer[:, :length], weights)

    yield {"record": "bytes", "system": "tilewright"}, lambda: graph_bytes(
        fns["on"], lambda: ours["graphs on"](STARTS[1]), (torch.cuda.stream(torch.cuda.Stream()) for _ in range(STREAMS)), sync)
    own = TorchGraphs(torch, lambda x: eager(torch, form, x, weights), buffer)
    for start in (s for s in STARTS if s + STEPS <= form.longest + 1):
        points = [*range(start, start + STEPS)]
        yield {"record": "right", "S": start}, partial(_right, torch, form, ours, buffer, weights, points)

        def timed(points: Sequence[int] = points) -> dict[str, Any]:
            begin = time.perf_counter()
            for length in points:
                own.capture(length)
            took = (time.perf_counter() - begin) / len(points)
            calls: dict[str, Call] = {**ours, "torch": by_torch, "torch graph a length": own.call,
                                      "torch graph, no copy": own.replay}
            return {"updates": updates(fns["on"], ours["graphs on"], points, sync), "torch_capture_ms": round(took * 1e3, 2),
                    "torch_graph_bytes": own.bytes[-len(points):], "systems": spent(calls, points, sync, rounds)}

        yield {"record": "lengths", "S": start, "steps": STEPS}, timed


def _called(fn: Any, buffer: Any, weights: Sequence[Any], length: int) -> Any:
    return fn(buffer[:, :length], *weights)


def _looped(fn: Any, x: Any, w: Any, lefts: Mapping[int, Any], turns: int) -> Any:
    return fn(x, w, lefts[turns])


def _right(torch: Any, form: Form, ours: Mapping[str, Call], buffer: Any, weights: Sequence[Any],
           points: Sequence[int]) -> dict[str, Any]:
    """Are the bits of our graph those of our launches, and how far is either from f64?"""
    pairs = [(ours["graphs on"](s).clone(), ours["graphs off"](s)) for s in points]
    last = buffer[:, : points[-1]].double()
    wanted = eager(torch, form, last, [w.double() for w in weights])
    return {"equal": all(torch.equal(a, b) for a, b in pairs), "error": float(f"{relative(torch, pairs[-1][0], wanted):.2e}"),
            "torch_error": float(f"{relative(torch, eager(torch, form, last.half(), weights), wanted):.2e}")}


def loop_parts(torch: Any, form: Form, fns: Mapping[str, Any], device: str, rounds: int,
               sync: Callable[[], object]) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """What is told of the loop at each number of turns. fns: those of LOOPS."""
    torch.manual_seed(1)
    x = torch.randn(form.rows, form.square, device=device).half()
    w = (torch.randn(form.square, form.square, device=device) * form.square**-0.5).half()
    lefts = {n: torch.tensor(float(n), device=device) for n in (0, *TURNS)}

    def by_torch(turns: int) -> Any:
        """Every turn reads whether there is another."""
        y, left = x, lefts[turns]
        while bool(left > 0):
            y, left = torch.tanh(y @ w), left - 1
        return y

    calls = {name: partial(_looped, fn, x, w, lefts) for name, fn in fns.items()}
    for turns in TURNS:

        def timed(turns: int = turns) -> dict[str, Any]:
            results = {name: call(turns).clone() for name, call in calls.items()}
            wanted = x.double()
            for _ in range(turns):
                wanted = torch.tanh(wanted @ w.double())
            return {"equal": all(torch.equal(r, results["launches"]) for r in results.values()),
                    "error": float(f"{relative(torch, results['conditional'], wanted):.2e}"),
                    "systems": spent({**calls, "torch": by_torch}, [turns] * STEPS, sync, rounds)}

        yield {"record": "loop", "turns": turns, "most": FEW}, timed
    yield {"record": "bytes", "system": "loops"}, lambda: {
        name: [[s.nodes, s.bytes, s.state] for s in fn.graphs().streams] or fn.graphs().why for name, fn in fns.items()}


def rules(driver: Any, stream: int, words: Any, read: Callable[[], Sequence[int]], turns: int) -> Iterator[dict[str, Any]]:
    """A record for each rule, and what executables of plain nodes take. words: a tensor of WORDS zeros, i32."""
    checks = Rules(driver, stream, words.data_ptr(), read, turns)
    yield from checks.check()
    for nodes in (1, 96):
        yield {"record": "bytes", "system": f"{nodes} plain nodes", "bytes": bytes_of(checks, nodes, 16)}


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"rule {r['name']}: {'holds' if r['held'] else r.get('error', 'does not hold')}" for r in records
             if r["record"] == "rule"]
    for r in records:
        for name, of in r.get("systems", {}).items():
            where = f"S {r['S']}" if "S" in r else f"{r['turns']} turns"
            times = "  ".join(f"{kind} {of[f'{kind}_us']:9.2f}" for kind in ("host", "whole", "stream"))
            lines.append(f"{where:10} {name:24} {times}")
    return "\n".join(lines)


def run(args: argparse.Namespace, form: Form, device: str = "cuda") -> list[dict[str, Any]]:
    """All records, written as they come."""
    import torch

    import tilewright as tw
    from tilewright.runtime.cuda.driver import driver_version, start

    records = Records(args.json)
    add, end, sync = records.add, time.monotonic() + args.budget, torch.cuda.synchronize
    words = torch.zeros(WORDS, dtype=torch.int32, device=device)
    sync()
    records.begin(torch, driver=driver_version())
    stream = torch.cuda.Stream()
    try:
        for made in rules(start(), stream.cuda_stream, words, lambda: words.tolist(), _TURNS_OF_A_SLOW_KERNEL):
            add(made)
    except DeviceError as error:
        add({"record": "rules", "error": str(error)})
    fns = {name: tw.load(args.artifacts / file_of(name))
           for name in ("layers_on", "layers_off", *(f"loop_{n}" for n in LOOPS))}
    with torch.no_grad():
        of_layers = {mode: fns[f"layers_{mode}"] for mode in ("on", "off")}
        for told, make in (*layer_parts(torch, form, of_layers, device, args.rounds, sync),
                           *loop_parts(torch, form, {n: fns[f"loop_{n}"] for n in LOOPS}, device, args.rounds, sync)):
            guarded(add, end, args.deadline, told, make)
    return records


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    return build_or_run(args.build, lambda folder: build(folder, args.target, Form()), lambda: summary(run(args, Form())))
