"""Batches of different lengths on one GPU, f16: an encoder layer and its attention alone, against what torch has for them.

    python -m tools.bench gpu-ragged --build artifacts/            # anywhere: compiles our side, needs no GPU
    python -m tools.bench gpu-ragged --artifacts artifacts/ --json out.jsonl --budget 60

The second command needs torch and the runtime's packages, no compiler. Batches have the lengths of data sets. Two times are taken
of each system: of the device, as CUDA graphs whose operands rotate through more memory than the L2 cache holds, and of calls one
after another as they are made from Python; systems take turns in rounds. Ours is called with offsets on the device and, where it
is not captured, with those of the host. Every result is compared with one in f64. A profile of the kernels comes last.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import TilewrightError
from tools.bench import command
from tools.bench.gpu.cases import TOLERANCE
from tools.bench.gpu.compare_gpu import OURS, Bench, relative, within
from tools.bench.gpu.device_run import Records, build_or_run
from tools.bench.gpu.ragged_cases import PARTS, Batch, Form, batch, build, file_of
from tools.bench.gpu.ragged_peers import PEERS, UNCAPTURED, packed, peers, reference
from tools.bench.ragged.case import first_lengths

ON_HOST = f"{OURS}, offsets on the host"
Call = Callable[[Batch], Any]
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, ImportError, TilewrightError)
_SETS = 12


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("gpu-ragged", __doc__)
    parser.add_argument("--build", type=Path, help="compile our side into this folder and end")
    parser.add_argument("--artifacts", type=Path, help="folder that --build filled")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--sets", default="mnli,race,squadv2,cola", help="data sets of tools/bench/ragged/lengths.json")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a system in a round")
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds of a batch, after which it is given up")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no batch is begun")
    parser.add_argument("--profile", default="mnli", help="data sets whose kernels are listed, comma-separated")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    given = parser.parse_args(argv)
    if (given.build is None) == (given.artifacts is None):
        parser.error("one of --build and --artifacts is wanted")
    return given


def ours(fn: Any) -> dict[str, Call]:
    """Calls of a compiled part, by where the offsets lie."""
    return {OURS: lambda b: fn(*b.rows, *b.weights, b.offsets), ON_HOST: lambda b: fn(*b.rows, *b.weights, b.host)}


def variants(folder: Path, part: str) -> dict[str, Call]:
    """Other artifacts of a part, `ragged_PART@NAME.tw`, by `tilewright@NAME`, with offsets on the device."""
    import tilewright as tw

    found = sorted(folder.glob(file_of(part).replace(".tw", "@*.tw")))
    return {f"{OURS}@{p.stem.partition('@')[2]}": ours(tw.load(p))[OURS] for p in found}


def called(torch: Any, bench: Bench, calls: Mapping[str, Call], sets: Sequence[Batch]) -> dict[str, list[float]]:
    """Seconds of a call, one after another as Python makes them, by system and round."""
    torch.cuda.synchronize()

    def seconds(call: Call, count: int) -> float:
        start = time.perf_counter()
        for number in range(count):
            call(sets[number % len(sets)])
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    counts = {n: max(3, int(bench.seconds / max(seconds(c, 5), 1e-7))) for n, c in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(bench.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(seconds(calls[name], counts[name]))
    return found


def measured(torch: Any, bench: Bench, part: str, form: Form, lengths: Sequence[int], calls: Mapping[str, Call],
             device: str = "cuda") -> dict[str, Any]:
    """What all systems took for one batch, and how far their results are from f64."""
    first = batch(torch, part, lengths, form, 0, device)
    size = sum(t.numel() * t.element_size() for t in (*first.rows, *first.weights))
    sets = [first, *(batch(torch, part, lengths, form, n, device) for n in range(1, min(_SETS, 2 + 2 * bench.cache // size)))]
    wanted = reference(torch, part, form, first)
    scale = torch.linalg.norm(wanted, dim=-1)
    errors, worst, graphs, failed = {}, {}, {}, {}
    for name, call in calls.items():
        try:
            got = packed(torch, name, first, call(first))
            errors[name] = relative(torch, got, wanted)
            worst[name] = float((torch.linalg.norm(got.double() - wanted, dim=-1) / scale).max())
        except _FAILURES as error:
            failed[name] = _told(error)
    fine = {n: c for n, c in calls.items() if n in errors}
    for name, call in fine.items():
        if name not in (*UNCAPTURED, ON_HOST):
            try:
                graphs[name] = bench.graph(call, [(s,) for s in sets])
            except _FAILURES as error:
                failed[f"{name}, captured"] = _told(error)
    device_times = bench.timed(graphs, len(sets))
    graphs.clear()
    python_times = called(torch, bench, fine, sets)
    return {"systems": {n: _figures(device_times.get(n), python_times[n], errors[n], worst[n]) for n in fine}, "failed": failed}


def _figures(device: Sequence[float] | None, python: Sequence[float], error: float, worst: float) -> dict[str, Any]:
    made: dict[str, Any] = {"error": float(f"{error:.2e}"), "worst_row": float(f"{worst:.2e}")}
    for name, times in (("device", device), ("call", python)):
        if times:
            made[f"{name}_us"] = round(statistics.median(times) * 1e6, 2)
            made[f"{name}_rounds_us"] = [round(t * 1e6, 2) for t in times]
    return made


def ratios(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Times of the peers whose results are right over ours: of the device, and of calls with offsets of either kind."""
    found: dict[str, dict[str, float]] = {}
    for name, its in systems.items():
        if name.startswith(OURS) or not its["error"] <= TOLERANCE["f16"]:
            continue
        found[name] = {}
        for key, kind, own in (("device", "device_us", OURS), ("call", "call_us", OURS), ("call_host", "call_us", ON_HOST)):
            if kind in its and kind in systems.get(own, {}) and systems[own]["error"] <= TOLERANCE["f16"]:
                found[name][key] = round(its[kind] / systems[own][kind], 4)
    return found


