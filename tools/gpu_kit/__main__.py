"""The acceptance kit: what proves the GPU kernels on a machine with a GPU, in six commands of at most ten minutes each.

    python -m tools.gpu_kit build -o kit.tar.xz              # where the compiler is; needs no GPU
    sh kit.sh smoke|replay|sanitize|bench|measure|tuned      # there, in this order; results go to results/ as they come
    python -m tools.gpu_kit build --logs results -o tuned.tar.xz     # here again: unpack it over the kit, for `tuned`
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_kit.packages import prepare

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 570.0
STEPS = {"smoke": "replay_steps", "replay": "replay_steps", "sanitize": "replay_steps", "bench": "timed_steps",
         "measure": "timed_steps", "tuned": "timed_steps"}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tools.gpu_kit", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", *STEPS])
    parser.add_argument("-o", "--output", type=Path, default=Path("kit.tar.xz"), help="build: the file to write")
    parser.add_argument("--kernels", type=int, default=20, help="build: candidates of an operator in archives")
    parser.add_argument("--tests", default="", help="build: expression of the tests to replay, as for pytest -k; default: all")
    parser.add_argument("--artifacts", help="build: patterns of benchmark cases, comma-separated")
    parser.add_argument("--archives", help="build: patterns of the cases that `measure` searches")
    parser.add_argument("--forms", help="build: patterns of the cases whose forms are compared")
    parser.add_argument("--no-wheels", action="store_true", help="build: bring no Python packages")
    parser.add_argument("--work", type=Path, help="build: folder where a build that was ended goes on")
    parser.add_argument("--logs", type=Path, help="build: folder with the logs of `measure`; tuned artifacts alone are built")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--target", default="cuda", help="cuda, or emulator:sm_90a to try the way")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a command may take")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes where nothing is timed")
    parser.add_argument("--peers", default="torch,triton,cudnn", help="what the benchmark compares with, comma-separated")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """0 when nothing failed."""
    args = arguments(argv)
    if args.command == "build":
        return _build(args)
    prepare(ROOT)
    import importlib

    from tools.gpu_kit.results import Step

    step = Step(args.command, ROOT, args.results.resolve(), args.target, args.seconds, args.jobs, args.peers)
    getattr(importlib.import_module(f"tools.gpu_kit.{STEPS[args.command]}"), args.command)(step)
    step.add({"record": "end", "failed": step.failed, "left": round(step.left, 1)})
    return int(bool(step.failed))


def _build(args: argparse.Namespace) -> int:
    from tools.gpu_kit.build import LARGEST, Plan, build

    given = {n: getattr(args, n) for n in ("artifacts", "archives", "forms") if getattr(args, n) is not None}
    plan = Plan(kernels=args.kernels, tests=args.tests, logs=args.logs, wheels=not args.no_wheels, work=args.work, **given)
    return int(build(args.output, plan, lambda text: print(text, flush=True)) > LARGEST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
