"""Faults on a real Ray cluster of this machine: what is lost of a search while its actors and nodes are.

    python -m tools.farm_faults --faults 200 --every 2.5 [--seconds 280] [--seed 0]

A cluster of three nodes (ray.cluster_utils) searches kernels of a small model while faults are made, in a random order: a
builder, a runner or a reckoner is killed, stopped for good, stopped for a second, its process has no memory (killed as Linux
does), a node is cut off (its raylet is stopped) or removed, and comes back. Counted are runs that did not end in time,
measurements that the log does not hold (those of a runner that drifted are there, and marked), and processes that are left. Exit
code 1 where any is. Told besides: seconds from the kill of an actor to the search's knowing of it, and from there until another
one has joined (the simulated farm takes both, search/task_scheduler/simulated_jobs.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tilewright.runtime.log import LOG
from tilewright.search.database.records import TuningLog
from tilewright.search.runner.actor_process import ActorProcess
from tools.ray_cluster import NODE, add_node, processes, started, strays

FAULTS = ("kill builder", "kill runner", "hang builder", "hang runner", "slow builder", "slow runner", "memory", "partition",
          "node", "kill reckoner", "slow reckoner")
OWN = ("ray::BuilderActor", "ray::RunnerActor", "ray::ReckonerActor", "tilewright.search.runner.host_worker --with-parent")
_SAID = re.compile(r"farm: (?P<what>lost|joined) actor=(?P<kind>\w+) [^:,]*:(?P<process>\d+)")
_AGENTS = 20.0  # seconds that Ray's own agents have to end
_WEIGHTS = (5, 5, 2, 2, 4, 4, 3, 1, 1, 2, 1)


class Heard(logging.Handler):
    """What a farm logs of its actors. lost: (process, time); joined: (kind, time)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lost: list[tuple[str, int, float]] = []
        self.joined: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = _SAID.match(record.getMessage())
        if found is None:
            return
        what, kind, process, now = found["what"], found["kind"], int(found["process"]), time.monotonic()
        if what == "lost":
            self.lost.append((kind, process, now))
        else:
            self.joined.append((kind, now))

    def delays(self, killed: Mapping[int, float]) -> tuple[list[float], list[float]]:
        """Seconds from each kill to its being known; and from each loss until another actor of its kind joined."""
        known = [at - killed[process] for _, process, at in self.lost if process in killed]
        joined, back = {kind: sorted(t for k, t in self.joined if k == kind) for kind, _ in self.joined}, list[float]()
        for kind, _, at in sorted(self.lost, key=lambda x: x[2]):
            later = [t for t in joined.get(kind, []) if t > at]
            if later:
                joined[kind].remove(later[0])
                back.append(later[0] - at)
        return known, back


class Faults:
    """Makes faults until it is told to stop. Ray starts nodes from the main thread alone, so it is there that this runs."""

    def __init__(self, cluster: Any, every: float, seed: int) -> None:
        self.cluster, self.every, self.rng = cluster, every, random.Random(seed)
        self.made: Counter[str] = Counter()
        self.killed: dict[int, float] = {}  # process -> when
        self.begun, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        """From when the first builder and runner are there."""
        while not self.begun.wait(0.1) and not self.stop.is_set():
            pass
        while not self.stop.wait(self.every * self.rng.uniform(0.5, 1.5)):
            fault = self.rng.choices(FAULTS, _WEIGHTS)[0]
            with suppress(ProcessLookupError, PermissionError):
                if self._make(fault):
                    self.made[fault] += 1

    def _make(self, fault: str) -> bool:
        """False where there was nothing to do it to."""
        if fault == "node":
            return self._lose_node()
        if fault == "partition":
            return self._cut_off()
        what = next((f"ray::{word.capitalize()}Actor" for word in ("builder", "reckoner") if word in fault), "ray::RunnerActor")
        found = processes(what)
        if not found:
            return False
        process = self.rng.choice(found)
        if fault.startswith("slow"):
            os.kill(process, signal.SIGSTOP)
            self.stop.wait(1.0)
            os.kill(process, signal.SIGCONT)
        elif fault.startswith("hang"):
            os.kill(process, signal.SIGSTOP)
        else:
            os.kill(process, signal.SIGKILL)
            self.killed[process] = time.monotonic()
        return True

    def _workers(self) -> list[Any]:
        return [n for n in self.cluster.list_all_nodes() if n is not self.cluster.head_node]

    def _lose_node(self) -> bool:
        nodes = self._workers()
        if not nodes:
            return False
        self._remove(self.rng.choice(nodes))
        add_node(self.cluster, **NODE)
        return True

    def _cut_off(self) -> bool:
        """A raylet that answers nobody: the cluster takes its node for dead; then it is gone, and another one comes."""
        nodes = self._workers()
        if not nodes:
            return False
        node = self.rng.choice(nodes)
        for made in node.all_processes.get("raylet", []):
            os.kill(made.process.pid, signal.SIGSTOP)
        self.stop.wait(6.0)
        for made in node.all_processes.get("raylet", []):
            with suppress(ProcessLookupError):
                os.kill(made.process.pid, signal.SIGCONT)
        self._remove(node)
        add_node(self.cluster, **NODE)
        return True

    def _remove(self, node: Any) -> None:
        """Without a word, and with all of its processes, stopped ones too: its machine is gone."""
        own = [p for made in node.all_processes.values() for one in made
               for p in ActorProcess.of(one.process.pid).with_children()]
        self.cluster.remove_node(node, allow_graceful=False)
        for process in own:
            process.end()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="to make before the end")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two, on average")
    parser.add_argument("--seconds", type=float, default=280.0, help="of the search; faults end with it")
    parser.add_argument("--builders", type=int, default=2)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "examples" / "bert_layer.mlir")
    return parser.parse_args(argv)


