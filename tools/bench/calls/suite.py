"""The calls suite: costs of a call, thread scaling, and memory beside the peers'."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tools.bench import models, operators
from tools.bench.harness.interleave import ROOT, Team, Worker, WorkerDiedError, environment, rounds
from tools.bench.harness.records import SCALING, Failure, Figure, Record
from tools.bench.operator_spec import Shape, shown
from tools.bench.peers import OURS

LONG = 100e-6  # seconds; what takes one thread longer is asked to gain from more
MEMORY: tuple[tuple[str, Shape], ...] = (("bert_layer", {"S": 128}), ("bert_layer", {"S": 384}), ("resnet_block", {"B": 4}))
SAVED = (OURS, "ort:module")  # systems that load a file
COSTS = "calls"  # what --filter matches for the costs of a call


@dataclass(frozen=True)
class Calls:
    """What to measure: systems for memory, thread counts, seconds per figure, and the names that are wanted."""

    run: str
    systems: Sequence[str]
    threads: Sequence[int]
    seconds: float
    rounds: int
    wanted: frozenset[str]

    def measure(self) -> Iterator[Record]:
        if COSTS in self.wanted:
            for count in self.threads:
                yield from self.costs(count)
        if max(self.threads) > 1:
            yield from self.scaling(max(self.threads))
        wanted = [(name, shape) for name, shape in MEMORY if name in self.wanted]
        yield from memory(self.run, self.systems, wanted, self.threads[0])

    def costs(self, threads: int) -> Iterator[Record]:
        """Costs of a call beside its kernels, from a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "tools.bench.calls.costs", str(threads), str(self.seconds)],
            cwd=ROOT, env=environment(threads), capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            yield msgspec.structs.replace(msgspec.json.decode(line, type=Figure), run=self.run)
        if done.returncode:
            yield Failure(self.run, COSTS, threads, OURS, (done.stderr.strip().splitlines() or ["no message"])[-1])

    def scaling(self, most: int) -> Iterator[Record]:
        """Our time on one thread over that on `most`, two processes interleaved, wherever one takes long enough."""
        subjects = [o for o in (*operators.operators(), *models.models()) if o.name in self.wanted]
        with Team([OURS], 1) as one, Team([OURS], most) as many:
            turns = {"one": lambda s: one.worker(OURS).turn(s), "many": lambda s: many.worker(OURS).turn(s)}
            for subject in subjects:
                try:
                    for team in (one, many):
                        team.ask(OURS, do="prepare", operator=subject.name)
                    for shape in subject.points:
                        one.ask(OURS, do="bind", shape=dict(shape))
                        if turns["one"](self.seconds / self.rounds) < LONG:
                            continue
                        many.ask(OURS, do="bind", shape=dict(shape))
                        found = rounds(turns, self.rounds, self.seconds)
                        yield self._scaled(subject.name, shape, most, *(statistics.median(found[n]) for n in ("one", "many")))
                except WorkerDiedError as error:
                    yield Failure(self.run, subject.name, most, OURS, str(error))

    def _scaled(self, name: str, shape: Shape, most: int, single: float, several: float) -> Figure:
        detail = {"operator": name, "shape": shown(shape), "threads": str(most),
                  "one_us": f"{single * 1e6:.1f}", "many_us": f"{several * 1e6:.1f}"}  # fmt: skip
        return Figure(self.run, SCALING, round(single / several, 3), "x", detail)


def memory(
    run: str, systems: Sequence[str], cases: Sequence[tuple[str, Shape]], threads: int, prepared: Path | None = None
) -> Iterator[Record]:
    """MiB a process grows by to hold a model and run a shape, weights included. Ours, and ONNX Runtime's of the suite `zoo`, are
    loaded from files that other processes made, in a folder of these where it is given."""
    for name, shape in cases:
        for system in systems:
            try:
                value = _memory(system, name, shape, threads, prepared)
            except WorkerDiedError as error:
                yield Failure(run, name, threads, system, str(error), dict(shape))
                continue
            if value is not None:
                title, detail = f"memory, {name} {shown(shape)}, {system}", {"threads": str(threads)}
                yield Figure(run, title, round(value, 1), "MiB", detail)


def _memory(system: str, name: str, shape: Shape, threads: int, prepared: Path | None) -> float | None:
    with tempfile.TemporaryDirectory() if prepared is None else nullcontext(str(prepared)) as folder:
        options: list[str] = []
        if system in SAVED:
            options = ["--prepared", folder]
            with Team([system], threads, {system: options}) as team:
                if "unsupported" in team.ask(system, do="prepare", operator=name):
                    return None
        worker = Worker(system, threads, options)
        try:
            reply = worker.ask(do="prepare", operator=name, bare=system in SAVED)
            if "unsupported" in reply:
                return None
            return float(worker.ask(do="memory", shape=dict(shape))["kib"]) / 1024
        finally:
            worker.close()
