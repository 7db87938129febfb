"""What a search came to, against what runs untuned; and what to try where it gained nothing."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from tilewright.compiler.cli.output import Output, known
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.program import Program

_GAINED = 1.02  # times as fast: less is within what measurements leave open
_BUSY = 0.7  # of the cores, from which on others disturb measurements


@dataclass(frozen=True)
class Gain:
    """operators: measured, of all. trials: measurements. faster: times as fast as untuned at the shapes that were looked at, all
    calls together; None where too little was measured to choose by."""

    operators: int
    all_operators: int
    trials: int
    faster: float | None


def gain_of(program: Program) -> Gain:
    """By the certificates of a program: seconds of the default kernel over those of the dispatched one, over all points."""
    numbers = {t.workload: i for i, t in enumerate(program.tables)}
    calls = Counter(c.table for c in program.calls)
    plain = tuned = 0.0
    measured = 0
    for c in program.certificates:
        points = [e for e in c.expected if e.default and e.predicted]
        measured += bool(c.trials)
        plain += calls[numbers[c.workload]] * sum(e.default for e in points)
        tuned += calls[numbers[c.workload]] * sum(e.predicted for e in points)
    trials = sum(c.trials for c in program.certificates)
    return Gain(measured, len(program.tables), trials, plain / tuned if tuned else None)


def tell_gain(out: Output, gain: Gain, seconds: float | None) -> None:
    """What was gained; where that is nothing, advice. seconds: that the search had."""
    advice = [] if gain.faster is not None and gain.faster >= _GAINED else advise(gain, seconds)
    out.event("gain", operators=gain.operators, of=gain.all_operators, trials=gain.trials, faster=gain.faster, advice=advice)
    measured = f"{gain.trials} measurements of {gain.operators} of {gain.all_operators} operators"
    if gain.faster is None:
        out.text(f"nothing was gained: {measured}, too few to choose by; all of them run as untuned")
    elif advice:
        out.text(f"nothing was gained: by {measured}, the kernels that are kept take {1 / gain.faster:.0%} of the time of what "
                 "runs untuned")
    else:
        out.text(f"expected {gain.faster:.2f}x as fast as untuned over the shapes that were looked at, by {measured}")
    for line in advice:
        out.text(f"  try: {line}")


def advise(gain: Gain, seconds: float | None) -> list[str]:
    """What may help, the likeliest first."""
    found = []
    if gain.operators < gain.all_operators:
        found.append(f"more time: {gain.all_operators - gain.operators} operators were not measured")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        found.append(f"a quiet machine: its load is {load:.1f} on {cores} cores, and other work hides what kernels differ by")
    more = f"--seconds {4 * seconds:g}" if seconds else "more --trials"
    found.append(f"{more} with the same --log, which goes on from here")
    found.append("a narrower --dim range, or the shapes that matter alone: fewer shapes are tuned better in the same time")
    return found


def certify(out: Output, program: Program) -> None:
    """The certificates of a program, of the operators that were measured."""
    names = {t.workload: t.name for t in program.tables}
    for c in program.certificates:
        out.event("certificate", name=names[c.workload], **certificate_fields(c), kernels=c.kernels)
        if c.expected:
            out.text(f"{names[c.workload]}: {c}")


def certificate_fields(c: Certificate) -> dict[str, object]:
    """What a certificate says; None, which is null, where nothing was measured or predicted."""
    measured, predicted = bool(c.held_out), bool(c.expected)
    return {"measured_mean": known(c.measured_mean, measured), "measured_worst": known(c.measured_worst, measured),
            "predicted_mean": known(c.predicted_mean, predicted), "predicted_worst": known(c.predicted_worst, predicted),
            "mean_within": c.mean_within if measured else None, "worst_within": c.worst_within if measured else None,
            "confidence": known(c.confidence, measured), "share": c.share, "held_out": len(c.held_out), "trials": c.trials,
            "compared": c.compared, "replaced": c.replaced, "comparing": c.comparing}