def measured(log: Path) -> int:
    """Measurements that a log holds, those too that a mark says nobody should use."""
    lines = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line.get("config") and line.get("dims"))


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    import tilewright as tw

    os.environ.setdefault("RAY_health_check_period_ms", "1000")
    os.environ.setdefault("RAY_health_check_timeout_ms", "1000")
    os.environ.setdefault("RAY_health_check_failure_threshold", "3")
    before, heard = strays(), Heard()
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    LOG.addHandler(heard)
    states: list[Any] = []
    at_return: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        with started(3) as cluster:
            faults = Faults(cluster, args.every, args.seed)
            begin = time.monotonic()
            farm = tw.Farm(cluster.address, args.builders, args.runners, join_seconds=max(120.0, args.seconds))

            def told(state: Any) -> None:
                states.append(state)
                faults.begun.set()
                if sum(faults.made.values()) >= args.faults:
                    faults.stop.set()

            def search() -> None:
                try:
                    tw.tune(args.model, {"T": (1, 128)}, options={"seconds": args.seconds, "farm": farm, "log": log, "threads": 1,
                                                                  "progress": told})
                finally:
                    at_return.extend(p for word in OWN for p in processes(word))
                    faults.stop.set()

            searching = threading.Thread(target=search, name="search")
            searching.start()
            faults.run()
            searching.join(args.seconds * 1.5 + 120)
            taken = time.monotonic() - begin
            hung = int(searching.is_alive())
        farms = [s.record for s in states if type(s).__name__ == "FarmProgress"]
        found, written = TuningLog(log), measured(log)
    if not farms:
        print("the search ended before its farm began", file=sys.stderr)
        return 1
    last = farms[-1]
    gone = time.monotonic()
    while (later := strays() - before) and time.monotonic() < gone + _AGENTS:
        time.sleep(0.5)
    left = [*at_return, *later]
    good = sum(1 for r in found.records if r.seconds)
    failed = Counter(r.error[:60] for r in found.records if r.error)
    lost = max(0, last.measurements - written)
    print(f"{sum(faults.made.values())} faults {dict(faults.made)} in {taken:.0f} s: {good} good measurements, "
          f"{written - sum(1 for r in found.records if r.dims)} marked after a drift, "
          f"{last.builds} builds, {last.lost} actors lost, {last.retried} requests tried twice; hung runs {hung}, "
          f"records lost {lost}, processes left {len(at_return)} at return and {len(later)} after the cluster; "
          f"driver {last.driver:.1%} of a core")
    for what, delays in zip(("known after its kill", "back after its loss"), heard.delays(faults.killed), strict=True):
        if len(delays) > 1:
            tenths = statistics.quantiles(delays, n=10)
            print(f"  an actor is {what}: median {statistics.median(delays):.2f} s, 9 of 10 within {tenths[-1]:.2f} s, "
                  f"most {max(delays):.2f} s, of {len(delays)}")
    for reason, count in failed.most_common(5):
        print(f"  {count} failed: {reason}")
    return int(bool(hung or lost or left))


if __name__ == "__main__":
    sys.exit(main())
