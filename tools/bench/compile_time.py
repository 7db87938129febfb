"""What a cold compile of whole models costs: seconds of processor time, in this process and in the workers, and peak memory.

    python -m tools.bench compile --only 'bert_*' --json out.jsonl

Each model is compiled in a process of its own with an empty cache, from what torch.export makes of its nn.Module; that is told
apart. Import of the libraries and making the model are not counted; that of the compiler's modules is, as byte code.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools.bench import command
from tools.bench.harness.interleave import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")


class CompileTime(msgspec.Struct, frozen=True, tag="compile", tag_field="record"):
    """Seconds of processor time: of torch.export, of the compile in the process and in its workers; wall: of the compile by the
    clock; peak: MB of the process."""

    model: str
    export: float
    process: float
    workers: float
    wall: float
    peak: float

    def __str__(self) -> str:
        return (f"{self.model:12} export {self.export:5.2f} s; {self.process:6.2f} s and {self.workers:6.2f} s of workers, "
                f"{self.process + self.workers:6.2f} in all; {self.wall:.1f} s by the clock, {self.peak:.0f} MB")


def bert(layers: int) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """BERT-base with so many layers, any batch to 8 and length to 128."""
    import torch
    from torch.export import Dim
    from transformers import BertConfig, BertModel

    shapes = {"input_ids": {0: Dim("B", min=1, max=8), 1: Dim("S", min=1, max=128)}}
    model: Any = BertModel(BertConfig(num_hidden_layers=layers))
    return model.eval(), {"input_ids": torch.zeros(3, 17, dtype=torch.int64)}, shapes


def resnet50() -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """ResNet-50 at 224 x 224, any batch to 8."""
    import torch
    from torch.export import Dim
    from transformers import ResNetConfig, ResNetForImageClassification

    shapes = {"pixel_values": {0: Dim("B", min=1, max=8)}}
    model: Any = ResNetForImageClassification(ResNetConfig())
    return model.eval(), {"pixel_values": torch.zeros(3, 3, 224, 224)}, shapes


def chain() -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """512 products of 64 x 64, each of the one before."""
    import torch
    from torch.export import Dim

    class Chain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.randn(64, 64) * 0.1 for _ in range(512)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in self.weights:
                x = x @ w
            return x

    return Chain().eval(), {"x": torch.zeros(5, 64)}, {"x": {0: Dim("T", min=1, max=128)}}


MODELS: Mapping[str, Callable[[], tuple[Any, Mapping[str, Any], Mapping[str, Any]]]] = {
    "bert_12": lambda: bert(12), "bert_24": lambda: bert(24), "matmuls_512": chain, "resnet50": resnet50,
}  # fmt: skip


def measured(name: str) -> CompileTime:
    """One model, in this process, whose cache is empty."""
    import torch

    import tilewright as tw

    torch.manual_seed(0)
    model, inputs, shapes = MODELS[name]()
    before = _own()
    with torch.no_grad():
        program = torch.export.export(model, (), dict(inputs), dynamic_shapes=shapes, strict=False)
    exported, begin = _own(), time.perf_counter()
    tw.compile(program)
    spent, wall = _own() - exported, time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return CompileTime(name, exported - before, spent, _children(), wall, peak)


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _children() -> float:
    """Of the processes that this one started and that live: workers rest for some seconds. And of those that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def _environment(cache: str) -> Mapping[str, str]:
    """An empty cache, and byte code that is kept, as an installed package has it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "TILEWRIGHT_CACHE_DIR": cache}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("compile", __doc__)
    parser.add_argument("--only", default="*", help="pattern of model names: " + ", ".join(MODELS))
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    parser.add_argument("--here", metavar="MODEL", choices=MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.here:
        sys.stdout.write(msgspec.json.encode(measured(args.here)).decode() + "\n")
        return 0
    for name in (n for n in MODELS if fnmatch.fnmatchcase(n, args.only)):
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([sys.executable, "-m", "tools.bench", "compile", "--here", name], cwd=ROOT, check=True,
                                  env=_environment(empty), stdout=subprocess.PIPE)
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=CompileTime)
        print(found, flush=True)
        if args.json:
            with args.json.open("ab") as out:
                out.write(msgspec.json.encode(found) + b"\n")
    return 0
