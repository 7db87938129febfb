"""Products with weights in few bits: what is chosen untuned, beside the fastest kernel of every algorithm.

    python -m tools.bench codes-choice [--formats 4g32,2g128,8g32,p64] [--rows 1,2,4,8,16,64] [--bits 8,6,5,4,3,2]
        [--size 2048x2048] [--threads 1] [--target host] [--tiles 6] [--also CONFIGURATION]... [--seconds 0.1] [--prepare]
        [--json out.jsonl]

Formats are those of `codes`. One workload of a format and kind of rows (f32; bytes of codes; whole numbers of pools, whose
bits are a dim) serves all rows and bits. Of every algorithm of its family all tiles that the untuned choice has and some random
ones of its space are built; at each shape those that may run there are timed at a glance, and the fastest of each algorithm in
turns with what is chosen, one launch after the other on the same operands. The fastest of these, where it is not what is chosen,
and that take turns once more, which the ratio is of: the least of many times is too low by chance. A ratio above 1.03 is taken
once more of longer turns, and both are written. --prepare builds all kernels into the cache and times none. --also adds kernels
by their configurations.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.codegen import limits as limits_of
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.spaces.family_registry import config_text, families_of, parse_config, space_of
from tilewright.passes.spaces.host.host_codes import HostCodesConfig
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.threads import one_thread_when_small
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Node, leaves, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.space.shapes import Dims
from tools.bench import command
from tools.bench.codes_systems import BOOK, Case
from tools.bench.thresholds.rederive import Built, HostTimer

FORMATS = "4g32,2g128,8g32,p16,p64,p256"
_LAUNCHES = 3  # of a glance
_NEAR = 1.3  # times the least at a glance, up to which an algorithm is timed in turns
_AGAIN = 2  # kernels of an algorithm that are
_LONGER, _LONGEST = 3, 12  # times as long are the turns of two, and those of two that lie far apart
_WITHIN = 1.03


@dataclass(frozen=True)
class Product:
    """Of rows by weights of a format. whole: rows are bytes, or of pools whole numbers of as many bits as the dim A."""

    case: Case
    whole: bool

    @property
    def by_bits(self) -> bool:
        return self.whole and not self.case.bits

    def workload(self, most: int, threads: int, target: Target) -> tuple[Workload, Mapping[str, Expr]]:
        """That of the product with its dims over M and A."""
        g, case = ops.Graph(), self.case
        x = g.input("x", ["M", case.k])
        x = ops.round_to_bits(x, g.dim("A"), span=(-4.0, 4.0))[0] if self.by_bits else x
        codes, scale = case.arrays(0)
        if case.bits:
            w = ops.decode([g.constant(c) for c in codes], g.constant(scale), bits=case.bits, group=case.group)
        else:
            pool = np.random.default_rng(0).integers(-127, 128, (case.group, BOOK), dtype=np.int8)
            w = ops.decode_pool([g.constant(i) for i in codes], [g.constant(pool)] * case.books, 0.01)
        g.output(ops.matmul(x, w, transpose_b=True))
        ranges = {"M": tw.Dim(1, most)} | ({"A": tw.Dim(1, 8)} if self.by_bits else {})
        options = CompileOptions(threads=threads, activations="int8" if self.whole and case.bits else "f32")
        model = outline(Compilation(g, ranges, target, options))
        found = max(model.workloads, key=lambda w: w.flops.evaluate(dict.fromkeys(w.dims, most)))
        return found, model.uses[found.key][0]


@dataclass(frozen=True)
class Chosen:
    """At one shape: seconds of what is chosen, and of the fastest kernel of each algorithm with its configuration; where that is
    far from the fastest of all, at a glance. first: the ratio before the longest turns, 0 where there were none."""

    config: str
    seconds: float
    fastest: Mapping[str, tuple[float, str]]
    first: float = 0.0

    @property
    def best(self) -> str:
        """The fastest algorithm."""
        return min(self.fastest, key=lambda a: self.fastest[a][0])

    @property
    def ratio(self) -> float:
        """Of the chosen one's time to that of the fastest."""
        return self.seconds / min(self.seconds, self.fastest[self.best][0])


