"""Refinement under load: what calls take while a model is refined and swapped, and how much faster its traffic is afterwards.

    python -m tools.bench refined --models bert_layer,gpt2_block --mixes mnli,cola,mrpc --tune 40 --seconds 60 --cpu-share 0.1

A model is tuned for a uniform range and saved. Threads call it with lengths of a data set, each after a pause; first alone, then
while `tilewright refine` runs in a process of its own, then while `reload` swaps versions. Latencies are compared between
these parts; the speeds of the two versions at every counted shape are those that refine measured, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.load.function import CompiledFunction
from tools.bench import command

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 128


def bert_layer() -> Any:
    """The model of examples/, and its ranges."""
    return ROOT / "examples" / "bert_layer.mlir", {"T": (1, LONGEST)}


def gpt2_block() -> Any:
    """A block of GPT-2's size: attention that looks back, and its two products."""
    graph = ops.Graph()
    x, width, heads = graph.input("x", ["T", 768]), 768, 12
    weights = {n: graph.input(n, [768, columns]) for n, columns in (("q", 768), ("k", 768), ("v", 768), ("o", 768), ("up", 3072))}
    down = graph.input("down", [3072, 768])
    q, k, v = (ops.transpose(ops.reshape(ops.matmul(x, weights[n]), ["T", heads, width // heads]), [1, 0, 2]) for n in "qkv")
    mixed = ops.attention(q, k, v, causal=True)
    y = ops.add(x, ops.matmul(ops.reshape(ops.transpose(mixed, [1, 0, 2]), ["T", width]), weights["o"]))
    graph.output(ops.add(y, ops.matmul(ops.gelu(ops.matmul(y, weights["up"])), down)))
    return graph, {"T": (1, LONGEST)}


MODELS = {"bert_layer": bert_layer, "gpt2_block": gpt2_block}


class Load:
    """Threads that call a function with drawn lengths, each `pause` seconds after its last call ended."""

    def __init__(self, fn: CompiledFunction, lengths: Sequence[int], threads: int, pause: float) -> None:
        self.fn, self.lengths, self.pause = fn, lengths, pause
        self.failed = self.wrong = 0
        self.latencies: list[tuple[float, int, float]] = []
        self._stop = threading.Event()
        self._inputs = {n: arguments_at(fn, n) for n in sorted(set(lengths))}
        self._wanted = {n: fn(*self._inputs[n]) for n in self._inputs}
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def excess(self, begin: float, end: float, alone: float) -> list[float]:
        """Latencies of calls between two times, each over the median of its length in the calls before `alone`."""
        before: dict[int, list[float]] = {}
        for at, n, seconds in self.latencies:
            if at < alone:
                before.setdefault(n, []).append(seconds)
        middle = {n: float(np.median(v)) for n, v in before.items()}
        return [seconds / middle[n] for at, n, seconds in self.latencies if begin <= at < end and n in middle]

    def _call(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self._stop.is_set():
            n = int(rng.choice(self.lengths))
            begin = time.perf_counter()
            try:
                got = self.fn(*self._inputs[n])
            except tw.errors.TilewrightError:
                self.failed += 1
                continue
            self.latencies.append((begin, n, time.perf_counter() - begin))
            wanted = self._wanted[n]
            if float(np.linalg.norm(got - wanted)) > 4e-5 * float(np.linalg.norm(wanted)):
                self.wrong += 1
            self._stop.wait(self.pause * rng.uniform(0.5, 1.5))


def arguments_at(fn: CompiledFunction, length: int) -> list[np.ndarray]:
    """Random arguments; weights scaled so that activations stay near 1."""
    rng = np.random.default_rng(0)
    found = []
    for a in fn.inputs:
        shape = [length if d == "T" else int(d) for d in a.dims or ()]
        scale = 0.03 if len(shape) == 2 and "T" not in (a.dims or ()) else 1.0
        found.append((scale * rng.standard_normal(shape)).astype(np.float32))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("refined", __doc__)
    parser.add_argument("--models", default="bert_layer,gpt2_block")
    parser.add_argument("--mixes", default="mnli,cola,mrpc")
    parser.add_argument("--tune", type=float, default=40.0, help="seconds of the search for the uniform range")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the refinement's search")
    parser.add_argument("--alone", type=float, default=15.0, help="seconds of load before it")
    parser.add_argument("--cpu-share", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=4, help="that call")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between a thread's calls, on average")
    parser.add_argument("--shapes", type=int, default=12, help="distinct lengths of a mix")
    parser.add_argument("--keep", type=Path, help="folder of the tuned models; those that are there are taken")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    lengths = json.loads((ROOT / "tools" / "bench" / "ragged" / "lengths.json").read_text())["first"]
    for name in args.models.split(","):
        fn = tuned(name, args)
        for mix in args.mixes.split(","):
            drawn = chosen(lengths[mix], args.shapes)
            row = {"model": name, "mix": mix, **measured(fn, drawn, args)}
            print(json.dumps(row), flush=True)
            if args.json is not None:
                with args.json.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
    return 0


def tuned(name: str, args: argparse.Namespace) -> CompiledFunction:
    """A model tuned for its uniform range, now or before."""
    path = None if args.keep is None else args.keep / f"{name}.tw"
    if path is not None and path.exists():
        return tw.load(path)
    model, dims = MODELS[name]()
    fn = tw.tune(model, dims, seconds=args.tune, options={"threads": 1})
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fn.save(path)
    return fn


def chosen(lengths: Sequence[int], count: int) -> list[int]:
    """Lengths within the range, at most so many distinct ones: quantiles, which keep the mix."""
    found = sorted(n for n in lengths if 1 <= n <= LONGEST)
    return [found[int((i + 0.5) * len(found) / count)] for i in range(count)]


def measured(fn: CompiledFunction, lengths: Sequence[int], args: argparse.Namespace) -> dict[str, Any]:
    """One mix: load alone, load beside the refinement, load while versions are swapped."""
    with tempfile.TemporaryDirectory() as folder:
        old, new, traffic = (Path(folder) / n for n in ("old.tw", "new.tw", "traffic.json"))
        fn.save(old)
        served = tw.load(old)
        served.count()
        load = Load(served, lengths, args.threads, args.pause)
        time.sleep(args.alone)
        served.traffic().save(traffic)
        begin = time.perf_counter()
        line = [sys.executable, "-m", "tilewright", "refine", str(old), "--traffic", str(traffic), "--seconds", str(args.seconds),
                "--cpu-share", str(args.cpu_share), "-o", str(new), "--json"]
        ran = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
        refined = time.perf_counter()
        event: dict[str, Any] = next((e for e in map(json.loads, ran.stdout.splitlines()) if e["event"] == "refined"), {})
        compared = [e for e in map(json.loads, ran.stdout.splitlines()) if e["event"] == "compared"]
        for i in range(10):
            served.reload(new if i % 2 == 0 else old)
            time.sleep(0.3)
        end = time.perf_counter()
        load.end()
    parts = {"alone": (0.0, begin), "refine": (begin, refined), "swap": (refined, end)}
    ratios = {part: load.excess(*span, begin) for part, span in parts.items()}
    tails = {f"p99_{part}": float(np.quantile(found, 0.99)) for part, found in ratios.items() if found}
    found = {name: event.get(name) for name in ("faster", "worst", "changed", "kept")}
    return {**found, **tails, "compared": len(compared), "seconds": refined - begin, "calls": len(load.latencies),
            "failed": load.failed, "wrong": load.wrong, "lengths": dict(Counter(map(str, lengths))),
            "error": "" if event else ran.stderr[-300:]}
