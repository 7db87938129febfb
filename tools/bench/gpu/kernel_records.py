"""Times of a GPU's kernels as results/ keeps them, made a log again: `tilewright logs train` makes priors of it.

    python -m tools.bench gpu-records tools/bench/results/h200-kernels*.jsonl --log h200.log.jsonl

A line of a file says what a case's kernel took at a value of T, in us. The line in front of them names the device and the
architecture of its code; cases that gpu/cases.py does not have are described by lines of their own. Of a kernel that was timed
more than once at a value the last time counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.space.kernel_facts import KernelFacts
from tools.bench import command
from tools.bench.gpu.cases import Case, Shapes, cases, source_of


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="record", forbid_unknown_fields=True):
    """What all lines of a file have in common."""

    commit: str
    device: str
    says: str
    arch: str = "sm_90a"

    @property
    def name(self) -> str:
        """Of the device, as logs have it."""
        model = self.device.partition(",")[0]
        return f"cuda:{self.arch} {model}, {GpuLimits.of(self.arch).multiprocessors} multiprocessors"


class CaseLine(msgspec.Struct, frozen=True, tag="case", tag_field="record", forbid_unknown_fields=True):
    """A case that gpu/cases.py does not have."""

    case: str
    kind: str
    precision: str
    inputs: Shapes
    largest: int
    step: int = 1

    def made(self) -> Case:
        return Case(self.case, self.kind, self.precision, self.inputs, (self.largest,), self.largest, step=self.step)


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """registers, spills, shared: of a thread, in bytes of a thread and of a block, where they are known."""

    case: str
    config: str
    T: int
    us: float
    registers: int = 0
    spills: int = 0
    shared: int = 0


def records_of(path: Path) -> Iterator[tuple[Workload, TuningRecord]]:
    """Of a file. OptionError for one that begins with no line of a run, and for a case that there is not."""
    run: Run | None = None
    known = {f"{c.name}_{c.precision}": c for c in cases()}
    operators: dict[str, tuple[Workload, Expr]] = {}
    for line in path.read_bytes().splitlines():
        if b'"record"' in line:
            head = msgspec.json.decode(line, type=Run | CaseLine)
            if isinstance(head, Run):
                run = head
            else:
                known[head.case] = head.made()
            continue
        at = msgspec.json.decode(line, type=Time)
        if run is None:
            raise OptionError(f"{path}: wanted a line of the run in front of its times")
        if at.case not in known:
            raise OptionError(f"{path}: case {at.case!r}: neither described there nor one of tools/bench/gpu/cases.py")
        if at.case not in operators:
            operators[at.case] = operator_of(known[at.case], f"cuda:{run.arch}")
        workload, extent = operators[at.case]
        built = KernelFacts(at.registers, at.spills, at.shared) if at.registers else None
        yield workload, TuningRecord(workload.key, workload.name, at.config.partition("{")[0], at.config,
                                     {workload.dims[0]: extent.evaluate({"T": at.T})}, 1, (at.us * 1e-6,), cache="cold",
                                     device=run.name, built=built)


def operator_of(case: Case, target: str) -> tuple[Workload, Expr]:
    """The one operator that a case is, and its dim over T."""
    source, dims, options = source_of(case)
    model = outline(Compilation(source, dims, full_target(target), CompileOptions.of(options)))
    (workload,) = model.workloads
    (uses,) = model.uses[workload.key]
    return workload, uses[workload.dims[0]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("gpu-records", __doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args(argv)
    log = TuningLog(args.log, writes=True)
    last: dict[tuple[str, str, str, tuple[tuple[str, int], ...]], TuningRecord] = {}
    for path in args.files:
        for workload, record in records_of(path):
            if workload.key not in log.workloads:
                log.describe(workload)
            last[record.device, record.workload, record.config, record.shape] = record
    for record in last.values():
        log.add(record)
    print(f"{args.log}: {len(last)} times of {len(log.workloads)} operators")
    return 0
