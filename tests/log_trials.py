"""What a damaged tuning log and a killed tuner must not do: raise, lose a record that was whole, stop a search."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from log_attacks import DamagedLog, attack
from search_surfaces import Clock, dense_task, matmul_seconds

from tilewright.compiler.report.report_sources import from_log
from tilewright.runtime.errors import TilewrightError
from tilewright.search.database.records import TuningLog
from tilewright.search.database.slot_records import ArmBelief, SlotRecord
from tilewright.search.runner.replay import SurfaceRunner
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.space.task import Task

_OPTIONS = TuneOptions(certify=0.0)
_SLOT = SlotRecord("run", 1, "dense/0", "ucb", 0, 0.0, 1.0, ((1, 1e-3), (2, 9e-4)), 1e-4, 1e-3, 9e-4, {"dense/0": 9e-4},
                   (ArmBelief("dense/0", 0.1, 0.1),), (0.5, 2.0, -0.5, -3.0))


def search(task: Task, log: TuningLog, trials: int) -> Tuner:
    """A search of a synthetic operator, to its end."""
    clock = Clock()
    tuner = Tuner(task, clock.context(SurfaceRunner(matmul_seconds, clock.advance), log), Budget(trials=trials), _OPTIONS)
    tuner.ledger.learn()
    while not tuner.done:
        tuner.step()
    return tuner


def small_task() -> Task:
    """Whose space is opened in no time."""
    task = dense_task()
    return replace(task, configs=(*task.defaults(), *task.lattice().configs[::40]))


class LogTrials:
    """Attacks on the log of one search. folder: for files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task = folder, small_task()
        path = folder / "whole.jsonl"
        log = TuningLog(path)
        search(self.task, log, 24)
        log.add_slot(_SLOT)
        self.lines = path.read_bytes().splitlines()

    def faults(self, seed: int) -> list[str]:
        """What is wrong about how one damaged log is read, gone on with and shown."""
        damaged, path = attack(self.lines, seed), self.folder / "damaged.jsonl"
        path.write_bytes(damaged.data)
        try:
            return [f"seed {seed}, {damaged.notes}: {fault}" for fault in self._faults(damaged, path)]
        except Exception as error:  # whatever it is: an attack that raises is what is looked for
            return [f"seed {seed}, {damaged.notes}: {''.join(traceback.format_exception(error))}"]

    def _faults(self, damaged: DamagedLog, path: Path) -> Iterator[str]:
        log = TuningLog(path, writes=True)
        read = {msgspec.json.encode(r) for r in (*log.records, *log.slots, *log.workloads.values())}
        for line in damaged.kept:
            if line not in read and json.loads(line)["record"] != "workload":  # a later line may tell the workload otherwise
                yield f"lost {line[:200]!r}"
        found = search(self.task, log, 3).best()
        if not found.configs:
            yield "the search finds no kernel"
        if TuningLog(path).records != log.records:
            yield "what was added is not read again"
        try:
            from_log(path)
        except TilewrightError as error:
            yield f"no report: {error}"


def kill_tuners(path: Path, count: int, seed: int) -> list[str]:
    """Kill so many searches that share logs, each at a random moment, half of them after their first record; what was wrong.

    A search that has measured its whole space ends by itself: those after it share another log, beside the one before.
    """
    rng, task, faults, number = random.Random(seed), small_task(), list[str](), 0
    while number < count:
        before = path.read_bytes() if path.exists() else b""
        child = os.fork()
        if child == 0:
            search(task, TuningLog(path, writes=True), sys.maxsize)
            os._exit(0)
        ended = False
        while number % 2 and not ended and (not path.exists() or path.stat().st_size <= len(before)):
            time.sleep(0.001)
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if not ended:
            time.sleep(rng.uniform(0.0, 0.3))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        faults += [f"kill {number}: {fault}" for fault in _after_kill(path, before)]
        if os.WIFSIGNALED(status):
            number += 1
        elif os.WEXITSTATUS(status):
            return [*faults, f"kill {number}: the search failed by itself"]
        else:
            path = path.with_name(f"{path.stem}x{path.suffix}")
    end = search(task, TuningLog(path, writes=True), 10)
    return faults if end.best().configs else [*faults, "the last search finds no kernel"]


def _after_kill(path: Path, before: bytes) -> Iterator[str]:
    if not path.exists():
        return
    if not path.read_bytes().startswith(before):
        yield "lines that were there are not"
    log = TuningLog(path)
    if len(log.skipped) > 0 and before.endswith(b"\n"):
        yield f"not read: {log.skipped[-1]}"


if __name__ == "__main__":
    found = kill_tuners(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print("\n".join(found))
    sys.exit(bool(found))