def profile(torch: Any, call: Call, given: Batch, turns: int = 10, activity: str = "CUDA") -> dict[str, list[float]]:
    """Kernel -> microseconds of a call, and how often it is launched in one."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for _ in range(3):
        call(given)
    torch.cuda.synchronize()
    with profiler(activities=[getattr(ProfilerActivity, activity)]) as seen:
        for _ in range(turns):
            call(given)
        torch.cuda.synchronize()
    return {e.key[:120]: [round(e.self_device_time_total / turns, 2), e.count / turns] for e in seen.key_averages()
            if e.self_device_time_total}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Geometric mean and worst of the ratios, by part, peer and kind of time."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for r in records:
        for peer, of in r.get("ratios", {}).items():
            for kind, ratio in of.items():
                groups.setdefault((r["part"], peer, kind), []).append(ratio)
    return "\n".join(f"{part:9} {peer:7} {kind:9} geomean {statistics.geometric_mean(x):.3f}  worst {min(x):.3f}  of {len(x)}"
                     for (part, peer, kind), x in groups.items())


def run(args: argparse.Namespace, form: Form, bench: Bench | None = None, device: str = "cuda") -> list[dict[str, Any]]:
    """All records, written as they come: the encoder of all data sets first. bench: another than of the device."""
    import torch

    import tilewright as tw

    records = Records(args.json)
    add, end = records.add, time.monotonic() + args.budget
    bench = bench or Bench(torch, args.rounds, args.seconds)
    records.begin(torch)
    systems: dict[str, dict[str, Call]] = {}
    for part in args.parts.split(","):
        known = peers(torch, part, form)
        own = ours(tw.load(args.artifacts / file_of(part))) | variants(args.artifacts, part)
        systems[part] = own | {n: known[n] for n in args.peers.split(",") if n in known}
    with torch.no_grad():
        for part, name in ((p, n) for p in systems for n in args.sets.split(",")):
            lengths = first_lengths()[name][: args.batch]
            told = {"part": part, "set": name, "batch": len(lengths), "rows": sum(lengths), "longest": max(lengths)}
            guarded(add, end, args.deadline, {"record": "ragged", **told},
                    partial(_case, torch, bench, part, form, lengths, systems[part], device))
            gc.collect()
        for part, name in ((p, n) for p in systems for n in args.profile.split(",") if n):
            given = batch(torch, part, first_lengths()[name][: args.batch], form, 0, device)
            for system in (OURS, "varlen", "padded"):
                if system in systems[part]:
                    guarded(add, end + 10, args.deadline, {"record": "kernels", "part": part, "set": name, "system": system},
                            partial(_profiled, torch, systems[part][system], given, device))
    return records


def _case(torch: Any, bench: Bench, part: str, form: Form, lengths: Sequence[int], calls: Mapping[str, Call],
          device: str) -> dict[str, Any]:
    found = measured(torch, bench, part, form, lengths, calls, device)
    own = found["systems"].get(OURS, {}).get("device_us")
    rate = None if own is None else round(form.flops(part, lengths) / own * 1e-6, 2)
    return {**found, "ratios": ratios(found["systems"]), "tflops": rate}


def _profiled(torch: Any, call: Call, given: Batch, device: str) -> dict[str, Any]:
    return {"kernels": profile(torch, call, given, activity=device.upper())}


def guarded(add: Callable[[dict[str, Any]], None], end: float, deadline: float, told: dict[str, Any],
            make: Callable[[], dict[str, Any]]) -> None:
    """Add the record that is made before the deadline, or why there is none; none is begun after the end."""
    if time.monotonic() >= end:
        add({**told, "left": True})
        return
    try:
        with within(deadline):
            add({**told, **make()})
    except (TimeoutError, *_FAILURES) as error:
        add({**told, "error": _told(error)})


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    return build_or_run(args.build, lambda folder: build(folder, args.target, Form()), lambda: summary(run(args, Form())))
