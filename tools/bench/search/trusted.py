"""Is a tuned model never slower than an untuned one, and does its certificate say what is measured again?

    python -m tools.bench trusted --json found.jsonl --only 'rows_*' --seeds 1,2,3 --seconds 45
    python -m tools.bench trusted --json found.jsonl --report

Ten operators that no table of the benches holds are tuned from an empty log. Then the tuned and the untuned model are called in
turns at 16 sizes, a few turns at each before any has its next ones, until the 95 % interval of their ratio is below 3 %: a core
is slower for seconds at a time while others use what it shares, and which kernel is faster depends on it. Where both dispatch to
the same kernel nothing is timed.
At the held-out shapes of the certificate the dispatched kernel is timed again against each kernel that the certificate measured
there, until that interval is below 1 %, and the regrets are compared with the intervals that it states. Each run appends a line
to the file.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.runtime.host.benchmark import Timing, time_turn, warm_up
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.host_runner import HostRunner
from tools.bench import command

Called = Callable[[], object]

SIZES = 16
TURN = 0.0005  # seconds of a turn at least
NARROW, CLOSE = 0.03, 0.01  # of a 95 % interval; of a regret's: the largest of several ratios, each with an error, is too large
FEWEST, MOST = 9, 400  # turns
LONGEST = 4.0  # seconds of the turns at a held-out shape, after which the interval is what it is
PASSES = (9, 60)  # through the sizes, at least and at most
PASS = 0.5  # seconds from the begin of one to that of the next, at least
IN_PASS = 10  # turns at a size
FLOOR = 0.97  # untuned over tuned


class Again(msgspec.Struct, frozen=True):
    """A size measured again. ratio: of the untuned time to the tuned; width: of its 95 % interval; same: one kernel serves
    both."""

    size: int
    ratio: float
    width: float
    same: bool


class Trusted(msgspec.Struct, frozen=True):
    """One run. mean, worst: regrets of the certificate, those measured again, and whether the certificate's interval holds them;
    longest_slot: share of the budget; at: regrets stated and measured again at each held-out shape."""

    operator: str
    seed: int
    seconds: float
    threads: int
    sizes: list[Again]
    stated: tuple[float, float]
    within: tuple[tuple[float, float], tuple[float, float]]
    found: tuple[float, float]
    held: int
    predicted: tuple[float, float]
    longest_slot: float
    trials: int
    cpu: str = ""
    at: list[tuple[dict[str, int], float, float]] = []


def constant(g: ops.Graph, name: str, shape: Sequence[int]) -> ops.Tensor:
    return g.input(name, list(shape))


def attention(g: ops.Graph, heads: int, width: int) -> ops.Tensor:
    q, k, v = (g.input(n, [1, heads, "T", width]) for n in "qkv")
    return ops.attention(q, k, v)


def graphs() -> Mapping[str, tuple[Callable[[ops.Graph], ops.Tensor], tuple[int, int], Mapping[str, tuple[int, ...]]]]:
    """Name -> its body over the dim T, the range of T, and the shapes of its constants."""
    x = "x"
    return {
        "dense_640x1728": (lambda g: ops.dense(g.input(x, ["T", 640]), constant(g, "w", (640, 1728))), (1, 256),
                           {"w": (640, 1728)}),
        "dense_512x96": (lambda g: ops.dense(g.input(x, ["T", 512]), constant(g, "w", (512, 96))), (1, 512), {"w": (512, 96)}),
        "dense_argument_384": (lambda g: ops.dense(g.input(x, ["T", 384]), g.input("w", [384, 384])), (1, 256), {}),
        "bmm_48": (lambda g: ops.batch_matmul(g.input(x, [8, "T", 48]), g.input("k", [8, "T", 48]), transpose_b=True), (1, 256),
                   {}),
        "rows_softmax_1000": (lambda g: ops.softmax(g.input(x, ["T", 1000])), (1, 512), {}),
        "rows_rmsnorm_1536": (lambda g: ops.rmsnorm(g.input(x, ["T", 1536]), constant(g, "w", (1536,))), (1, 256),
                              {"w": (1536,)}),
        "rows_softmax_t": (lambda g: ops.softmax(g.input(x, [96, "T"])), (2, 512), {}),
        "conv1x1_96": (lambda g: ops.conv2d(g.input(x, ["T", 96, 14, 14]), constant(g, "w", (192, 96, 1, 1))), (1, 8),
                       {"w": (192, 96, 1, 1)}),
        "conv3x3_48": (lambda g: ops.conv2d(g.input(x, ["T", 48, 28, 28]), constant(g, "w", (48, 48, 3, 3)), padding=1), (1, 8),
                       {"w": (48, 48, 3, 3)}),
        "attention_80": (lambda g: attention(g, 8, 80), (1, 256), {}),
    }  # fmt: skip


def made(name: str, options: tw.CompileOptions) -> tw.CompiledFunction:
    """An operator compiled with options."""
    body, (low, high), shapes = graphs()[name]
    g = ops.Graph()
    g.output(body(g))
    rng = np.random.default_rng(0)
    values = {n: rng.random(s, np.float32) - np.float32(0.5) for n, s in shapes.items()}
    return tw.compile(g, {"T": tw.Dim(low, high)}, options=options, constants=values)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.report:
        print(report([msgspec.json.decode(line, type=Trusted) for line in args.json.read_bytes().splitlines()]))
        return 0
    for name in (n for n in graphs() if fnmatch.fnmatchcase(n, args.only)):
        for seed in map(int, args.seeds.split(",")):
            found = run(name, seed, args.seconds, args.threads)
            with args.json.open("ab") as out:
                out.write(msgspec.json.encode(found) + b"\n")
            print(line(found), flush=True)
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("trusted", __doc__)
    parser.add_argument("--json", type=Path, required=True, help="JSON Lines file to append to, or to report of")
    parser.add_argument("--only", default="*", help="pattern of operator names")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each search")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="print the table of a file")
    return parser.parse_args(argv)


def run(name: str, seed: int, seconds: float, threads: int) -> Trusted:
    """Tune, then measure again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.jsonl"
        plain = made(name, tw.CompileOptions(threads=threads))
        tuned = made(name, tw.CompileOptions(threads=threads, seconds=seconds, seed=seed, policy="ucb", log=path))
        log = TuningLog(path)
        certificate = tuned.program.certificates[0]
        sizes = again(plain, tuned, spread(graphs()[name][1]))
        regrets = measured_again(certificate, tuned.program, log, threads)
    found = (statistics.fmean(regrets), max(regrets)) if regrets else (0.0, 0.0)
    return Trusted(
        name, seed, seconds, threads, sizes, (certificate.measured_mean, certificate.measured_worst),
        (certificate.mean_within, certificate.worst_within), found, len(regrets),
        (certificate.predicted_mean, certificate.predicted_worst),
        max((s.seconds for s in log.slots), default=0.0) / seconds, certificate.trials, certificate.device,
        [*zip(map(dict, certificate.held_out), certificate.regrets, regrets, strict=True)],
    )  # fmt: skip


