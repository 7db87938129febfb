"""Tables from results files.

    python -m tools.bench report results.jsonl [...]      a Markdown summary on standard output
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench import command
from tools.bench.harness.records import SCALING, Case, Failure, Figure, Record, Run, read
from tools.bench.operator_spec import shown
from tools.bench.peers import OURS

LEAST_OPERATOR, LEAST_POINT = 0.95, 0.85  # what an operator's mean and a point should reach


@dataclass(frozen=True)
class Row:
    """One operator at one thread count, without disturbed cases, which are only counted.

    `geomean`, `worst`: of best peer over ours; None where no case has a ratio.
    """

    operator: str
    threads: int
    cases: int
    geomean: float | None
    worst: float | None
    worst_shape: str
    peers: tuple[tuple[str, float], ...]
    wrong: tuple[str, ...]
    disturbed: int
    families: tuple[str, ...] = ()


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def latest(records: Iterable[Record]) -> list[Case]:
    """The cases, the last one of each (operator, shape, threads), in the order of the first."""
    found: dict[tuple[str, str, int], Case] = {}
    for record in records:
        if isinstance(record, Case):
            found[record.operator, shown(record.shape), record.threads] = record
    return list(found.values())


def rows(cases: Iterable[Case]) -> list[Row]:
    """Cases summed up by operator and threads."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.operator, case.threads), []).append(case)
    return [_row(name, threads, group) for (name, threads), group in groups.items()]


def _row(name: str, threads: int, cases: Sequence[Case]) -> Row:
    given, cases = cases, [c for c in cases if not c.disturbed]
    rated = [(c.ratio, shown(c.shape)) for c in cases if c.ratio is not None]
    worst = min(rated, default=(None, "-"))
    against: dict[str, list[float]] = {}
    for case in cases:
        ours = case.systems.get(OURS)
        for system, timing in case.systems.items():
            if ours and system != OURS and OURS not in case.wrong and system not in case.wrong:
                against.setdefault(system, []).append(timing.median_us / ours.median_us)
    wrong = sorted({system for case in cases for system in case.wrong})
    mean = geomean([r for r, _ in rated]) if rated else None
    each = tuple((system, geomean(values)) for system, values in sorted(against.items()))
    families = tuple(dict.fromkeys(f for case in given for f in case.families))
    return Row(name, threads, len(cases), mean, worst[0], worst[1], each, tuple(wrong), len(given) - len(cases), families)


def verdict(table: Sequence[Row], cases: Sequence[Case]) -> list[str]:
    """What the table comes to: the geometric mean of its operators, and which fall below the limits, worst first."""
    rated = [(row.geomean, row.operator, row.threads) for row in table if row.geomean is not None]
    if not rated:
        return []
    points = [(c.ratio, f"{c.operator} {shown(c.shape)}", c.threads) for c in cases if c.ratio is not None and not c.disturbed]
    lines = [f"- geomean of {len(rated)} operators: {geomean([r for r, _, _ in rated]):.3f}"]
    for what, limit, found in (("operators", LEAST_OPERATOR, rated), ("points", LEAST_POINT, points)):
        below = sorted(f for f in found if f[0] < limit)
        listed = ", ".join(f"{name} (threads {threads}) {ratio:.2f}" for ratio, name, threads in below)
        lines.append(f"- {what} below {limit}: {len(below)} of {len(found)}{': ' + listed if listed else ''}")
    return lines


@dataclass(frozen=True)
class Scaling:
    """How many times faster ours is on more threads than on one: the worst shape of an operator that takes one long enough."""

    operator: str
    threads: int
    cases: int
    worst: float
    worst_shape: str


def scalings(records: Iterable[Record]) -> list[Scaling]:
    """Per operator and thread count, of the figures that the suite `calls` leaves; of a shape that was measured several times
    the median of all."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for r in records:
        if isinstance(r, Figure) and r.name == SCALING:
            shapes = found.setdefault((r.detail["operator"], int(r.detail["threads"])), {})
            shapes.setdefault(r.detail["shape"], []).append(r.value)
    return [Scaling(operator, threads, len(each), *min((statistics.median(values), shape) for shape, values in each.items()))
            for (operator, threads), each in found.items()]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def cells(row: Row) -> list[str]:
    """A row as text, in the order of HEAD."""
    peers = " ".join(f"{name} {value:.2f}" for name, value in row.peers)
    return [row.operator, str(row.threads), str(row.cases), number(row.geomean), number(row.worst), row.worst_shape, peers,
            ", ".join(row.wrong), str(row.disturbed or ""), ", ".join(row.families)]  # fmt: skip


HEAD = ("operator", "threads", "cases", "geomean", "worst", "at", "ours over each peer", "wrong results", "disturbed", "ours is")


def machines(records: Iterable[Record]) -> dict[str, list[Run]]:
    """The runs of each machine, in the order of the first."""
    found: dict[str, list[Run]] = {}
    for r in records:
        if isinstance(r, Run):
            found.setdefault(f"{r.cpu}, {r.cores} cores, {r.memory_gib} GiB", []).append(r)
    return found


def markdown(records: Sequence[Record]) -> str:
    """The summary of one or more runs."""
    lines: list[str] = []
    for machine, runs in machines(records).items():
        days = sorted({r.started[:10] for r in runs})
        versions = {n: v for r in runs for n, v in r.versions.items()}
        commits = ", ".join(dict.fromkeys(r.commit for r in runs))
        lines.append(f"- {machine}, {' to '.join(dict.fromkeys((days[0], days[-1])))}, {len(runs)} runs at {commits}: "
                     + "; ".join(f"{n}: {v}" for n, v in versions.items()))  # fmt: skip
    table = rows(latest(records))
    if table:
        lines += ["", "Best peer's time over ours (above 1: ours is faster), medians of interleaved rounds.", ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in table]
        lines += ["", *verdict(table, latest(records))]
    scaled = scalings(records)
    if scaled:
        lines += ["", "Ours on one thread over ours on several in the same run, worst of the shapes that take one long.", ""]
        lines += ["| operator | threads | shapes | worst | at |", "|---|---|---|---|---|"]
        lines += [f"| {s.operator} | {s.threads} | {s.cases} | {number(s.worst)} | {s.worst_shape} |" for s in scaled]
    figures = [r for r in records if isinstance(r, Figure) and r.name != SCALING]
    if figures:
        lines += ["", "| figure | value | |", "|---|---|---|"]
        for f in figures:
            lines.append(f"| {f.name} | {f.value:.4g} {f.unit} | {', '.join(f'{k} {v}' for k, v in f.detail.items())} |")
    failures = [r for r in records if isinstance(r, Failure)]
    if failures:
        lines += ["", "Failures:"]
        lines += [f"- {f.system}, {f.operator} {shown(f.shape)}, {f.threads} threads: {f.error}" for f in failures]
    return "\n".join(lines) + "\n"


def show(cases: Sequence[Case]) -> None:
    """The table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="best peer's time over ours")
    for column in HEAD:
        table.add_column(column, justify="right" if column in HEAD[1:5] else "left")
    for row in rows(cases):
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("report", __doc__)
    parser.add_argument("results", nargs="+", type=Path)
    records = [record for path in parser.parse_args(argv).results for record in read(path)]
    sys.stdout.write(markdown(records))
    return 0
