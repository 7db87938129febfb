"""The thresholds of the untuned choices, measured again: each at a quarter to four times its value.

    python -m tools.bench thresholds --list
    python -m tools.bench thresholds host_matmul.FIELD host_rows --threads 1 --json found.jsonl
    python -m tools.bench thresholds gpu_rows --target emulator:sm_90a

Without a name, all thresholds of the target's families. For each its operator (`--list` names it) is compiled once, the family's
untuned choices are looked up at the operator's shapes for every value, and where they differ the kernels are timed in turns. The
figures are times over those of today's value. Needs a quiet machine; the emulator's clock is a model and no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from tilewright.compiler.builder.codegen import limits as limits_of
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.source import ModelIR
from tilewright.passes.spaces import family_registry
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.calibration.choices import Heuristics, Threshold, choices, thresholds_of
from tilewright.search.space.shapes import Dims
from tools.bench import command
from tools.bench.gpu import cases as gpu_cases
from tools.bench.harness.worker import catalog
from tools.bench.ours import graph
from tools.bench.thresholds.rederive import Built, EmulatedTimer, HostTimer, Timer, rederive


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("thresholds", __doc__)
    parser.add_argument("names", nargs="*", metavar="FAMILY[.NAME]", help="families or single thresholds")
    parser.add_argument("--list", action="store_true", help="name, value, unit, operator and results of each")
    parser.add_argument("--target", default="host", help="host, host:x86-64-v3 or emulator:<arch>")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.1, help="measuring time of a kernel at a shape")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    target = Target.parse(args.target)
    if target.kind is TargetKind.CUDA:
        raise OptionError("thresholds: no kernel is timed on a GPU here; wanted --target host or emulator:<arch>")
    wanted = selected(args.names, family_registry.family_names(target.kind is TargetKind.EMULATOR))
    if args.list:
        for t in wanted:
            print(f"{t.family}.{t.name} = {t.value} {t.origin.unit}; {t.origin.operator}; {t.origin.results}")
        return 0
    stations: dict[Target, Station] = {}
    for threshold in wanted:
        operator = operator_of(threshold)
        own = Target(target.kind, operator.level) if operator.level and target.kind is TargetKind.HOST else target
        if own not in stations:
            stations[own] = Station(own, args.threads, args.seconds)
        station = stations[own]
        workload, shapes = subject(threshold, operator, own, args.threads)
        module = heuristics(threshold.family)
        assert module is not None
        chosen = choices(module, threshold, workload, station.limits, shapes, station.kernels)
        found = rederive(threshold, chosen, workload, shapes, args.threads, station.timer)
        print(found, flush=True)
        if args.json:
            with args.json.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")
    return 0


class Station:
    """Builds and times kernels of one target."""

    def __init__(self, target: Target, threads: int, seconds: float) -> None:
        self.limits = limits_of(target, threads)
        self._built = Built(LocalBuilder(target))
        self.timer: Timer = HostTimer(self._built, threads, seconds)
        if isinstance(self.limits, GpuLimits):
            self.timer = EmulatedTimer(self._built, self.limits)

    def kernels(self, workload: Workload, configs: Sequence[TileConfig]) -> list[MicroKernel]:
        """Of configurations, each built once. BuildError for one that cannot be."""
        texts, found = [family_registry.config_text(c) for c in configs], []
        for text, result in zip(texts, self._built(workload, texts), strict=True):
            if result.kernel is None:
                raise BuildError(f"{text} of {workload.name} cannot be built: {result.error}", workload.ir)
            found.append(result.kernel)
        return found


def heuristics(family: str) -> Heuristics | None:
    """The module of a family; None where there is none, or none with thresholds."""
    try:
        found = family_registry.heuristics_of(family)
    except ModuleNotFoundError:
        return None
    return cast(Heuristics, found) if hasattr(found, "Thresholds") else None


def selected(names: Sequence[str], families: Iterable[str]) -> list[Threshold]:
    """The thresholds of a command line; OptionError for a name that is none."""
    modules = {family: heuristics(family) for family in families}
    known = [t for family, module in modules.items() if module is not None for t in thresholds_of(family, module)]
    found: list[Threshold] = []
    for name in names or [""]:
        here = [t for t in known if name in ("", t.family, f"{t.family}.{t.name}")]
        if name and not here:
            listed = ", ".join(f"{t.family}.{t.name}" for t in known)
            raise OptionError(f"no threshold {name!r}; the thresholds are {listed or 'none'}")
        found += [t for t in here if t not in found]
    return found


@dataclass(frozen=True)
class Measured:
    """An operator as a threshold names it. level: of x86-64, "" for any; points: its shapes; constants: by argument."""

    name: str
    model: ModelIR
    ranges: Mapping[str, tuple[int, int]]
    points: Sequence[Mapping[str, int]]
    level: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)


def operator_of(threshold: Threshold) -> Measured:
    """What a threshold is measured at: an operator of the host's suite, or a case of the GPU's."""
    name = threshold.origin.operator
    if (known := catalog().get(name)) is not None and "mlir" not in known.params:
        numbers = {n: f"arg{i}" for i, n in enumerate(known.inputs)}
        constants = {numbers[n]: a for n, a in known.constants().items()}
        return Measured(name, graph(known), known.ranges, known.more_points or known.points, known.level, constants)
    cases = [c for c in gpu_cases.cases() if c.name == name and not c.model]
    if cases:
        narrow = cases[-1]
        return Measured(name, gpu_cases.graph(narrow), {"T": (1, narrow.largest)}, [{"T": at} for at in narrow.points])
    raise OptionError(f"{threshold.family}.{threshold.name}: {name!r} is no operator of `python -m tools.bench operators` or "
                      "`gpu` that is measured alone")


def subject(threshold: Threshold, operator: Measured, target: Target, threads: int = 1) -> tuple[Workload, list[Dims]]:
    """The largest workload of the operator that the threshold's family takes, and the operator's shapes as its dims."""
    model = outline(Compilation(operator.model, operator.ranges, target, constants=operator.constants))
    fitting = [w for w in model.workloads if threshold.family in family_registry.families_of(w, limits_of(target, threads))]
    if not fitting:
        raise OptionError(f"{threshold.family}.{threshold.name}: {operator.name} has no workload of the family")
    workload = max(fitting, key=lambda w: w.flops.evaluate(_dims(model.uses[w.key][0], operator.points[-1])))
    found = [tuple(_dims(model.uses[workload.key][0], point).items()) for point in operator.points]
    return workload, list(dict.fromkeys(found))


def _dims(use: Mapping[str, Expr], point: Mapping[str, int]) -> dict[str, int]:
    return {name: extent.evaluate(point) for name, extent in use.items()}