def spread(within: tuple[int, int]) -> list[int]:
    """Sizes of a range, evenly on a logarithmic scale."""
    low, high = within
    return sorted({round(low * (high / low) ** (i / (SIZES - 1))) for i in range(SIZES)})


def again(plain: tw.CompiledFunction, tuned: tw.CompiledFunction, sizes: Sequence[int]) -> list[Again]:
    """The untuned time over the tuned at sizes of T: the median of the passes, each of which has the median of its turns."""
    ratios: dict[int, list[float]] = {size: [] for size in sizes if kernels(plain.program, size) != kernels(tuned.program, size)}
    pairs = {size: (given(plain, size), given(tuned, size)) for size in ratios}
    for number in range(PASSES[1]):
        begin = time.perf_counter()
        left = [size for size, found in ratios.items() if number < PASSES[0] or interval(found) >= NARROW]
        if not left:
            break
        for size in left:
            ratios[size].append(in_turns(*pairs[size], 0.0, IN_PASS)[0])
        time.sleep(max(0.0, begin + PASS - time.perf_counter()))
    return [Again(size, statistics.median(found), interval(found), False) if (found := ratios.get(size)) else
            Again(size, 1.0, 0.0, True) for size in sizes]


def given(model: tw.CompiledFunction, size: int) -> Called:
    """Calls a model with random inputs of a size, the same for all models."""
    rng = np.random.default_rng(size)
    inputs = [rng.random([Expr.parse(str(d)).evaluate({"T": size}) for d in i.dims or ()], np.float32)
              for i in model.program.inputs]  # fmt: skip
    out = model(*inputs)
    return lambda: model(*inputs, out=out)


def kernels(program: Program, size: int) -> list[tuple[str, int]]:
    """(configuration, most threads) of each call."""
    found = []
    for c in program.calls:
        table = program.tables[c.table]
        local = dict(zip(table.dims, (Expr.parse(d).evaluate({"T": size}) for d in c.dims), strict=True))
        leaf = select(table.root, local)
        found.append((table.kernels[leaf.kernel].config, leaf.threads))
    return found


