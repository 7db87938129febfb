"""The host target against NumPy, torch, oneDNN and ONNX Runtime, interleaved in one run. Needs the extra `bench`.

    python -m tools.bench operators --threads 1,2 --seconds 0.1 --filter 'dense_*,!*_argument' --json out.jsonl
    python -m tools.bench operators --avx2                code for CPUs without AVX-512
    python -m tools.bench operators --suite zoo           what real models compile to, against torch and ONNX Runtime
    python -m tools.bench models --suite zoo              whole models likewise, with the memory of each system
    python -m tools.bench operators --suite layers        single layers at sizes of well-known models, likewise
    python -m tools.bench operators --neighbour hog       beside a process that streams through memory on the other core
    python -m tools.bench models --log tuning.jsonl
    python -m tools.bench operators --suite zoo --prepared FOLDER --prepare    compile and export now, measure by a later run
    python -m tools.bench control --seconds 1         loops and branches: Loop of ONNX, scan of torch.compile, Python
    python -m tools.bench calls

Every system has a process per thread count, pinned to that many cores, and stands still while it is not its turn.
All are prepared and bound first, each result is checked against float64, then they take turns in rounds; the figure of a
case is the best peer's median over ours. Each call writes into memory bound beforehand where the system can do so. Peers of the
suites `zoo` and `layers` are torch (eager, and torch.compile with dynamic shapes) and ONNX Runtime, all of them given the same
operators.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.bench import command
from tools.bench.calls import suite
from tools.bench.harness import report
from tools.bench.harness.interleave import PINS, Team, WorkerDiedError, environment
from tools.bench.harness.measure import Bench
from tools.bench.harness.neighbour import NEIGHBOURS, neighbour, snapshot_with
from tools.bench.harness.records import Case, Failure, Figure, Record, append, new_run
from tools.bench.harness.worker import catalog
from tools.bench.operator_spec import shown
from tools.bench.peers import chosen
from tools.bench.zoo import modules

PEERS, ZOO_PEERS = "numpy,onednn,ort,torch", "eager,inductor,ort:module"
ZOO = {"operators": modules.SUITE, "models": modules.MODELS_SUITE}  # command -> suite
MODULES = (*ZOO.values(), modules.LAYERS_SUITE)


def arguments(name: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of one of the commands; `suite` says what it measures."""
    parser = command.parser(name, __doc__)
    if name == "operators":
        parser.add_argument("--avx2", dest="suite", action="store_const", const="avx2", help="operators without AVX-512")
    if name in ZOO:
        parser.add_argument("--suite", choices=["zoo", "layers"] if name == "operators" else ["zoo"],
                            help="zoo: of real models; layers: single layers at sizes of known models")
    parser.add_argument("--neighbour", choices=NEIGHBOURS, default="",
                        help="hog: a process that streams through memory; cold: half the last cache is read between calls")
    parser.add_argument("--threads", default="1", help="thread counts, such as 1,2")
    parser.add_argument("--seconds", type=float, default=0.1, help="measuring time of each system at each case")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds that share this time")
    parser.add_argument("--peers", help=f"systems to compare with; default: {PEERS}, of the suite zoo {ZOO_PEERS}")
    parser.add_argument("--filter", default="*", help="operator name patterns; one with ! before it excludes")
    parser.add_argument("--points", default="", help="only these values of the dim, such as 5,24,128")
    parser.add_argument("--full", action="store_true", help="every T from 1 to 128")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    parser.add_argument("--log", help="tuning log for our side; default: the configurations of the rules")
    parser.add_argument("--prepared", type=Path, help="a folder that keeps compiled models and exports for the next run")
    parser.add_argument("--prepare", action="store_true", help="fill this folder and measure nothing")
    parser.set_defaults(suite=name)
    args = parser.parse_args(argv)
    args.suite = ZOO[name] if args.suite == "zoo" else args.suite
    args.peers = args.peers or (ZOO_PEERS if args.suite in MODULES else PEERS)
    return args


def matches(name: str, patterns: str) -> bool:
    """Whether a name fits one of the comma-separated patterns and none of those with `!`."""
    given = [p for p in patterns.split(",") if p]
    wanted = [p for p in given if not p.startswith("!")] or ["*"]
    refused = [p[1:] for p in given if p.startswith("!")]
    return any(fnmatch.fnmatchcase(name, p) for p in wanted) and not any(fnmatch.fnmatchcase(name, p) for p in refused)