def algorithm(config: TileConfig) -> str:
    """What tells the kernels of these families apart besides their tiles."""
    if isinstance(config, HostPoolsConfig):
        ways = ("permute", "shuffle", "plane", "window")
        named = next((w for w in ways if getattr(config, w)), "16 rows" if config.is_narrow else f"{config.rows} rows")
        return f"{named}, {config.bits} bits" if config.bits else named
    assert isinstance(config, HostCodesConfig)
    way = "bytes" if config.dot else "panel" if config.decode else "registers"
    return f"{way}, {config.mr} rows" if config.mr < 4 and not config.decode else way


class Choice:
    """Of one workload: what is chosen at a shape, and the kernels of all algorithms."""

    def __init__(self, workload: Workload, limits: HostLimits, tiles: int, also: Sequence[TileConfig] = ()) -> None:
        self.workload = workload
        family = families_of(workload, limits)[0]
        also = [c for c in also if c.family == family and space_of(family).why_invalid(c, workload, limits) is None]
        self._configs, root = default_of(family, workload, limits)
        self._root: Node = one_thread_when_small(root, workload)
        self.kernels: dict[str, dict[str, TileConfig]] = defaultdict(dict)
        every: dict[str, list[TileConfig]] = defaultdict(list)
        for config in space_of(family).space(workload, limits):
            every[algorithm(config)].append(config)
        draw = random.Random(0)
        chosen = [self._configs[leaf.kernel] for leaf in leaves(self._root)]
        for config in (*chosen, *also, *(c for found in every.values() for c in draw.sample(found, min(tiles, len(found))))):
            self.kernels[algorithm(config)][config_text(config)] = config

    def texts(self) -> list[str]:
        return [text for found in self.kernels.values() for text in found]

    def at(self, dims: Mapping[str, int], threads: int, built: Built, seconds: float, bits: int = 0) -> Chosen:
        """bits: of whole numbers. seconds: of turns."""
        leaf = select(self._root, dims)
        chosen, shape = config_text(self._configs[leaf.kernel]), tuple(dims.items())
        count = leaf.threads or threads
        owner = {text: name for name, found in self.kernels.items() for text, c in found.items() if _serves(c, bits)}
        seen = _glance(built, self.workload, [(text, count) for text in owner], shape)
        by_name: dict[str, list[str]] = defaultdict(list)
        for text in sorted(seen, key=seen.__getitem__):
            by_name[owner[text]].append(text)
        near = [t for texts in by_name.values() for t in texts[:_AGAIN] if seen[t] <= _NEAR * min(seen.values())]
        turns = HostTimer(built, threads, seconds)(self.workload, [(t, count) for t in dict.fromkeys([chosen, *near])], shape)
        taken = {text: found for (text, _), found in turns.items()}
        rival, first = min(taken, key=taken.__getitem__), 0.0
        for longer in () if rival == chosen else (_LONGER, _LONGEST):
            again = HostTimer(built, threads, longer * seconds)(self.workload, [(chosen, count), (rival, count)], shape)
            held = taken | {text: found for (text, _), found in again.items()}
            taken = {t: held[t] if t in (chosen, rival) else max(taken[t], held[rival]) for t in taken}
            if longer == _LONGEST or taken[chosen] <= _WITHIN * taken[rival]:
                break
            first = taken[chosen] / taken[rival]
        least = min(taken.values())  # what is slower at a glance is no faster in turns, whatever the clock did between
        times = {text: max(found, least) for text, found in seen.items()} | taken
        fastest = {name: min((times[t], t) for t in {*texts[:_AGAIN], *({chosen} & {*texts})}) for name, texts in by_name.items()}
        return Chosen(chosen, times[chosen], fastest, first)