def in_turns(one: Called, other: Called, narrow: float, most: int = MOST) -> tuple[float, float]:
    """Time of one over the other's: the median of the ratios of turns, and the width of its 95 % interval, which is narrow enough
    or took as long as it may."""
    costs = [warm_up(c, Timing()) for c in (one, other)]
    calls = [(c, max(1, round(TURN / each)), each < 2 * TURN) for c, each in zip((one, other), costs, strict=True)]
    ratios: list[float] = []
    begin = time.perf_counter()
    with HostDevice().awake():
        while len(ratios) < most:
            first = len(ratios) % 2
            times = {place: time_turn(*calls[place]) for place in (first, 1 - first)}
            ratios.append(times[0] / times[1])
            if len(ratios) >= FEWEST and (interval(ratios) < narrow or time.perf_counter() - begin > LONGEST):
                break
    return statistics.median(ratios), interval(ratios)


def interval(ratios: Sequence[float]) -> float:
    """Width of the 95 % interval of the median: order statistics of the binomial distribution."""
    ordered, count = sorted(ratios), len(ratios)
    reach = 0.98 * math.sqrt(count)
    low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))
    return ordered[high] - ordered[low]


def measured_again(certificate: Certificate, program: Program, log: TuningLog, threads: int) -> list[float]:
    """Regrets at the held-out shapes, of the dispatched kernel against those that the certificate measured there."""
    workload = log.workloads[certificate.workload].workload()
    table = next(t for t in program.tables if t.workload == certificate.workload)
    runner, found = HostRunner(HostDevice()), []
    with WorkerBuilder(Target.parse("host")) as builder:
        for shape in certificate.held_out:
            leaf = select(table.root, shape)
            records = [r for r in log.of(workload.key) if r.dims == shape and r.seconds]
            own = (table.kernels[leaf.kernel].config, leaf.threads or threads)
            rivals = [v for v in dict.fromkeys((r.config, r.threads) for r in records) if v != own]
            calls = {}
            for config, count in (own, *rivals):
                built = builder.build([(workload, parse_config(config))])[0]
                if built.kernel is not None:
                    calls[config, count] = runner.launcher(workload, built.kernel, built.code, shape, count)
            ratios = [in_turns(calls[own], call, CLOSE)[0] for variant, call in calls.items() if variant != own]
            found.append(max([1.0, *ratios]) - 1)
    return found


def line(r: Trusted) -> str:
    """A run on one line."""
    worst = min(s.ratio for s in r.sizes)
    (low, high), (bad, worse) = r.within
    return (f"{r.operator}:{r.seed} t{r.threads}: worst {worst:.3f}, geomean {geomean(r):.3f} of untuned, "
            f"{sum(not s.same for s in r.sizes)} of {len(r.sizes)} sizes differ; regret stated {r.stated[0]:.1%} ({low:.1%} to "
            f"{high:.1%}), worst {r.stated[1]:.1%} ({bad:.1%} to {worse:.1%}); again {r.found[0]:.1%}, {r.found[1]:.1%}; "
            f"predicted {r.predicted[0]:.1%}, {r.predicted[1]:.1%}; longest slot {r.longest_slot:.1%}; {r.trials} trials")


def geomean(r: Trusted) -> float:
    return math.exp(statistics.fmean(math.log(s.ratio) for s in r.sizes))


def report(records: Sequence[Trusted]) -> str:
    """The last run of each operator, seed and number of threads, and what holds of all."""
    last = list({(r.operator, r.seed, r.threads): r for r in records}.values())
    sizes = [s for r in last for s in r.sizes]
    below = [s for s in sizes if s.ratio < FLOOR]
    sure = [s for s in below if s.ratio + s.width / 2 < FLOOR]
    covered = {n: sum(r.within[n][0] <= r.found[n] <= r.within[n][1] for r in last if r.held) for n in (0, 1)}
    judged = sum(r.held > 0 for r in last)
    return "\n".join([
        *map(line, last),
        f"{len(last)} runs, {len(sizes)} sizes, {sum(not s.same for s in sizes)} with another kernel, "
        f"{sum(s.width >= NARROW for s in sizes)} with an interval of {NARROW:.0%} or more; untuned over tuned: geomean "
        f"{math.exp(statistics.fmean(math.log(s.ratio) for s in sizes)):.3f}, worst {min(s.ratio for s in sizes):.3f}; below "
        f"{FLOOR}: {len(below)}, {len(sure)} of them with all of their interval",
        f"the certificate's interval holds the mean regret measured again in {covered[0]} of {judged} runs, the worst in "
        f"{covered[1]}; longest slot {max(r.longest_slot for r in last):.1%} of the budget",
    ])  # fmt: skip