def restart_clean(given: Sequence[str]) -> None:
    """Run a command again without the pins, which libraries read when they are loaded."""
    if any(name in os.environ for name in PINS):
        os.execve(sys.executable, [sys.executable, "-m", "tools.bench", *given], environment(1))


def run_operators(argv: Sequence[str]) -> int:
    return compare("operators", argv)


def run_models(argv: Sequence[str]) -> int:
    return compare("models", argv)


def run_control(argv: Sequence[str]) -> int:
    return compare("control", argv)


def run_calls(argv: Sequence[str]) -> int:
    return compare("calls", argv)


def compare(name: str, argv: Sequence[str]) -> int:
    """Measure a suite, write its records and print the table."""
    args = arguments(name, argv)
    restart_clean([name, *argv])
    systems = chosen(args.peers)
    threads = [int(t) for t in args.threads.split(",")]
    everything = tuple(catalog().values())
    subjects = [o for o in everything if o.suite == args.suite and matches(o.name, args.filter)]
    options = {s: ["--prepared", str(args.prepared.absolute())] if args.prepared else [] for s in systems}
    options[systems[0]] += ["--log", args.log] if args.log else []
    found: list[Record] = []

    def keep(record: Record) -> None:
        found.append(record)
        if args.json:
            append(args.json, record)
        print(line(record), flush=True)

    settings = {n: str(v) for n, v in vars(args).items() if v is not None}
    with Team(systems, 1, options) as team:
        run = new_run(versions(team), settings)
    keep(run)
    systems = [s for s in systems if s in run.versions]
    for count in threads:
        with (
            Team(systems, count, options, cold=args.neighbour == "cold") as team,
            tempfile.TemporaryDirectory() as folder,
            neighbour(args.neighbour) as beside,
        ):
            if args.prepare:
                prepare(team, [o.name for o in subjects])
                continue
            bench = Bench(run.run, team, args.seconds, args.rounds, Path(folder), partial(snapshot_with, beside))
            for subject in subjects:
                points = subject.more_points or subject.points if args.full else subject.points
                values = {int(v) for v in args.points.split(",") if v}
                for record in bench.operator(subject, [p for p in points if not values or values & set(p.values())]):
                    keep(record)
    if args.prepare:
        return 0
    if args.suite == ZOO["models"]:
        largest = [(o.name, o.points[-1]) for o in subjects]
        for record in suite.memory(run.run, systems, largest, threads[0], args.prepared):
            keep(record)
    if args.suite == "calls":
        names = {suite.COSTS, *(o.name for o in everything)}
        wanted = frozenset(n for n in names if matches(n, args.filter))
        for record in suite.Calls(run.run, systems, threads, args.seconds, args.rounds, wanted).measure():
            keep(record)
    if cases := report.latest(found):
        report.show(cases)
        print("\n".join(report.verdict(report.rows(cases), cases)))
    return 0


def prepare(team: Team, names: Sequence[str]) -> None:
    """Prepare subjects everywhere; failures are printed."""
    for name in names:
        seconds, failed = team.prepare(name)
        took = "  ".join(f"{s} {t:.2f} s" for s, t in seconds.items())
        print(f"{name:28} {took}", *(f"{s} FAILED: {e}" for s, e in failed.items()), flush=True)


def versions(team: Team) -> dict[str, str]:
    """What each system says it is; those that cannot start are named on standard error."""
    found = {}
    for system in team.systems:
        try:
            found[system] = str(team.ask(system, do="version")["version"])
        except WorkerDiedError as error:
            print(f"{system} is left out: {error}", file=sys.stderr)
    return found


def line(record: Record) -> str:
    """A record on one line."""
    if isinstance(record, Case):
        times = "  ".join(f"{n} {t.median_us:.2f}{' WRONG' if n in record.wrong else ''}" for n, t in record.systems.items())
        ratio = "-" if record.ratio is None else f"{record.ratio:.2f}x"
        noise = f"  (others used {record.others} cores, caches {record.near} of their best time)" if record.disturbed else ""
        return f"{record.operator:28} {shown(record.shape):6} t{record.threads}  {ratio:>6}  us: {times}{noise}"
    if isinstance(record, Failure):
        return f"{record.operator:28} {shown(record.shape):6} t{record.threads}  {record.system} FAILED: {record.error}"
    if isinstance(record, Figure):
        return f"{record.name:44} {record.value:.4g} {record.unit}  {record.detail or ''}"
    return f"{record.cpu}, {record.cores} cores, commit {record.commit}\n" + "\n".join(
        f"  {n}: {v}" for n, v in record.versions.items())  # fmt: skip
