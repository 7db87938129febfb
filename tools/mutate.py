"""Mutation test of the emulator: makes small mistakes in the PTX of our kernels and sees which of them anything notices.

    python -m tools.mutate --count 400 --seed 0 [--json mutants.jsonl] [--kernel simt] [--operator drop-barrier]

--count 0 makes every mistake that the operators can make. Exits with 1 when a mutant survives that tests/emulator/survivors.py
does not explain.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.compiler.cli.output import Output
from tools.checkout import of_tests


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="mutants, drawn evenly over operators; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    parser.add_argument("--operator", default="", help="only operators whose name contains this")
    parser.add_argument("--json", type=Path, help="append a line per mutant to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    mutants = of_tests("emulator.mutants")
    subjects = of_tests("emulator.subjects").subjects(args.kernel)
    drawn = mutants.draw(subjects, args.count or sys.maxsize, args.seed, args.operator)
    start, verdicts = time.perf_counter(), []
    for name, mutation in drawn:
        verdict = subjects[name].judge(mutation)
        verdicts.append((name, verdict))
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(_row(name, verdict)) + "\n")
        if verdict.outcome is mutants.MutantOutcome.SURVIVED:
            print(f"SURVIVED {name}, {mutation}", flush=True)
    return _report(mutants, verdicts, time.perf_counter() - start)


def _row(name: str, verdict: Any) -> dict[str, Any]:
    m = verdict.mutation
    return {"kernel": name, "operator": m.operator, "line": m.line, "before": m.before.strip(), "after": m.after.strip(),
            "outcome": verdict.outcome.value, "detail": verdict.detail}


def _report(mutants: Any, verdicts: Sequence[tuple[str, Any]], seconds: float) -> int:
    """A table by operator, the reasons of explained survivors, and the score; the exit code."""
    outcomes = list(mutants.MutantOutcome)
    counts: dict[str, collections.Counter[Any]] = collections.defaultdict(collections.Counter)
    for _, v in verdicts:
        counts[v.mutation.operator][v.outcome] += 1
    out = Output(False)
    rows = [(operator, *(c[o] for o in outcomes)) for operator, c in counts.items()]
    rows.append(("all", *(sum(c[o] for c in counts.values()) for o in outcomes)))
    out.table("Mutants", ("operator", *(o.value for o in outcomes)), rows)
    reasons = collections.Counter((name, v.detail) for name, v in verdicts if v.outcome is mutants.MutantOutcome.EXPLAINED)
    listed = [(name, count, why) for (name, why), count in sorted(reasons.items())]
    out.table("Survivors that are no mistakes", ("kernel", "mutants", "why"), listed)
    survived = sum(v.outcome is mutants.MutantOutcome.SURVIVED for _, v in verdicts)
    killed = sum(v.outcome in mutants.KILLED for _, v in verdicts)
    print(f"{killed} of {killed + survived} mutants that change a result or break a rule are noticed "
          f"({killed / max(1, killed + survived):.1%}); {len(verdicts)} mutants, {seconds:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
