"""Steps of the kit that take times: bench, measure, tuned."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tilewright.runtime.target import Target, TargetKind
from tools.gpu_kit.results import Step

PROFILES = {"square_4096_f16": 4096, "attention_f16": 2048, "softmax_4096_f16": 16384, "decode_4096x4096_f16": 1}  # case -> T
_PROFILE, _CASE = 40.0, 20.0  # most seconds
_FORMS, _PROFILES = 0.2, 0.25  # shares of the step for forms against each other and for profiles


def bench(step: Step) -> None:
    """Our untuned artifacts against torch (cuBLAS, cuDNN) and Triton, forms of kernels against each other, profiles by ncu."""
    profiles = min(_PROFILE * len(PROFILES), step.left * _PROFILES) if shutil.which("ncu") else 0.0
    _compare(step, step.data / "artifacts", step.left * (1 - _FORMS) - profiles)
    _forms(step, profiles)
    for case, at in PROFILES.items():
        _profile(step, case, at)


def measure(step: Step) -> None:
    """Search among the kernels of every archive; the logs go back to where the compiler is."""
    archives = sorted((step.data / "archives").glob("*.tw"))
    for number, archive in enumerate(archives):
        given = ["-m", "tilewright", "measure", str(archive), "--log", str(step.results / f"{archive.stem}.log.jsonl"), "--json",
                 "--seconds", f"{max(1.0, 0.9 * step.left / (len(archives) - number)):.0f}"]
        given += [] if step.target == "cuda" else ["--target", step.target, "--trials", "4"]
        step.told(f"measure {archive.stem}", step.python(*given))


def tuned(step: Step) -> None:
    """Tuned artifacts where the kit has them, else the untuned, in the benchmark; then graphs, streams and the host's cost."""
    if step.target != "cuda":
        step.add({"record": "tuned", "ok": None, "error": f"artifacts run on a CUDA device, not on {step.target}"})
        return
    folder = step.data / "tuned"
    found = sorted(folder.glob("*.tw")) or sorted((step.data / "artifacts").glob("*.tw"))
    step.add({"record": "tuned", "artifacts": [p.name for p in found], "tuned": folder.exists()})
    for artifact in found:
        given = ["-m", "tools.gpu_kit.calls", str(artifact), "--json", str(step.path)]
        step.told(f"calls of {artifact.stem}", step.python(*given, most=60.0))
    if folder.exists():
        _compare(step, folder, step.left)


def _compare(step: Step, artifacts: Path, seconds: float) -> None:
    """tools.bench gpu, with a deadline for each case; its records are in a file of its own."""
    found = step.python("-c", "import torch; assert torch.cuda.is_available()", most=60.0)
    if found.code:
        step.add({"record": "compare", "ok": None, "error": f"torch has no GPU: {found.tail[-200:]}"})
        return
    given = ["-m", "tools.bench", "gpu", "--artifacts", str(artifacts), "--peers", step.peers, "--deadline", str(_CASE),
             "--budget", f"{seconds:.0f}", "--json", str(step.results / f"compare_{artifacts.name}.jsonl")]
    step.told(f"compare {artifacts.name}", step.python(*given, most=seconds + 2 * _CASE))


def _forms(step: Step, kept: float) -> None:
    from tilewright.search.archive.archive_tuning import cases_of
    from tilewright.search.archive.kernel_archive import KernelArchive
    from tilewright.search.runner.gpu_process import gpu_process
    from tools.gpu_kit.forms import compare

    archives = [KernelArchive(p) for p in sorted((step.data / "forms").glob("*.tw"))]
    for number, archive in enumerate(archives):
        until = kept + (step.left - kept) * (len(archives) - number - 1) / (len(archives) - number)
        target = Target.parse(archive.manifest.target if step.target == "cuda" else step.target)
        with gpu_process(target, cases_of(archive)) as runner:
            for record in compare(archive, runner, lambda until=until: step.left - until):
                step.add({**record, "model": archive.path.stem})
                if target.kind is TargetKind.EMULATOR and record["record"] == "form":
                    break  # the way is tried; the rest would take hours


def _profile(step: Step, case: str, at: int) -> None:
    """What ncu says of one launch, as a report to open and as text."""
    tool, artifact = shutil.which("ncu"), step.data / "artifacts" / f"{case}.tw"
    if tool is None or not artifact.exists():
        why = "ncu is not installed" if tool is None else f"the kit has no {artifact.name}"
        step.add({"record": "profile", "case": case, "ok": None, "error": why})
        return
    report = step.results / f"{case}.ncu-rep"
    call = [sys.executable, "-m", "tools.gpu_kit.calls", str(artifact), "--once", str(at)]
    options = ["--set", "full", "--clock-control", "none", "--launch-count", "1", "-f"]
    made = step.run([tool, *options, "-o", str(report.with_suffix("")), *call], _PROFILE)
    step.told(f"profile {case}", made)
    if report.exists():
        text = step.run([tool, "--import", str(report), "--page", "details"], _PROFILE)
        (step.results / f"{case}.ncu.txt").write_text(text.output)

