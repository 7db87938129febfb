"""Forms of `gpu_codes` against each other: what runs untuned, and configurations that differ from it in an option or two.

    python -m tools.bench gpu-codes-forms --build forms/          # anywhere: builds archives of kernels, needs no GPU
    python -m tools.bench gpu-codes-forms --artifacts forms/ --json out.jsonl --budget 25

Kernels are verified and timed as `tilewright measure` does it: under graphs, over operands that exceed the L2 cache.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.gpu.gpu_codes import GpuCodesConfig, why_invalid
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.target import Target
from tilewright.search.archive.archive_tuning import cases_of
from tilewright.search.archive.kernel_archive import KernelArchive
from tilewright.search.protocols import Runner
from tilewright.search.space.task import Task
from tools.bench import command
from tools.bench.gpu.codes_cases import CodesCase, graph
from tools.gpu_kit.forms import difference

CASES = (CodesCase(4096, 14336, 4), CodesCase(4096, 4096, 4))
ROWS = (16, 8, 1)
_FOUR = {"min_blocks_per_sm": 4}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"unroll": 1, "ahead": True, **_FOUR}, {"unroll": 2, "ahead": False, **_FOUR}, {"unroll": 1, "ahead": False, **_FOUR},
    {"bn": 64, "unroll": 1, "ahead": False, "min_blocks_per_sm": 3},
    {"bn": 64, "bytes": 8, "unroll": 1, "ahead": True, "min_blocks_per_sm": 3}, {"bytes": 8, "unroll": 2, "ahead": False},
    {"cluster_k": 2, **_FOUR}, {"cluster_k": 4}, {"cluster_k": 1},
)  # fmt: skip


def forms(task: Task, most: int) -> Sequence[TileConfig]:
    """What runs untuned at each of ROWS, and what differs from it as CHANGES say, the most telling first."""
    assert isinstance(task.limits, GpuLimits)
    configs, root = default_of(GpuCodesConfig.family, task.workload, task.limits, task.ordered)
    (dim,) = task.workload.dims
    defaults = list(dict.fromkeys(configs[select(root, {dim: rows}).kernel] for rows in ROWS))
    changed = [replace(d, **change) for change in CHANGES for d in defaults]
    found = dict.fromkeys([*defaults, *changed])
    legal = [c for c in found if isinstance(c, GpuCodesConfig) and why_invalid(c, task.workload, task.limits) is None]
    return legal[:most]


def build(case: CodesCase, folder: Path, target: str, most: int) -> Path:
    """An archive of the forms of a case. Needs the compiler, not a GPU."""
    import tilewright as tw
    from tilewright.compiler.compilation.compilation import Compilation, full_target
    from tilewright.compiler.compilation.options import CompileOptions
    from tilewright.compiler.tuning.archive_kernels import archive_kernels

    path = folder / f"{case.name}.tw"
    given = Compilation(graph(case), {"M": tw.Dim(1, max(ROWS))}, full_target(target), CompileOptions.of({}))
    archive_kernels(given, path, most, choose=forms)
    return path


def compare(archive: KernelArchive, case: CodesCase, runner: Runner, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Records of every kernel at the numbers of rows that its height is for. ratio: its time over that of the first such kernel,
    which runs untuned."""
    (operator,) = archive
    (dim,) = operator.workload.workload().dims
    for rows in ROWS:
        untuned: tuple[str, float] | None = None
        for kernel in operator.kernels:
            config = parse_config(kernel.config)
            if not isinstance(config, GpuCodesConfig) or not _is_for(config, rows):
                continue
            made: dict[str, Any] = {"record": "form", "name": case.name, "M": rows, "config": kernel.config}
            if left() < 1:
                yield {**made, "record": "left"}
                continue
            found = runner.run(operator.workload.workload(), kernel, archive.code(kernel), {dim: rows}, 1, left())
            if not found.seconds:
                yield {**made, "error": found.error}
                continue
            us = statistics.median(found.seconds) * 1e6
            untuned = untuned or (kernel.config, us)
            base = parse_config(untuned[0])
            changed = {f: [getattr(base, f), getattr(config, f)] for f in difference(base, config)}
            yield {**made, "us": round(us, 3), "gb_s": round(case.weight_bytes / us * 1e-3, 1), "changed": changed,
                   "ratio": round(us / untuned[1], 4)}


def _is_for(config: GpuCodesConfig, rows: int) -> bool:
    return config.rows >= rows and (config.rows <= 8 or rows > 8)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu-codes-forms", __doc__)
    parser.add_argument("--build", type=Path, help="build the archives into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", help="to build for, default cuda:sm_90a; to run on, default that of the archive")
    parser.add_argument("--kernels", type=int, default=40, help="of an archive")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no kernel is begun")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def run(args: argparse.Namespace) -> None:
    """Records are written as they come."""
    from tilewright.search.runner.gpu_process import gpu_process

    start, files = time.monotonic(), [args.artifacts / f"{case.name}.tw" for case in CASES]
    for number, (case, file) in enumerate(zip(CASES, files, strict=True)):
        if not file.exists():
            continue
        archive, share = KernelArchive(file), args.budget * (number + 1) / len(CASES)
        left = functools.partial(lambda until: until - (time.monotonic() - start), share)
        with gpu_process(Target.parse(args.target or archive.manifest.target), cases_of(archive)) as runner:
            for record in compare(archive, case, runner, left):
                text = json.dumps(record)
                print(text, flush=True)
                if args.json:
                    with args.json.open("a") as to:
                        to.write(text + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.build is None:
        run(args)
        return 0
    args.build.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        print(build(case, args.build, args.target or "cuda:sm_90a", args.kernels), flush=True)
    return 0
