"""Batches of sequences of different lengths against what users of PyTorch and ONNX Runtime write.

    python -m tools.bench ragged [encoder|attention|grouped|products|overheads|kernels|tuned|
                                  padding|masks] [--sets mnli,race] [--batch 32]
                                 [--threads 1] [--rounds 9] [--json out.jsonl]

The lengths of encoder and attention are the first sequences of eight data sets (lengths.json). In one process all systems take
turns; ratios are medians over the rounds of peer time / ours.

encoder    a layer of 512, 8 heads, FF 2048. `padded`: torch with a padding mask; `nested`: its fast path of
           nn.TransformerEncoder; `ort`: ONNX Runtime on the padded layer; `careful`: dense layers over packed rows and one
           attention for each sequence. `even`: this layer on as many sequences of one length, `alone`: this layer compiled for
           one sequence, called for each of these; both work by work, which is the ragged efficiency. `flex`, `njt`: by
           torch.compile, with FlexAttention over packed rows and with nested tensors, which takes minutes to compile.
attention  its attention alone, of q, k, v as packed rows. `padded`: one masked attention; `loop`: one for each sequence;
           `flex`, `njt` as above.
grouped    rows by expert times the expert's 512 x 2048. `loop`: a torch matmul for each expert.
products   100 products of own M, N and K. `padded`: one bmm; `loop`: a torch matmul for each.
overheads  without peers: what a call of the layer with 128 empty sequences takes; calls with sequences in each form; a batch of
           one long sequence in three orders; the arena of each data set's batch over that of one sequence of as many rows.
tuned      the layer after a search of --seconds for the first 64 lengths of a set, against the untuned one: on these, and on the
           64 lengths behind them.
padding    the layer without its attention, over the rows of a batch and over as many as are a multiple of a block's height.
masks      for GPUs, on the emulator: warp instructions of products over all rows, with masks and with whole tiles apart.
kernels    for GPUs: registers and spills of what serves all sequences in one launch, beside the same for one of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.bench import command
from tools.bench.ragged import attention, encoder, grouped, kernels, masks, overheads, padding, products, tuned
from tools.bench.ragged.case import Case, first_lengths
from tools.bench.turns import rounds_of

PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Case]]] = {
    "encoder": encoder.cases, "attention": attention.cases, "grouped": grouped.cases, "products": products.cases}

ALONE: dict[str, Callable[[argparse.Namespace], int]] = {
    "overheads": overheads.main, "padding": padding.main, "tuned": tuned.main,
    "masks": masks.main}


def main(argv: Sequence[str]) -> int:
    """Run a part and print a line for each of its cases."""
    parser = command.parser("ragged", __doc__)
    parser.add_argument("part", nargs="?", default="encoder", choices=(*PARTS, *ALONE, "kernels"))
    parser.add_argument("--sets", default=",".join(first_lengths()), help="data sets (default all)")
    parser.add_argument("--batch", type=int, default=32, help="sequences, at most 128")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a search of `tuned`")
    parser.add_argument("--arch", default="sm_90a", help="of kernels")
    parser.add_argument("--without", default="flex,njt", help="peers to leave out (default: the compiled ones)")
    parser.add_argument("--json", type=Path, default=None, help="append a record for each case")
    given = parser.parse_args(argv)
    if given.part == "kernels":
        return kernels.main(given)
    import torch

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    ratios: dict[str, list[float]] = {}
    if given.part in ALONE:
        return ALONE[given.part](given)
    with torch.inference_mode():
        for case in PARTS[given.part](given):
            turns = rounds_of({n: c for n, c in case.calls.items() if n not in given.without.split(",")}, given.rounds)
            found = {peer: ratio * case.factors.get(peer, 1.0) for peer, ratio in turns.ratios("ours").items()}
            for peer, ratio in found.items():
                ratios.setdefault(peer, []).append(ratio)
            shown = "  ".join(f"{peer} {ratio:.3f}x" for peer, ratio in found.items())
            print(f"{case.name:14} {turns.seconds['ours'] * 1e3:9.3f} ms  {shown}  error {case.error:.1e}", flush=True)
            if given.json is not None:
                record = {"part": given.part, "case": case.name, "threads": given.threads, "seconds": turns.seconds,
                          "ratios": found, "error": case.error}
                with given.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    for peer, each in ratios.items():
        print(f"{peer}: geomean {statistics.geometric_mean(each):.3f}x, worst {min(each):.3f}x")
    return 0
