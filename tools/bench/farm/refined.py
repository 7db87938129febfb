"""Refinement under load: what calls take while a model is refined and swapped, and how much faster its traffic is afterwards.

    python -m tools.bench refined --part search --models bert_layer,gpt2_block --mixes mnli,cola,mrpc --keep FOLDER
    python -m tools.bench refined --part load --models bert_layer,gpt2_block --mixes mnli,cola,mrpc --keep FOLDER

`search`: a model is tuned for a uniform range, and refined for the lengths of a data set, with no calls beside it. `load`: both
versions are timed in turns at every length of the mix; then threads call the model with those lengths, each after a pause.
`tilewright refine` is beside them in a process of its own, which is stopped (SIGSTOP, with all that it started) and goes on
again every second or so: windows with it, with nothing, and with swaps by `reload` follow each other in a random order, so that
a machine whose speed changes within seconds is as fast for each kind. The latency of a call is taken over the median of its
length in windows with nothing beside. `p99_refine` and `p99_swap` are quantiles over that of the windows with nothing beside,
with 90 % intervals (rounds of windows of each kind drawn with replacement, so that what disturbs a whole round counts for both),
and `control` compares every other window with nothing with the rest.
Without `--part` both are made.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.refinement.cpu_share import process_seconds, started_by
from tilewright.compiler.refinement.refine import RefineOptions, refine
from tilewright.compiler.verification.verify_in_turns import Arrays, compare
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Argument
from tilewright.runtime.program.traffic import SeenShape, Traffic
from tools.bench import command

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 128
ALONE = "alone"
_BETWEEN, _SETTLE = 0.3, 0.03  # seconds after a swap, and before a window
_GOING = 0.5  # seconds until a refinement that goes on again is in slices: its first one may last as long as a rest
_MORE = 3.0  # times as long a window of a refinement is, so that it comes to its end
_DRAWS = 400  # of windows, for an interval


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
    """Threads that call a function with drawn lengths, each `pause` seconds after its last call ended.

    windows: (what was beside the calls, begin, end), by `time.perf_counter`.
    """

    def __init__(self, fn: CompiledFunction, lengths: Sequence[int], threads: int, pause: float) -> None:
        self.fn, self.lengths, self.pause = fn, lengths, pause
        self.failed = self.wrong = 0
        self.latencies: list[tuple[float, int, float]] = []
        self.windows: list[tuple[str, float, float]] = []
        self._stop = threading.Event()
        self._inputs = arguments_of(fn, lengths)
        self._wanted = {n: fn(*self._inputs[n]) for n in self._inputs}
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def window(self, beside: str, work: Callable[[], object]) -> None:
        """A window that lasts as long as some work."""
        begin = time.perf_counter()
        work()
        self.windows.append((beside, begin, time.perf_counter()))

    def excess(self) -> list[tuple[str, list[float]]]:
        """Of each window, latencies of the calls that began in it, over the median of their length where nothing was beside."""
        calls = [(what, [(n, s) for at, n, s in self.latencies if begin <= at < end]) for what, begin, end in self.windows]
        alone: dict[int, list[float]] = {}
        for n, seconds in (call for what, found in calls if what == ALONE for call in found):
            alone.setdefault(n, []).append(seconds)
        middle = {n: float(np.median(v)) for n, v in alone.items()}
        return [(what, [seconds / middle[n] for n, seconds in found if n in middle]) for what, found in calls]

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
    found = []
    for number, a in enumerate(fn.inputs):
        shape = [int(d) if d.isdigit() else length for d in a.dims or ()]
        scale = 0.03 if len(shape) == 2 and _is_weight(a) else 1.0
        found.append((scale * np.random.default_rng([number, length]).standard_normal(shape)).astype(np.float32))
    return found


def _is_weight(argument: Argument) -> bool:
    return all(d.isdigit() for d in argument.dims or ())


def arguments_of(fn: CompiledFunction, lengths: Iterable[int]) -> dict[int, list[np.ndarray]]:
    """Arguments at each length; weights are the same arrays at all of them."""
    first: list[np.ndarray] | None = None
    found: dict[int, list[np.ndarray]] = {}
    for n in sorted(set(lengths)):
        own = arguments_at(fn, n)
        if first is not None:
            own = [kept if _is_weight(i) else a for i, a, kept in zip(fn.inputs, own, first, strict=True)]
        first = first or own
        found[n] = own
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("refined", __doc__)
    parser.add_argument("--models", default="bert_layer,gpt2_block")
    parser.add_argument("--mixes", default="mnli,cola,mrpc")
    parser.add_argument("--part", choices=("search", "load"), help="that alone, with --keep")
    parser.add_argument("--tune", type=float, default=60.0, help="seconds of the search for the uniform range")
    parser.add_argument("--refine", type=float, default=60.0, help="seconds of the refinement that nothing runs beside")
    parser.add_argument("--seconds", type=float, default=25.0, help="of the search of a refinement beside calls, which stands "
                                                                    "still for half of them")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of a window under load")
    parser.add_argument("--load", type=float, default=40.0, help="seconds of each mix under load")
    parser.add_argument("--into", type=float, default=0.0,
                        help="seconds of a refinement before calls begin, which then are beside its later parts")
    parser.add_argument("--seed", type=int, default=0, help="of the order of windows")
    parser.add_argument("--cpu-share", type=float, default=0.1, help="of a refinement beside calls")
    parser.add_argument("--threads", type=int, default=4, help="that call")
    parser.add_argument("--pause", type=float, default=0.025, help="seconds between a thread's calls, on average")
    parser.add_argument("--shapes", type=int, default=12, help="distinct lengths of a mix")
    parser.add_argument("--keep", type=Path, help="folder of the models; those that are there are taken")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    lengths = json.loads((ROOT / "tools" / "bench" / "ragged" / "lengths.json").read_text())["first"]
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for model in args.models.split(","):
            tails: list[tuple[str, list[float]]] = []
            for mix in args.mixes.split(","):
                pair, drawn = Pair.of(folder, model, mix), chosen(lengths[mix], args.shapes)
                row: dict[str, Any] = {"model": model, "mix": mix}
                if args.part != "load":
                    row |= searched(pair, drawn, args)
                if args.part != "search":
                    found, more = under_load(pair, drawn, args)
                    tails += more
                    row |= {**in_turns(pair, drawn), **found}
                told(row, args.json)
            if tails:
                told({"model": model, "mix": "all", **quantiles(tails)}, args.json)
    return 0


def told(row: dict[str, Any], out: Path | None) -> None:
    print(json.dumps(row), flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Pair:
    """Files of a model as it was tuned for its whole range, and as it was refined for a mix."""

    model: str
    old: Path
    new: Path

    @staticmethod
    def of(folder: Path, model: str, mix: str) -> Pair:
        return Pair(model, folder / f"{model}.tw", folder / f"{model}.{mix}.tw")


def searched(pair: Pair, lengths: Sequence[int], args: argparse.Namespace) -> dict[str, Any]:
    """Make what is not there of both; what the refinement said."""
    if not pair.old.exists():
        model, dims = MODELS[pair.model]()
        tw.tune(model, dims, seconds=args.tune, options={"threads": 1}).save(pair.old)
    if pair.new.exists():
        return {}

    def arrays(fn: CompiledFunction) -> Arrays:
        given = arguments_of(fn, lengths)
        return lambda dims: given[dims["T"]]

    done = refine(pair.old, traffic_of(lengths), pair.new, arrays, RefineOptions(args.refine))
    return {"changed": list(done.changed), "kept": dict(done.kept)}


def traffic_of(lengths: Sequence[int]) -> Traffic:
    return Traffic(tuple(SeenShape({"T": n}, calls) for n, calls in Counter(lengths).items()))


class Beside:
    """`tilewright refine` as a service would run it, again and again, in processes that stand still from `stop` until `go_on`."""

    def __init__(self, folder: Path, old: Path, lengths: Sequence[int], args: argparse.Namespace) -> None:
        traffic_of(lengths).save(folder / "traffic.json")
        self._line = [sys.executable, "-m", "tilewright", "refine", str(old), "--traffic", str(folder / "traffic.json"),
                      "--seconds", str(args.seconds), "--cpu-share", str(args.cpu_share), "-o", str(folder / "new.tw"), "--json"]
        self._said = folder / "said.jsonl"
        self._process: subprocess.Popen[bytes] | None = None
        self.seconds = self.used = 0.0  # of windows, and of processor time in them

    def go_on(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._said.open("ab") as said:
                self._process = subprocess.Popen(self._line, stdout=said, stderr=said, cwd=ROOT)
        for process in reversed(self._tree()):
            _signal(process, signal.SIGCONT)
        time.sleep(_GOING)

    def window(self, seconds: float) -> None:
        begin, used = time.perf_counter(), others_seconds()
        time.sleep(seconds)
        self.used += others_seconds() - used
        self.seconds += time.perf_counter() - begin

    def stop(self) -> None:
        known = list[int]()
        while (found := self._tree()) != known:  # from the first on, which then starts no more
            for process in found:
                _signal(process, signal.SIGSTOP)
            known = found

    def end(self) -> list[dict[str, Any]]:
        """Kill the one that runs; what those said that came to their end, and the last words of one that failed."""
        if self._process is not None:
            for process in self._tree():
                _signal(process, signal.SIGKILL)
            self._process.wait()
        lines = self._said.read_text().splitlines() if self._said.exists() else []
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]  # the last may be cut short
        done = [{name: e[name] for name in ("changed", "kept", "seconds", "rested")} for e in events if e["event"] == "refined"]
        return done + [{"error": line} for line in lines[-3:] if not line.startswith("{")]

    def _tree(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *started_by(self._process.pid)]


def others_seconds() -> float:
    """Processor time of what this process started."""
    return process_seconds() - time.process_time()


def _signal(process: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, what)


def in_turns(pair: Pair, lengths: Sequence[int]) -> dict[str, Any]:
    """How many times as fast the refined version is: geometric mean over the mix, and where that is least."""
    old, new = tw.load(pair.old), tw.load(pair.new)
    given = arguments_of(old, lengths)
    found = {n: compare(old, new, {"T": n}, lambda dims: given[dims["T"]], False) for n in given}
    logs = [-np.log(found[n].ratio) for n in lengths if not found[n].wrong]
    return {"faster": float(np.exp(np.mean(logs))), "worst": min(1 / c.ratio for c in found.values() if not c.wrong),
            "best": max(1 / c.ratio for c in found.values() if not c.wrong), "lengths": dict(Counter(map(str, lengths))),
            "unlike": sum(bool(c.wrong) for c in found.values())}


def under_load(pair: Pair, lengths: Sequence[int],
               args: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[str, list[float]]]]:
    """One mix under load: the row, and the latencies of each window."""
    served, rng = tw.load(pair.old), random.Random(args.seed)
    served.count()

    def swapping() -> None:
        for i in range(max(1, round(args.window / _BETWEEN))):
            served.reload(pair.new if i % 2 == 0 else pair.old)
            time.sleep(_BETWEEN)

    with tempfile.TemporaryDirectory() as name:
        beside = Beside(Path(name), pair.old, lengths, args)
        if args.into:
            beside.go_on()
            time.sleep(args.into)
            beside.stop()
        load, end = Load(served, lengths, args.threads, args.pause), time.monotonic() + args.load
        works: dict[str, Callable[[], object]] = {ALONE: lambda: time.sleep(args.window), "swap": swapping,
                                                  "refine": lambda: beside.window(_MORE * args.window)}
        try:
            while time.monotonic() < end:
                for kind in rng.sample((ALONE, ALONE, "refine", "swap"), 4):
                    time.sleep(_SETTLE)
                    if kind == "refine":
                        beside.go_on()
                    load.window(kind, works[kind])
                    if kind == "refine":
                        beside.stop()
        finally:
            load.end()
            said = beside.end()
    tails = load.excess()
    counted = sum(s.calls for s in served.traffic().shapes)
    return {**quantiles(tails), "refined": said, "calls": len(load.latencies), "counted": counted, "failed": load.failed,
            "wrong": load.wrong, "refine_seconds": beside.seconds, "refine_cores": beside.used / max(beside.seconds, 1e-9)}, tails


def quantiles(windows: Sequence[tuple[str, list[float]]]) -> dict[str, Any]:
    """99 % quantiles over that of the windows with nothing beside, their 90 % intervals, and numbers of calls."""
    parts: dict[str, list[list[float]]] = {}
    for what, found in windows:
        parts.setdefault(what, []).append(found)
    alone, row, rng = parts[ALONE], dict[str, Any](), np.random.default_rng(0)
    for what in parts.keys() - {ALONE}:
        row[f"p99_{what}"] = _p99(_pooled(parts[what])) / _p99(_pooled(alone))
        each = len(alone) // len(parts[what])  # windows with nothing beside in each round
        drawn = rng.integers(len(parts[what]), size=(_DRAWS, len(parts[what])))
        ratios = [_p99(_pooled([parts[what][i] for i in rounds])) /
                  _p99(_pooled([alone[each * i + n] for i in rounds for n in range(each)])) for rounds in drawn]
        row[f"p99_{what}_within"] = [float(np.nanquantile(ratios, q)) for q in (0.05, 0.95)]
    return {**row, "control": _p99(_pooled(alone[::2])) / _p99(_pooled(alone[1::2])), "p99_alone": _p99(_pooled(alone)),
            "medians": {what: float(np.median(_pooled(found))) for what, found in parts.items()},
            "of": {what: sum(map(len, found)) for what, found in parts.items()},
            "windows": {what: len(found) for what, found in parts.items()}}


def _pooled(windows: Sequence[Sequence[float]]) -> np.ndarray:
    return np.concatenate([np.asarray(w, float) for w in windows]) if windows else np.empty(0)


def _p99(found: np.ndarray) -> float:
    return float(np.quantile(found, 0.99)) if found.size else float("nan")


def chosen(lengths: Sequence[int], count: int) -> list[int]:
    """Lengths within the range, at most so many distinct ones: quantiles, which keep the mix."""
    found = sorted(n for n in lengths if 1 <= n <= LONGEST)
    return [found[int((i + 0.5) * len(found) / count)] for i in range(count)]
