"""Runs mutants of our kernels on the emulator: which are noticed, by a check or by their results."""

from __future__ import annotations

import itertools
import random as randomness
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from emulator.async_mutation import mutations as async_mutations
from emulator.mutation import Mutation, mutations, one_per_line
from emulator.survivors import why_equivalent
from gpu_harness import Placed, build, place, random, symbols
from gpu_workloads import Case

from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.runtime.emulator import EmulatorDevice, EmulatorError, KernelCheck
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.kernel import MicroKernel

Memory = list[tuple[np.ndarray, np.ndarray]]  # bytes of each result, and which of them were written
SEEDS = (0, 1)
_DISORDERED = 3  # shapes that run in adversarial orders too
PATIENCE = 8  # times the kernel's own instructions


class MutantOutcome(Enum):
    """What became of a mutant. `UNCHANGED`: proved by ptxas, which makes the same code. `INERT`: no value that it computes
    differs, so it breaks no rule and changes no result. `UNREACHED`: nothing runs the line. `EXPLAINED`: see survivors.py."""

    CHECK = "a check fired"
    RESULT = "a result differs"
    REFUSED = "not PTX"
    UNCHANGED = "the same machine code"
    INERT = "no value differs"
    UNREACHED = "never runs"
    EXPLAINED = "no mistake"
    SURVIVED = "survived"


KILLED = (MutantOutcome.CHECK, MutantOutcome.RESULT)


@dataclass(frozen=True)
class Verdict:
    """`detail`: the finding, or what differs."""

    mutation: Mutation
    outcome: MutantOutcome
    detail: str = ""


@dataclass
class Trial:
    """One shape: operands, and what the kernel writes."""

    dims: Mapping[str, int]
    inputs: list[Placed]
    outputs: list[Placed]
    wanted: Memory = field(default_factory=list)
    budget: int = 50_000_000


class Subject:
    """A kernel with its shapes, at each of which its values are multiplied by each of `scales`: where they are wide, exponentials
    overflow unless the true maximum is subtracted. `pads` are as for gpu_harness; the gaps that they make are never written.
    multiprocessors: of the device, where blocks that take work in turn are to be fewer."""

    def __init__(self, case: Case, config: str, names: str, sizes: Sequence[Sequence[int]],
                 pads: Mapping[int, tuple[int, ...]] | None = None, scales: Sequence[float] = (1.0,),
                 arch: str = "sm_80", multiprocessors: int | None = None) -> None:
        self.name, self.arch, self.multiprocessors = config, arch, multiprocessors
        built = build(case.text, config, arch)
        self.kernel, self.ptx = built.kernel, one_per_line(built.code.decode())
        self.trials = []
        for size, scale in itertools.product(sizes, scales):
            self.trials.append(self._trial(case, dict(zip(names, size, strict=True)), pads or {}, scale))
        for trial in self.trials:
            trial.wanted, steps = self.run(trial, self.kernel, self.ptx, None)
            trial.budget = PATIENCE * steps
            assert all(valid.any() for _, valid in trial.wanted), "the kernel writes nothing"

    def _trial(self, case: Case, dims: Mapping[str, int], pads: Mapping[int, tuple[int, ...]], scale: float) -> Trial:
        arrays = [random(t, dims, i) for i, t in enumerate(case.inputs)]
        arrays = [a * np.asarray(scale, a.dtype) if a.dtype.kind == "f" else a % 3 for a in arrays]
        placed = [Placed(a, 0, pads.get(i, ())) for i, a in enumerate([*arrays, *(random(t, dims) for t in case.results)])]
        trial = Trial(dims, placed[: len(arrays)], placed[len(arrays) :])
        built = build(case.text, self.name, self.arch)
        assert built.kernel.legal(symbols(built, dims, placed)), f"{self.name} is not legal at {dims}"
        return trial

    def run(self, trial: Trial, kernel: MicroKernel, ptx: str, seed: int | None, cut: int = 0) -> tuple[Memory, int]:
        """What is written, and the instructions of the longest batch; EmulatorError where a check fires."""
        device = EmulatorDevice(self.arch, seed=seed, budget=trial.budget, multiprocessors=self.multiprocessors)
        setup = place(device, kernel, trial.dims, trial.inputs, trial.outputs)
        for p, address, strides in zip(trial.inputs, setup.pointers, setup.strides, strict=False):
            _forget_gaps(device, p, address, strides)
        module = device.load(ptx)
        for step in kernel.launches():
            shared, threads, blocks = max(0, step.shared_bytes - cut), (step.threads, 1, 1), step.blocks(trial.dims)
            if 0 not in blocks:
                device.launch(module.kernel(step.symbol), blocks, threads, shared, setup.args, step.cluster)
        first = len(trial.inputs)
        read = [device.memory.read(setup.pointers[first + i], setup.buffers[first + i].nbytes) for i in range(len(trial.outputs))]
        return [(data, valid) for data, valid in read], max(s.steps for s in device.launches)

    def mutations(self) -> list[Mutation]:
        return [*mutations(self.ptx, self.kernel.shared_bytes), *async_mutations(self.ptx)]

    def judge(self, mutation: Mutation) -> Verdict:
        """Run a mutant at every shape in program order, those of few instructions first, then in adversarial orders, until
        something notices it."""
        ptx = mutation.apply(self.ptx)
        plain: list[tuple[Trial, int | None]] = [(trial, None) for trial in sorted(self.trials, key=lambda trial: trial.budget)]
        for trial, seed in plain + list(itertools.product(self.trials[:_DISORDERED], SEEDS)):
            try:
                got, _ = self.run(trial, self.kernel, ptx, seed, mutation.cut)
            except EmulatorError as error:
                outcome = MutantOutcome.REFUSED if error.finding is None else MutantOutcome.CHECK
                return Verdict(mutation, outcome, str(error).splitlines()[0])
            changed = self._changed(trial, got)
            if changed:
                return Verdict(mutation, MutantOutcome.RESULT, f"{changed} at {dict(trial.dims)}")
        return self._survivor(mutation)

    def _changed(self, trial: Trial, got: Memory) -> str:
        for number, ((data, valid), (wanted, written), placed) in enumerate(zip(got, trial.wanted, trial.outputs, strict=True)):
            if not np.array_equal(valid, written):
                return f"{int((valid != written).sum())} bytes of result {number} are written or missed"
            dtype = placed.array.dtype
            x, y = (np.where(written, d, 0).astype(np.uint8).view(dtype).astype(np.float64) for d in (data, wanted))
            scale = float(np.abs(y[np.isfinite(y)]).max(initial=1))
            same = np.isclose(x, y, rtol=1e-5, atol=1e-6 * scale) | (np.isnan(x) & np.isnan(y))
            if not same.all():
                return f"{int((~same).sum())} elements of result {number} differ"
        return ""

    def _survivor(self, mutation: Mutation) -> Verdict:
        """Why nothing noticed a mutant, as far as that can be shown."""
        if mutation.line:
            trap = Mutation("", mutation.line, mutation.before, f"trap;\n{mutation.before}").apply(self.ptx)
            reached = [t for t in self.trials if self._traps(t, trap)]
            if not reached:
                return Verdict(mutation, MutantOutcome.UNREACHED)
            if _same_code(self.ptx, mutation.apply(self.ptx), self.arch):
                return Verdict(mutation, MutantOutcome.UNCHANGED)
            traced = mutation.traced(self.ptx)
            thrown_away = mutation.operator == "widen-access" and ", _" in mutation.after
            if thrown_away or (traced is not None and not any(self._traps(t, traced) for t in self.trials)):
                return Verdict(mutation, MutantOutcome.INERT)
            if all(0 in t.dims.values() for t in reached):
                why = "runs only where an extent is 0, and nothing is computed from it"
                return Verdict(mutation, MutantOutcome.EXPLAINED, why)
        reason = why_equivalent(self.name, mutation, self.ptx)
        return Verdict(mutation, MutantOutcome.EXPLAINED if reason else MutantOutcome.SURVIVED, reason)

    def _traps(self, trial: Trial, ptx: str) -> bool:
        try:
            self.run(trial, self.kernel, ptx, None)
        except EmulatorError as error:
            if error.finding is None:
                raise
            return error.finding.check is KernelCheck.TRAP
        return False


