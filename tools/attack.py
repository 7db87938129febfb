"""Attacks, more of them than the tests make: damaged tuning logs, killed tuners, damaged PTX.

    python -m tools.attack logs|kills|ptx [--count 200] [--seed 0]

Prints what fell. Exits with 1 when anything did: an error that is none of ours, a record or a finding that is lost, an attack
that takes more than 20 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.checkout import of_tests

_LONGEST = 20.0  # seconds of processor time
_FAR = 4  # every so many of the attacks on PTX is an access that is far off


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("logs", "kills", "ptx"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    attack = {"logs": attack_logs, "kills": attack_tuners, "ptx": attack_ptx}[args.what]
    fallen = attack(args.count, args.seed)
    print("\n".join(fallen))
    print(f"{args.what}: {args.count} attacks, {len(fallen)} fell")
    return bool(fallen)


def attack_logs(count: int, seed: int) -> list[str]:
    """Read a damaged log, go on with it, show it."""
    with tempfile.TemporaryDirectory() as folder:
        trials = of_tests("log_trials").LogTrials(Path(folder))
        return [fault for number in range(seed, seed + count) for fault in trials.faults(number)]


def attack_tuners(count: int, seed: int) -> list[str]:
    """Kill searches that share one log, half of them after their first record."""
    with tempfile.TemporaryDirectory() as folder:
        found: list[str] = of_tests("log_trials").kill_tuners(Path(folder) / "log.jsonl", count, seed)
        return found


def attack_ptx(count: int, seed: int) -> list[str]:
    """Run damaged kernels on the emulator."""
    attacks, samples = of_tests("emulator.ptx_attacks"), of_tests("emulator.test_samples")
    kinds, fallen = Counter[str](), []
    for number in range(seed, seed + count):
        name = sorted(samples.KERNELS)[number % len(samples.KERNELS)]
        text = (samples.DATA / f"{name}.ptx").read_text()

        def run(ptx: str, name: str = name) -> None:
            samples.matmul(name, 17, 8, 24, text=ptx)

        if number % _FAR == 0:
            moved, trapped = attacks.far(text, number)
            verdict, executed = attacks.judge(run, moved), attacks.judge(run, trapped).kind == "trap"
            lost = executed and verdict.kind != "out-of-bounds"
        else:
            verdict, lost = attacks.judge(run, attacks.attack(text, number).ptx), False
        kinds[verdict.kind] += 1
        if lost or verdict.kind == "raw" or verdict.seconds > _LONGEST:
            fallen.append(f"{name}, seed {number}, {verdict.seconds:.1f} s, {verdict.kind}: {verdict.detail}")
    print(", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))
    return fallen


if __name__ == "__main__":
    sys.exit(main())
