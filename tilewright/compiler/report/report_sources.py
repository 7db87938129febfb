"""What `tilewright report` shows of a tuning log and of a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.report.batch_section import padding_of_a_batch
from tilewright.compiler.report.cut_section import cut_section
from tilewright.compiler.report.farm_section import farm_section
from tilewright.compiler.report.report_page import ReportSection, Table, figure
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.program import Program
from tilewright.search.database.records import TuningRecord
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.database.stored_log import open_log
from tilewright.search.task_scheduler.tuning_curve import log_power, segment_start

_SHOWN = 8  # arms whose curves are drawn, and operators with a figure of their own
_SHAPES = 160


def from_log(path: Path) -> list[ReportSection]:
    """Schedule and beliefs where a bandit wrote the log; measurements of each operator."""
    log = open_log(path)
    run = log.slots[-1].run if log.slots else ""
    slots = [s for s in log.slots if s.run == run]
    found = [latency_over_time(slots), time_per_arm(slots), curve_fits(slots)] if slots else []
    if log.farms:
        found.append(farm_section(log.farms, log.marks))
    if log.cuts:
        found.append(cut_section(log.cuts))
    good = [r for r in log.records if r.seconds]
    if good:
        workloads = {key: form.workload() for key, form in log.workloads.items()}
        found += [latency_over_shapes(good), roofline(good, workloads), regret_of_log(good)]
    return found


def from_artifact(program: Program, batch: Mapping[str, Any]) -> list[ReportSection]:
    """The kernel that each shape gets, the padding of a batch of a ragged model, and the certificates."""
    found = [chosen_kernels(program.tables)] if program.tables else []
    if program.ragged:
        found.append(padding_of_a_batch(program, batch))
    if program.certificates:
        found.append(regret_of_certificates(program.certificates, {t.workload: t.name for t in program.tables}))
    return found


def latency_over_time(slots: Sequence[SlotRecord]) -> ReportSection:
    drawn = figure("seconds of tuning", "model latency, ms", log_y=True)
    times = [0.0, *(s.begin + s.seconds for s in slots)]
    latencies = best_so_far(slots)
    drawn.add_scatter(
        x=times,
        y=[1e3 * v for v in latencies],
        mode="lines+markers",
        line_shape="hv",
        name="best so far",
        text=["untuned", *(s.arm for s in slots)],
    )
    fit = sum(s.fit_seconds for s in slots)
    facts = (
        ("untuned", _time(latencies[0])),
        ("tuned", _time(latencies[-1])),
        ("speed-up", f"{latencies[0] / latencies[-1]:.2f}x"),
        ("slots", str(len(slots))),
        ("policy", slots[-1].policy),
        ("share of the time spent on beliefs", f"{fit / max(times[-1], 1e-9):.1%}"),
    )
    return ReportSection(
        "Latency over time",
        "Latency of the whole model, calls and traffic counted, with the best kernels known.",
        facts,
        (drawn,),
    )


def best_so_far(slots: Sequence[SlotRecord]) -> list[float]:
    """Least latency of the model before the first slot and after each: kernels that were found stay known, only what the model
    expects of shapes that were not measured goes up and down."""
    return [float(v) for v in np.minimum.accumulate([slots[0].before, *(s.after for s in slots)])]


def time_per_arm(slots: Sequence[SlotRecord]) -> ReportSection:
    """Seconds that each arm got and what the model gained by them."""
    seconds: dict[str, float] = {}
    saved: dict[str, float] = {}
    latencies = best_so_far(slots)
    for s, before, after in zip(slots, latencies, latencies[1:], strict=False):
        seconds[s.arm] = seconds.get(s.arm, 0.0) + s.seconds
        saved[s.arm] = saved.get(s.arm, 0.0) + (before - after)
    names = sorted(seconds, key=lambda n: seconds[n])
    drawn = figure("seconds", "", height=max(260, 24 * len(names) + 110))
    drawn.add_bar(y=names, x=[seconds[n] for n in names], orientation="h", name="time")
    drawn.update_yaxes(automargin=True, tickfont={"size": 10})
    rows = tuple((n, f"{seconds[n]:.1f} s", _time(saved[n])) for n in reversed(names))
    return ReportSection(
        "Time per arm",
        "An arm is an operator over a bucket of its shapes.",
        (),
        (drawn,),
        (Table(("arm", "time", "model latency saved"), rows),),
    )


def curve_fits(slots: Sequence[SlotRecord]) -> ReportSection:
    """Observed throughput of the busiest arms, the likeliest curve when each was last chosen, the predicted 80 % intervals."""
    pulls = [s.arm for s in slots]
    names = sorted(set(pulls), key=lambda n: (-pulls.count(n), n))[:_SHOWN]
    figures, inside, predicted = [], 0, 0
    for name in names:
        own = [s for s in slots if s.arm == name]
        x = np.array([float(p[0]) for s in own for p in s.points])
        y = np.array([min(s.ideal / p[1], 0.95) for s in own for p in s.points])
        drawn = figure(f"trials of {name}", "share of the peak", height=280)
        drawn.add_scatter(x=x, y=y, mode="markers", name="best so far", marker={"size": 4})
        for s in own:
            told = next((b for b in s.beliefs if b.arm == name), None)
            if told is not None and s.points:
                at, reached = s.points[-1][0], min(s.ideal / s.points[-1][1], 0.95)
                inside, predicted = inside + (told.low * 0.999 <= reached <= told.high * 1.001), predicted + 1
                drawn.add_scatter(
                    x=[at, at],
                    y=[told.low, told.high],
                    mode="lines",
                    line={"width": 3, "color": "rgba(230,120,20,.5)"},
                    showlegend=False,
                    hovertext="predicted, 80 %",
                )
        last = own[-1]
        before = int(np.sum(x < last.points[0][0])) if last.points else 0
        if last.curve and before:
            begin = segment_start(np.maximum.accumulate(y[:before]))
            ahead = np.linspace(x[begin], x[-1], 80)
            fitted = log_power(ahead - x[begin], np.array([last.curve]), float(y[begin]))[0]
            drawn.add_scatter(x=ahead, y=fitted, mode="lines", name="likeliest curve")
        figures.append(drawn)
    facts = (("slots within the predicted 80 % interval", f"{inside / predicted:.0%} of {predicted}"),) if predicted else ()
    return ReportSection(
        "Curves and beliefs", "Bars show the 80 % interval that was predicted before each slot.", facts, tuple(figures)
    )


def latency_over_shapes(records: Sequence[TuningRecord]) -> ReportSection:
    """The best measured time at each size, with the configuration."""
    figures = []
    for name, own in _by_operator(records)[:_SHOWN]:
        best: dict[float, TuningRecord] = {}
        for r in own:
            size = float(np.prod(list(r.dims.values()) or [1]))
            if size not in best or r.time < best[size].time:
                best[size] = r
        drawn = figure(f"size of {name} ({' x '.join(own[0].dims) or 'static'})", "µs", height=300, log_x=True, log_y=True)
        for config in dict.fromkeys(best[s].config for s in sorted(best)):
            at = [s for s in sorted(best) if best[s].config == config]
            drawn.add_scatter(
                x=at, y=[1e6 * best[s].time for s in at], mode="markers", name=config[:60], text=config, showlegend=False
            )
        line = sorted(best)
        drawn.add_scatter(
            x=line, y=[1e6 * best[s].time for s in line], mode="lines", line={"width": 1, "color": "#999"}, showlegend=False
        )
        figures.append(drawn)
    return ReportSection(
        "Latency and kernel over the shape range",
        "A colour is a kernel; point at a dot for its configuration.",
        (),
        tuple(figures),
    )


def roofline(records: Sequence[TuningRecord], workloads: Mapping[str, Workload]) -> ReportSection:
    """Arithmetic a second over arithmetic a byte: the best of each operator and size."""
    drawn = figure("arithmetic operations per byte", "Gflop/s", log_x=True, log_y=True)
    reached, streamed = 0.0, 0.0
    for name, own in _by_operator(records):
        work = workloads.get(own[0].workload)
        if work is None:
            continue
        best: dict[tuple[tuple[str, int], ...], float] = {}
        for r in own:
            best[r.shape] = min(best.get(r.shape, float("inf")), r.time)
        x, y = [], []
        for shape, seconds in best.items():
            flops, size = float(work.flops.evaluate(dict(shape))), float(max(1, work.bytes.evaluate(dict(shape))))
            if flops > 0:
                x.append(flops / size)
                y.append(flops / seconds / 1e9)
                reached, streamed = max(reached, y[-1]), max(streamed, size / seconds / 1e9)
        if x:
            drawn.add_scatter(x=x, y=y, mode="markers", name=name, marker={"size": 6})
    if reached:
        intensity = np.geomspace(0.1, 1000, 60)
        drawn.add_scatter(
            x=intensity, y=np.minimum(reached, streamed * intensity), mode="lines", name="best reached", line={"dash": "dot"}
        )
    return ReportSection(
        "Roofline", "The dotted line is the most arithmetic and the most traffic a second that any kernel reached.", (), (drawn,)
    )


def regret_of_log(records: Sequence[TuningRecord]) -> ReportSection:
    """How much slower the single best kernel of an operator is than the best of each measured shape."""
    rows = []
    for name, own in _by_operator(records):
        shapes = {r.shape for r in own}
        least = {s: min(r.time for r in own if r.shape == s) for s in shapes}
        by_config: dict[str, list[float]] = {}
        for r in own:
            by_config.setdefault(r.config, []).append(r.time / least[r.shape] - 1)
        wide = {c: v for c, v in by_config.items() if len(v) >= max(2, len(shapes) // 4)} or by_config
        single = min(wide, key=lambda c: float(np.mean(wide[c])))
        rows.append((name, str(len(shapes)), str(len(by_config)), f"{np.mean(wide[single]):.1%}", f"{max(wide[single]):.1%}"))
    columns = ("operator", "shapes", "kernels", "mean regret of one kernel", "worst")
    return ReportSection(
        "Regret", "What one kernel for all shapes would cost; dispatch saves this.", (), (), (Table(columns, tuple(rows)),)
    )


def chosen_kernels(tables: Sequence[DispatchTable]) -> ReportSection:
    """The kernel number over the range of each operator with one dim; the kernels of all."""
    figures: list[Any] = []
    rows: list[tuple[str, str, str, str]] = []
    for table in tables:
        rows += [(table.name, str(i), k.family, k.config) for i, k in enumerate(table.kernels)]
        if len(table.dims) == 1 and len(figures) < _SHOWN and len(table.kernels) > 1:
            sizes = np.unique(np.round(np.geomspace(1, 4096, _SHAPES)).astype(int)).tolist()
            drawn = figure(f"{table.dims[0]} of {table.name}", "kernel", height=240, log_x=True)
            drawn.add_scatter(
                x=sizes,
                y=[table.select({table.dims[0]: s}).kernel for s in sizes],
                mode="lines",
                line_shape="hv",
                showlegend=False,
            )
            figures.append(drawn)
    return ReportSection(
        "Chosen kernel over the shape range",
        "",
        (),
        tuple(figures),
        (Table(("operator", "kernel", "family", "configuration"), tuple(rows)),),
    )


def regret_of_certificates(certificates: Sequence[Certificate], names: Mapping[str, str]) -> ReportSection:
    """Measured at shapes that the search never saw."""
    rows = tuple(
        (
            names.get(c.workload, c.workload[:8]),
            f"{c.measured_mean:.1%}",
            f"{c.measured_worst:.1%}",
            f"{c.predicted_mean:.1%}",
            f"{c.predicted_worst:.1%}",
            str(len(c.held_out)),
            f"{c.confidence:.0%}",
        )
        for c in certificates
    )
    columns = (
        "operator",
        "measured mean",
        "measured worst",
        "predicted mean",
        "predicted worst",
        "held-out shapes",
        "confidence",
    )
    drawn = figure("held-out shape", "regret", height=300)
    for c in certificates:
        drawn.add_scatter(
            x=[" ".join(f"{n}={v}" for n, v in d.items()) for d in c.held_out],
            y=list(c.regrets),
            mode="markers",
            name=names.get(c.workload, c.workload[:8]),
        )
    shown: tuple[Any, ...] = (drawn,) if any(c.held_out for c in certificates) else ()
    about = "Time of the dispatched kernel over the best one known, less 1."
    return ReportSection("Regret", about, (), shown, (Table(columns, rows),))


def _by_operator(records: Sequence[TuningRecord]) -> list[tuple[str, list[TuningRecord]]]:
    """Operators by the time of their slowest best measurement, longest first."""
    found: dict[str, list[TuningRecord]] = {}
    for r in records:
        found.setdefault(r.workload, []).append(r)
    ordered = sorted(
        found.values(), key=lambda own: -max(min(r.time for r in own if r.shape == s) for s in {r.shape for r in own})
    )
    return [(f"{own[0].name} {own[0].workload[:6]}", own) for own in ordered]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