def _forget_gaps(device: EmulatorDevice, p: Placed, address: int, strides: Sequence[int]) -> None:
    """Bytes of a buffer that its view does not show count as never written."""
    memory, _ = p.buffer(0.0)
    shown = np.zeros(memory.nbytes, np.uint8).view(memory.dtype)
    p.view(shown, strides)[...] = np.frombuffer(b"\1" * memory.itemsize, memory.dtype)[0]
    offsets, _ = device.memory.locate(np.array([address]), memory.nbytes)
    device.memory.valid[int(offsets[0]) : int(offsets[0]) + memory.nbytes] = shown.view(np.uint8)


def _same_code(ptx: str, mutant: str, arch: str) -> bool:
    """Does ptxas make one machine code of both? False where it is not installed."""
    if find_tool("ptxas") is None:
        return False
    try:
        return assemble_ptx(ptx, arch).cubin == assemble_ptx(mutant, arch).cubin
    except BuildError:
        return False


def draw(found: Mapping[str, Subject], count: int, seed: int, operator: str = "") -> list[tuple[str, Mutation]]:
    """Distinct mutants, evenly over the operators whose names contain `operator`, then over kernels."""
    rng = randomness.Random(seed)
    sites: dict[str, dict[str, list[Mutation]]] = {}
    for name, subject in found.items():
        for mutation in (m for m in subject.mutations() if operator in m.operator):
            sites.setdefault(mutation.operator, {}).setdefault(name, []).append(mutation)
    for kernels in sites.values():
        for listed in kernels.values():
            rng.shuffle(listed)
    drawn: list[tuple[str, Mutation]] = []
    while len(drawn) < count and sites:
        for chosen in list(sites):
            kernels = sites[chosen]
            name = rng.choice(sorted(kernels))
            drawn.append((name, kernels[name].pop()))
            if not kernels[name]:
                del kernels[name]
            if not kernels:
                del sites[chosen]
    return drawn[:count]
