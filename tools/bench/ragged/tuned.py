"""The encoder layer after a search for the lengths of a data set, beside the untuned layer, also on batches it never saw."""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tools.bench.ragged.case import first_lengths
from tools.bench.ragged.encoder import HEADS, INNER, LONGEST, WIDTH
from tools.bench.turns import rounds_of

_SEEN = 64  # lengths that are the histogram; those behind them are held out


def main(given: argparse.Namespace) -> int:
    """Print, for each data set, untuned over tuned time on batches of both kinds, and what the certificates measured."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True).eval()
    example = torch.randn(3, 7, WIDTH)
    ratios: list[float] = []
    twins: list[float] = []
    for name in given.sets.split(","):
        lengths = first_lengths()[name]
        outer = tw.Dim(1, 128, samples=[given.batch])
        dims = {"B": outer, "S": tw.Ragged(1, LONGEST, over="B", samples=lengths[:_SEEN])}
        options = {"threads": given.threads}
        more: dict[str, Any] = {"args": (example,), "dynamic_shapes": ({0: "B", 1: "S"},)}
        untuned = tw.compile(layer, dims, options=options, **more)
        twin = tw.compile(layer, dims, options=options, **more)  # the same once more: what a ratio is worth
        tuned = tw.tune(layer, dims, options=options, seconds=given.seconds, **more)
        with torch.inference_mode():
            for first in range(0, len(lengths) - given.batch + 1, given.batch):
                own = lengths[first : first + given.batch]
                rows, offsets = torch.randn(sum(own), WIDTH), torch.from_numpy(np.append(0, np.cumsum(own)))
                fns = {"tuned": tuned, "untuned": untuned, "twin": twin}
                turns = rounds_of({n: partial(fn, rows, offsets) for n, fn in fns.items()}, given.rounds)
                ratios.append(turns.ratios("tuned")["untuned"])
                twins.append(turns.ratios("twin")["untuned"])
                kind = "of the histogram" if first + given.batch <= _SEEN else "held out"
                shown = f"{turns.seconds['tuned'] * 1e3:.2f} ms, untuned {ratios[-1]:.3f}x, its twin {twins[-1]:.3f}x, {kind}"
                print(f"{name} {first:3}: tuned {shown}", flush=True)
                for new, old in zip(tuned.explain(S=own).calls, untuned.explain(S=own).calls, strict=True):
                    if new.config != old.config:
                        print(f"    {new.workload}: {old.config} -> {new.config}, {new.why}", flush=True)
        names = {t.workload: t.name for t in tuned.program.tables}
        for c in tuned.program.certificates:
            print(f"{name} {names[c.workload]}: {c}", flush=True)
    for name, found in (("untuned", ratios), ("two untuned ones", twins)):
        print(f"{name}: geomean {statistics.geometric_mean(found):.3f}x, {min(found):.3f}x to {max(found):.3f}x")
    return 0
