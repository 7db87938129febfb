"""A record store of many records: compaction, and how long a workload takes to be found.

    python -m tools.bench store --records 1000000 --workloads 2000

Records are made up; a search opens the store and reads all of one workload, as at its begin. Seconds are of this process, the
first of them in a fresh one with the file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tilewright.search.database.record_place import LocalPlace
from tilewright.search.database.record_store import RecordStore
from tilewright.search.database.records import TuningRecord
from tilewright.search.database.segments import SEGMENTS
from tilewright.search.database.stored_log import StoredLog, open_log
from tools.bench import command

_CONFIG = "host_matmul{mr=%d nv=%d lanes=8 mc=%d exact-tails=true stream=3}"
_OPENED = """
import sys, time
from tilewright.search.database.stored_log import open_log
begin = time.perf_counter()
found = list(open_log(sys.argv[1]).of(sys.argv[2]))
print(time.perf_counter() - begin, len(found))
"""


def fill(folder: Path, records: int, workloads: int) -> None:
    """Segments of ten writers, their workloads mixed."""
    encode = msgspec.json.Encoder().encode
    (folder / SEGMENTS).mkdir(parents=True)
    for writer in range(10):
        with (folder / SEGMENTS / f"{writer:013d}-made-{writer}.jsonl").open("wb") as file:
            for n in range(writer, records, 10):
                key = f"{n % workloads:064x}"
                made = TuningRecord(key, f"operator_{n % workloads}", "host_matmul", _CONFIG % (n % 13, n % 5, n % 97),
                                    {"M": 1 + n % 512}, 1, (1e-6, 1.1e-6, 1.2e-6), object=f"{n:064x}", when=1.7e9 + n,
                                    device="host znver3 256 bits l2=512K l3=32M cores=2", versions={"compiler": "0123456789ab"})
                file.write(encode(made) + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("store", __doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--workloads", type=int, default=2000)
    parser.add_argument("--lookups", type=int, default=20)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name), args.records, args.workloads)
        begin = time.perf_counter()
        done = RecordStore(LocalPlace(Path(name))).compact()
        compaction = time.perf_counter() - begin
        keys = [f"{n * 97 % args.workloads:064x}" for n in range(args.lookups)]
        fresh = subprocess.run([sys.executable, "-c", _OPENED, name, keys[0]], capture_output=True, text=True, check=True,
                               env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
        first, count = fresh.stdout.split()
        times = []
        for key in keys:
            begin = time.perf_counter()
            opened = open_log(name)
            assert isinstance(opened, StoredLog)
            found = list(opened.of(key))
            times.append(time.perf_counter() - begin)
            assert len(found) == int(count)
    row = {"records": done.records, "workloads": done.workloads, "compact_seconds": compaction, "of_a_workload": int(count),
           "fresh_process": float(first), "median": statistics.median(times), "worst": max(times)}
    print(json.dumps(row))
    return 0
