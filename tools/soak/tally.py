"""What a run counts, and how it shows it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.compiler.cli.output import Output
from tools.soak.messages import Done, Outcome

_GROWTH_BYTES = 5 << 20


@dataclass(frozen=True)
class Told:
    """A finding, as the end of a run tells it. kept: the folder that reproduces it."""

    outcome: str
    what: str
    actor: str
    detail: str
    kept: str = ""


@dataclass
class Tally:
    """Counts of a run. growth: bytes that each lasting actor grew by since it was warm."""

    outcomes: collections.Counter[tuple[str, str, Outcome]] = field(default_factory=collections.Counter)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    leaks: collections.Counter[str] = field(default_factory=collections.Counter)
    growth: dict[str, int] = field(default_factory=dict)
    findings: list[Told] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, actor: str, done: Done) -> None:
        self.outcomes[done.what, done.under, done.outcome] += done.count
        if not done.outcome.is_fine:
            self.findings.append(Told(done.outcome.value, done.what, actor, done.detail, done.kept))

    def leaked(self, kind: str, actor: str, detail: str, count: int = 1) -> None:
        self.leaks[kind] += count
        self.findings.append(Told("leak", kind, actor, detail))

    def grew(self, actor: str, grown: int) -> None:
        """More resident memory than allowed is a leak."""
        self.growth[actor] = grown
        if grown > _GROWTH_BYTES:
            self.leaked("memory", actor, f"grew by {grown / 2**20:.1f} MB, at most {_GROWTH_BYTES / 2**20:g} are allowed")

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def total(self, outcome: Outcome) -> int:
        return sum(count for (_, _, o), count in self.outcomes.items() if o is outcome)

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 1),
            "totals": {o.value: self.total(o) for o in Outcome},
            "outcomes": [{"what": w, "under": u, "outcome": o.value, "count": c}
                         for (w, u, o), c in sorted(self.outcomes.items())],
            "faults": dict(self.faults),
            "leaks": {kind: self.leaks[kind] for kind in LEAKS},
            "growth": self.growth,
            "findings": [{"outcome": f.outcome, "what": f.what, "actor": f.actor, "detail": f.detail, "kept": f.kept}
                         for f in self.findings],
        }

    def line(self) -> str:
        """The counts so far in one line."""
        totals = ", ".join(f"{self.total(o)} {o.value}" for o in Outcome)
        return f"{self.seconds / 60:.0f} min: {totals}; {self.faults.total()} faults"

    def show(self, out: Output) -> None:
        """Tables for people: outcomes by class, faults, leaks, findings."""
        classes = sorted({(w, u) for w, u, _ in self.outcomes})
        rows: list[Sequence[object]] = [(f"{w}, {u}", *(self.outcomes[w, u, o] for o in Outcome)) for w, u in classes]
        rows.append(("all", *(self.total(o) for o in Outcome)))
        out.table(f"Outcomes in {self.seconds:.0f} s", ("what, under", *(o.value for o in Outcome)), rows)
        out.table("Faults", ("fault", "times"), sorted(self.faults.items()))
        out.table("Leaks", ("of", "count"), [(kind, self.leaks[kind]) for kind in LEAKS])
        out.table("Memory of lasting actors", ("actor", "growth in KB"), [(a, g // 1024) for a, g in self.growth.items()])
        for f in self.findings[:40]:
            out.text(f"{f.outcome}: {f.what} of {f.actor}: {f.detail.strip()[-600:]}" + (f"\n  {f.kept}" if f.kept else ""))


LEAKS = ("processes", "descriptors", "temporary files", "memory")
