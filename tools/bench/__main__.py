"""Benchmarks of Tilewright: one entry for all of them.

    python -m tools.bench operators --threads 1,2 --filter 'dense_*' --json out.jsonl
    python -m tools.bench COMMAND --help
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tilewright.runtime.errors import TilewrightError

# name -> (module:function of the arguments, what it does); a module is imported when its command is run.
COMMANDS: dict[str, tuple[str, str]] = {
    "operators": ("tools.bench.harness.compare:run_operators", "operators against NumPy, oneDNN, ONNX Runtime and torch"),
    "models": ("tools.bench.harness.compare:run_models", "a BERT layer and a residual block against the same"),
    "groups": ("tools.bench.zoo.make_groups", "the operator groups of exported models as a table for the suite `zoo`"),
    "control": ("tools.bench.harness.compare:run_control", "loops, recurrences, decoding and a branch against the same"),
    "calls": ("tools.bench.harness.compare:run_calls", "what a call costs beside its kernels, thread scaling, memory"),
    "compile": ("tools.bench.compile_time", "processor time of cold compiles of whole models, workers too, and peak memory"),
    "generic": ("tools.bench.generic_speed", "how fast the family `generic` runs what falls to it"),
    "codes": ("tools.bench.codes", "products with weights in few bits against f32, ONNX Runtime, torch and llama.cpp"),
    "codes-bound": ("tools.bench.codes_bound", "the same from the caches, beside the least time of the instructions executed"),
    "codes-choice": ("tools.bench.codes_choice", "what is chosen of products with weights in few bits, beside every algorithm"),
    "llama": ("tools.bench.llama.steps", "a step of decoding with weights of 4 bits, against f32 and ONNX Runtime"),
    "codes-tables": ("tools.bench.activation_tables", "one row by few bits through tables of activations, against the choice"),
    "pooled-layers": ("tools.bench.pooled_layers", "convolutions out of pools by bits of their images, against int8 ones"),
    "partition": ("tools.bench.partition.compare_partition", "what training-like graphs are cut into: launches, bytes, time"),
    "columns": ("tools.bench.partition.columns", "sums down the columns, beside the speed at which the same bytes can be read"),
    "optimizers": ("tools.bench.partition.optimizers", "AdamW and LAMB over the parameters of BERT-base, against torch"),
    "gpu-partition": ("tools.bench.partition.gpu_partition", "both of these on a GPU, against torch and Inductor"),
    "cuts": ("tools.bench.partition.cuts", "predicted times of partitions against measured ones, over random cuts"),
    "random": ("tools.bench.random_cases", "random programs against the float64 reference"),
    "structured": ("tools.bench.structured", "random programs that branch and loop, and random scans, against the reference"),
    "thresholds": ("tools.bench.thresholds.command", "the thresholds of the heuristics measured again"),
    "ragged": ("tools.bench.ragged.command", "batches of different lengths: an encoder layer, attention, grouped products"),
    "graphs": ("tools.bench.graphs", "what it costs the CPU to update the nodes of a CUDA graph"),
    "grouped": ("tools.bench.grouped", "products of groups of rows (mixtures of experts) against torch's and a loop of products"),
    "triangles": ("tools.bench.triangles", "products with a triangular factor against trmm and the full product"),
    "search": ("tools.bench.search.steps", "a search against the best of its space"),
    "per-shape": ("tools.bench.search.per_shape", "a search for all shapes against one for each"),
    "prior": ("tools.bench.search.train_prior", "trains and judges the cost models that ship with the package"),
    "prior-logs": ("tools.bench.search.prior_logs", "searches of small operators of each family, to train priors from"),
    "tables": ("tools.bench.policies.make_tables", "measures the tables that tuning policies are replayed on"),
    "policies": ("tools.bench.policies.replayed", "tuning policies on replayed tables"),
    "farm": ("tools.bench.farm.simulate", "farms of up to 256 builders and 32 runners on a simulated clock"),
    "farm-surfaces": ("tools.bench.farm.surfaces", "what a farm's decisions find over known surfaces, beside a plain search"),
    "cluster": ("tools.bench.farm.cluster", "a search on a local Ray cluster against one in a process"),
    "store": ("tools.bench.farm.store", "a record store of a million records: compaction and look-ups"),
    "refined": ("tools.bench.farm.refined", "a model refined from its traffic under load: speed, tail latency, swaps"),
    "trusted": ("tools.bench.search.trusted", "tuned models against untuned ones, certificates against what is measured again"),
    "tune": ("tools.bench.policies.tuned", "tuning policies on this machine"),
    "gpu": ("tools.bench.gpu.compare_gpu", "a GPU target against torch, torch.compile and Triton"),
    "gpu-codes": ("tools.bench.gpu.compare_gpu_codes", "products with weights in few bits on a GPU, against torch and Triton"),
    "gpu-ragged": ("tools.bench.gpu.gpu_ragged", "batches of different lengths on a GPU against torch padded, packed and nested"),
    "gpu-graphs": ("tools.bench.gpu.gpu_graphs", "CUDA graphs on a GPU: bytes, updates, launches, loops, and the driver's rules"),
    "gpu-codes-forms": ("tools.bench.gpu.codes_forms", "configurations of gpu_codes on a GPU against those that run untuned"),
    "gpu-kernels": ("tools.bench.gpu.kernels", "registers, spills and main loops of the GPU families"),
    "gpu-predicates": ("tools.bench.gpu.predicates", "what it costs kernels of the GPU families to go by a byte"),
    "gpu-table": ("tools.bench.gpu.gpu_table", "predicted share of peak of the default GPU kernels, from their SASS"),
    "gpu-records": ("tools.bench.gpu.kernel_records", "times of kernels in results/ as a log that `logs train` reads"),
    "gpu-ranking": ("tools.bench.gpu.ranking", "how well arithmetic ranks GPU kernels that nobody measured"),
    "report": ("tools.bench.harness.report", "a Markdown summary of results files"),
}  # fmt: skip


def usage() -> str:
    width = max(map(len, COMMANDS))
    return f"{__doc__}\ncommands:\n" + "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())


def main(argv: Sequence[str]) -> int:
    """Run the named command; its exit code, 1 for an error that it names, 2 for a command that there is not."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    name, *rest = argv
    if name not in COMMANDS:
        print(f"error: no command {name!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name][0].partition(":")
    try:
        code: int = getattr(importlib.import_module(module), function or "main")(rest)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
