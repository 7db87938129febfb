"""The encoder layer after a search for the lengths of a data set, beside the untuned layer, also on batches it never saw.

All functions read the same constants, so that what differs is their kernels and not where their memory lies; `twin` is the
untuned program loaded once more, whose ratio says what one is worth. A search is kept by the cache: run again, the bench measures
the same kernels in another process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.bundles import bundle_of
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.program.artifact import Bundle, Memory
from tools.bench.ragged.case import first_lengths
from tools.bench.ragged.encoder import HEADS, INNER, LONGEST, WIDTH
from tools.bench.turns import rounds_of

_SEEN = 64  # lengths that are the histogram; those behind them are held out


def main(given: argparse.Namespace) -> int:
    """Print, for each data set, untuned over tuned time on batches of both kinds, and what the certificates measured."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    ratios: list[float] = []
    twins: list[float] = []
    regrets: list[float] = []
    for name in given.sets.split(","):
        lengths = first_lengths()[name]
        bundles = [_bundle(layer, lengths[:_SEEN], given, seconds) for seconds in (None, given.seconds)]
        shared = {digest: _in_memory(memory) for digest, memory in bundles[0].constants.items()}
        untuned, twin, tuned = (_function(b, shared, given.threads) for b in (bundles[0], *bundles))
        with torch.inference_mode():
            for first in range(0, min(len(lengths), 2 * _SEEN) - given.batch + 1, given.batch):
                own = lengths[first : first + given.batch]
                rows, offsets = torch.randn(sum(own), WIDTH), torch.from_numpy(np.append(0, np.cumsum(own)))
                fns = {"tuned": tuned, "untuned": untuned, "twin": twin}
                turns = rounds_of({n: partial(fn, rows, offsets) for n, fn in fns.items()}, given.rounds)
                ratios.append(turns.ratios("tuned")["untuned"])
                twins.append(turns.ratios("twin")["untuned"])
                kind = "of the histogram" if first + given.batch <= _SEEN else "held out"
                ms, error = turns.seconds["tuned"] * 1e3, turns.error("tuned", "untuned")
                print(f"{name} {first:3}: tuned {ms:.2f} ms, untuned {ratios[-1]:.3f}x +- {error:.3f}, its twin "
                      f"{twins[-1]:.3f}x, {kind}", flush=True)
        for new, old in zip(tuned.explain(S=own).calls, untuned.explain(S=own).calls, strict=True):
            if new.config != old.config:
                print(f"    {new.workload}: {old.config} -> {new.config}, {new.why}", flush=True)
        names = {t.workload: t.name for t in tuned.program.tables}
        for c in tuned.program.certificates:
            print(f"{name} {names[c.workload]}: {c.trials} measurements, {c}", flush=True)
            regrets += c.regrets
    for kind, found in (("untuned", ratios), ("two untuned ones", twins)):
        print(f"{kind}: geomean {statistics.geometric_mean(found):.3f}x, {min(found):.3f}x to {max(found):.3f}x")
    print(f"regret at {len(regrets)} shapes held out: worst {max(regrets, default=0.0):.1%}")
    return 0


def _bundle(layer: Any, lengths: list[int], given: argparse.Namespace, seconds: float | None) -> Bundle:
    """The layer, searched for so many seconds, or not at all."""
    import torch

    dims = {"B": tw.Dim(1, 128, samples=[given.batch]), "S": tw.Ragged(1, LONGEST, over="B", samples=lengths)}
    options = tw.CompileOptions(threads=given.threads, seconds=seconds, policy=None if seconds is None else "ucb")
    example = ExampleInputs((torch.randn(3, 7, WIDTH),), None, ({0: "B", 1: "S"},))
    begin = time.perf_counter()
    made = bundle_of(Compilation(layer, dims, full_target("host"), options, example=example))
    print(f"{'untuned' if seconds is None else 'tuned'}: made in {time.perf_counter() - begin:.1f} s", flush=True)
    return made


def _in_memory(memory: Memory) -> np.ndarray:
    """A copy that begins on a page."""
    data = np.frombuffer(memory, np.uint8)
    room = np.empty(data.size + 4096, np.uint8)
    start = -room.ctypes.data % 4096
    room[start : start + data.size] = data
    return room[start : start + data.size]


def _function(bundle: Bundle, shared: dict[str, np.ndarray], threads: int) -> tw.CompiledFunction:
    constants = {digest: shared.get(digest, memory) for digest, memory in bundle.constants.items()}
    return tw.CompiledFunction(bundle.program, bundle.code, constants, device_for(bundle.program, bundle.code),
                               llvm_ir=bundle.llvm_ir, threads=threads)