def _glance(built: Built, workload: Workload, choices: Sequence[tuple[str, int]], shape: Dims) -> dict[str, float]:
    """Seconds of a launch of each that may run there, the least of some."""
    runner, found = HostRunner(HostDevice()), dict[str, float]()
    for (text, threads), (kernel, code) in built.running(workload, choices, shape).items():
        call, taken = runner.launcher(workload, kernel, code, dict(shape), threads), list[float]()
        call()
        for _ in range(_LAUNCHES):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        found[text] = min(taken)
    return found


def measure(product: Product, rows: Sequence[int], bits: Sequence[int], machine: tuple[Target, int], built: Built,
            sizes: tuple[int, float], also: Sequence[TileConfig] = ()) -> Iterator[tuple[int, int, Chosen]]:
    """(rows, bits or 0, what was found). machine: target and threads. sizes: random tiles of an algorithm, and seconds of turns;
    0 builds only."""
    (target, threads), (tiles, seconds) = machine, sizes
    limits = limits_of(target, threads)
    assert isinstance(limits, HostLimits)
    workload, uses = product.workload(max(rows), threads, target)
    choice = Choice(workload, limits, tiles, also)
    built(workload, choice.texts())
    if not seconds:
        return
    for m in rows:
        for a in bits if product.by_bits else (0,):
            dims = {name: e.evaluate({"M": m, "A": a}) for name, e in uses.items()}
            yield m, a, choice.at(dims, threads, built, seconds, a)


def _serves(config: TileConfig, bits: int) -> bool:
    """May rows have so many bits?"""
    return not isinstance(config, HostPoolsConfig) or not config.bits or config.bits >= bits


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("codes-choice", __doc__)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--rows", default="1,2,4,8,16,64")
    parser.add_argument("--bits", default="8,6,5,4,3,2")
    parser.add_argument("--size", default="2048x2048", help="K x N")
    parser.add_argument("--activations", default="f32,int8", help="f32; int8 for bytes of codes, whole numbers of pools")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default="host", help="host, or host:x86-64-v3")
    parser.add_argument("--tiles", type=int, default=6, help="random ones of an algorithm")
    parser.add_argument("--also", action="append", default=[], help="a configuration, where it is legal")
    parser.add_argument("--seconds", type=float, default=0.1, help="of turns of a kernel")
    parser.add_argument("--prepare", action="store_true", help="build, and time nothing")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    k, n = (int(e) for e in given.size.split("x"))
    rows, bits = ([int(v) for v in text.split(",")] for text in (given.rows, given.bits))
    target = Target.parse(given.target)
    with WorkerBuilder(target, workers=1) as builder:
        for form in given.formats.split(","):
            for activations in given.activations.split(","):
                product = Product(Case.read(form, (k, n), 0), activations == "int8")
                for m, a, found in measure(product, rows, bits, (target, given.threads), Built(builder),
                                           (given.tiles, 0.0 if given.prepare else given.seconds),
                                           [parse_config(c) for c in given.also]):
                    each = ", ".join(f"{name} {t * 1e6:.1f}" for name, (t, _) in sorted(found.fastest.items()))
                    print(f"{form:8}{activations:6}{m:>4} rows {a or '':>2}  {found.seconds * 1e6:>8.1f} us {found.ratio:6.3f}"
                          f"{f' (first {found.first:.3f})' if found.first else ''}  "
                          f"{found.config}; {found.fastest[found.best][1] if found.ratio > 1 else 'the fastest'}; {each}",
                          flush=True)
                    command.append(given.json, [{
                        "format": form, "activations": activations, "rows": m, "bits": a, "k": k, "n": n,
                        "threads": given.threads, "us": found.seconds * 1e6, "ratio": found.ratio,
                        "first": found.first, "chosen": found.config,
                        "fastest": {name: [t * 1e6, text] for name, (t, text) in found.fastest.items()}}])
    return 0
