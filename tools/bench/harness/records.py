"""What a results file holds: JSON Lines, one run record, then its measurements."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Union

import msgspec

from tools.bench.harness.quiet import MOST
from tools.bench.harness.witness import SLOW
from tools.bench.peers import OURS

SCHEMA = 1
SCALING = "one thread's time over that of several"  # name of the figures of thread scaling


class Run(msgspec.Struct, tag_field="record", tag="run", frozen=True):
    """One invocation. `versions`: system -> its own words. `settings`: the command line."""

    run: str
    started: str
    cpu: str
    cores: int
    memory_gib: float
    python: str
    commit: str
    versions: dict[str, str]
    settings: dict[str, str]
    schema: int = SCHEMA


class Timed(msgspec.Struct, frozen=True):
    """One system at one case. `error`: against float64, relative in the 2-norm. `prepare_s`: compile or pack."""

    median_us: float
    rounds_us: list[float]
    error: float
    prepare_s: float


class Case(msgspec.Struct, tag_field="record", tag="case", frozen=True):
    """One (operator, shape, threads), all systems interleaved.

    `wrong`: systems whose result was not accepted. `others`: cores that other processes used meanwhile, on average. `families`:
    ours, of each workload that it computes. `near`: time of reads of the second cache over the least of the run (witness.py).
    """

    run: str
    operator: str
    shape: dict[str, int]
    threads: int
    systems: dict[str, Timed]
    flops: int = 0
    wrong: list[str] = []
    others: float = 0.0
    families: list[str] = []
    near: float = 1.0

    @property
    def disturbed(self) -> bool:
        """Whether other processes, or other machines on this core, took so much that the figures say nothing."""
        return self.others > MOST or self.near > SLOW

    @property
    def best_peer(self) -> str | None:
        """The peer of least median time, among those with a correct result."""
        peers = {n: t.median_us for n, t in self.systems.items() if n != OURS and n not in self.wrong}
        return min(peers, key=peers.__getitem__) if peers else None

    @property
    def ratio(self) -> float | None:
        """Median time of the best peer over ours: above 1 we are faster. None without a peer or a correct result of ours."""
        best = self.best_peer
        if best is None or OURS not in self.systems or OURS in self.wrong:
            return None
        return self.systems[best].median_us / self.systems[OURS].median_us


class Failure(msgspec.Struct, tag_field="record", tag="failure", frozen=True):
    """A system that could not compute what it claims to."""

    run: str
    operator: str
    threads: int
    system: str
    error: str
    shape: dict[str, int] = {}


class Figure(msgspec.Struct, tag_field="record", tag="figure", frozen=True):
    """One number of the calls suite, such as dispatch_ns."""

    run: str
    name: str
    value: float
    unit: str
    detail: dict[str, str] = {}


Record = Union[Run, Case, Failure, Figure]


def timed(seconds: list[float], error: float, prepare_s: float) -> Timed:
    """Rounds in seconds per call as a record."""
    rounds = [round(s * 1e6, 3) for s in seconds]
    return Timed(round(statistics.median(rounds), 3), rounds, float(f"{error:.2e}"), round(prepare_s, 2))


def append(path: Path, record: Record) -> None:
    """Add one line; it is on disk when this returns."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def read(path: Path) -> Iterator[Record]:
    """The records of a file; msgspec.ValidationError for a line that is none."""
    decoder = msgspec.json.Decoder(Record)
    for line in path.read_bytes().splitlines():
        if line.strip():
            yield decoder.decode(line)


def new_run(versions: Mapping[str, str], settings: Mapping[str, str]) -> Run:
    """Describe this machine and checkout."""
    root = Path(__file__).resolve().parents[3]
    commit = _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Run(f"{started}-{os.getpid()}", started, cpu_name(), len(os.sched_getaffinity(0)), round(pages / 2**30, 1),
               platform.python_version(), commit + ("+changes" if changed else ""), dict(versions), dict(settings))


def cpu_name() -> str:
    """The processor's name with what it can compute in."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", "").split())
    vector = next((f for f in ("avx512f", "avx2") if f in flags), platform.machine())
    family = f"family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else ""
    return f"{fields.get('model name', platform.processor())} {family} {vector}".strip()


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
