"""Faults on a real Ray cluster of this machine: what is lost of a search while its actors and nodes are.

    python -m tools.farm_faults --faults 200 --every 2.5 [--seconds 280] [--seed 0]

A cluster of three nodes (ray.cluster_utils) searches kernels of a small model while faults are made, in a random order: a
builder, a runner or a reckoner is killed, stopped for good, stopped for a second, its process has no memory (killed as Linux
does), a node is cut off (its raylet is stopped) or removed, and comes back. Counted are runs that did not end in time,
measurements that the log does not hold, and processes that are left. Exit code 1 where any is.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tilewright.search.database.records import TuningLog
from tilewright.search.runner.actor_process import ActorProcess
from tools.ray_cluster import NODE, started

FAULTS = ("kill builder", "kill runner", "hang builder", "hang runner", "slow builder", "slow runner", "memory", "partition",
          "node", "kill reckoner", "slow reckoner")
OWN = ("ray::BuilderActor", "ray::RunnerActor", "ray::ReckonerActor", "tilewright.search.runner.host_worker --with-parent")
_AGENTS = 20.0  # seconds that Ray's own agents have to end
_STARTS, _RAYLET = 3, "/raylet/raylet "  # tries to start a node, and what its process is called
_WEIGHTS = (5, 5, 2, 2, 4, 4, 3, 1, 1, 2, 1)


def everywhere(word: str) -> set[int]:
    """Processes whose title or command line holds a word, whoever started them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.add(int(entry.name))
    return found


def processes(word: str) -> list[int]:
    """Those that this process started, or that they started."""
    return [process for process in everywhere(word) if os.getpid() in ancestors(process)]


def ancestors(process: int) -> list[int]:
    """The process that started it, that one's, and so on."""
    found: list[int] = []
    with suppress(OSError):
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(process)
    return found


class Faults:
    """Makes faults until it is told to stop. Ray starts nodes from the main thread alone, so it is there that this runs."""

    def __init__(self, cluster: Any, every: float, seed: int) -> None:
        self.cluster, self.every, self.rng = cluster, every, random.Random(seed)
        self.made: Counter[str] = Counter()
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
        else:
            os.kill(process, signal.SIGSTOP if fault.startswith("hang") else signal.SIGKILL)
        return True

    def _workers(self) -> list[Any]:
        return [n for n in self.cluster.list_all_nodes() if n is not self.cluster.head_node]

    def _lose_node(self) -> bool:
        nodes = self._workers()
        if not nodes:
            return False
        self._remove(self.rng.choice(nodes))
        self._replace()
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
        self._replace()
        return True

    def _replace(self) -> None:
        """Another node in place of one that is gone. Ray gives up one that is not there within 30 s, and leaves its raylet."""
        for _ in range(_STARTS):
            before = processes(_RAYLET)
            try:
                self.cluster.add_node(**NODE)
                return
            except Exception as error:
                if type(error) is not Exception:  # what Ray raises then
                    raise
            for process in set(processes(_RAYLET)) - set(before):
                os.kill(process, signal.SIGKILL)

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


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    import tilewright as tw

    os.environ.setdefault("RAY_health_check_period_ms", "1000")
    os.environ.setdefault("RAY_health_check_timeout_ms", "1000")
    os.environ.setdefault("RAY_health_check_failure_threshold", "3")
    before = everywhere("ray::")
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
        found = TuningLog(log)
    if not farms:
        print("the search ended before its farm began", file=sys.stderr)
        return 1
    last = farms[-1]
    gone = time.monotonic()
    while (later := everywhere("ray::") - before) and time.monotonic() < gone + _AGENTS:
        time.sleep(0.5)
    left = [*at_return, *later]
    good = sum(1 for r in found.records if r.seconds)
    failed = Counter(r.error[:60] for r in found.records if r.error)
    lost = max(0, last.measurements - sum(1 for r in found.records if r.dims))
    print(f"{sum(faults.made.values())} faults {dict(faults.made)} in {taken:.0f} s: {good} good measurements, "
          f"{last.builds} builds, {last.lost} actors lost, {last.retried} requests tried twice; hung runs {hung}, "
          f"records lost {lost}, processes left {len(at_return)} at return and {len(later)} after the cluster; "
          f"driver {last.driver:.1%} of a core")
    for reason, count in failed.most_common(5):
        print(f"  {count} failed: {reason}")
    return int(bool(hung or lost or left))


if __name__ == "__main__":
    sys.exit(main())
