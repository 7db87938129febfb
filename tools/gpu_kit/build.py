"""Builds the kit: where the compiler is, for a GPU elsewhere, into one file that is copied there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.tuning.archive_kernels import archive_kernels
from tools.bench.gpu import cases
from tools.bench.gpu.compare_gpu import chosen
from tools.checkout import ROOT
from tools.gpu_kit import packages
from tools.gpu_kit.forms import neighbours
from tools.gpu_kit.timed_steps import PROFILES

LARGEST = 64 << 20  # bytes of the file
SOURCES = ("tilewright", "tools", "examples", "tests/gpu_operands.py", "tests/gpu", "LICENSE")
ARCHIVES = "dense_3072x768_f16,dense_768x2304_f16,attention_f16,bert_layer_f16"
ARTIFACTS = f"dense_*_f16,square_*_f16,decode_*,softmax_4096_*,layernorm_4096_f16,attention_f16,bert_layer_*,{','.join(PROFILES)}"
START = """#!/bin/sh
# sh kit.sh smoke|replay|sanitize|bench|measure|tuned [--results FOLDER] [--seconds S]
cd "$(dirname "$0")" || exit 1
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -P -m tools.gpu_kit "$@"
"""


@dataclass(frozen=True)
class Plan:
    """What the kit holds. kernels: candidates of an operator. tests: expression of the tests to replay, as for pytest -k.
    logs: folder of logs that `measure` wrote; then the kit is the tuned artifacts alone. wheels: are they brought?"""

    target: str = "cuda:sm_90a"
    kernels: int = 12
    artifacts: str = ARTIFACTS
    archives: str = ARCHIVES
    forms: str = ",".join(PROFILES)
    tests: str = ""
    logs: Path | None = None
    wheels: bool = True


def build(output: Path, plan: Plan, told: Callable[[str], None]) -> int:
    """Write the kit to `output`, a .tar.xz; its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "kit"
        fill(root, plan, told)
        with tarfile.open(output, "w:xz", preset=6) as packed:
            packed.add(root, arcname="kit", filter=_plain)
    size = output.stat().st_size
    told(f"{output}: {size / (1 << 20):.1f} MiB" + ("" if size <= LARGEST else f", more than {LARGEST >> 20}"))
    return size


def fill(root: Path, plan: Plan, told: Callable[[str], None]) -> None:
    """Put what the kit holds into a folder."""
    data, start = root / "data", time.perf_counter()

    def done(what: str) -> None:
        told(f"{time.perf_counter() - start:6.0f} s  {what}")

    if plan.logs is not None:
        _tuned(data / "tuned", plan, done)
        return
    _sources(root)
    (data / "artifacts").mkdir(parents=True)
    for case in chosen(plan.artifacts):
        cases.build(case, data / "artifacts", plan.target)
        done(f"artifact {case.file}")
    for folder, names, count in (("archives", plan.archives, plan.kernels), ("forms", plan.forms, plan.kernels)):
        (data / folder).mkdir()
        for case in chosen(names):
            choose = neighbours if folder == "forms" else None
            archive_kernels(_compilation(case, plan.target), data / folder / case.file, count, choose=choose)
            done(f"{folder} {case.file}")
    command = [sys.executable, "-m", "tests.gpu.record", str(data / "replay"), "--arch", plan.target.partition(":")[2]]
    subprocess.run([*command, "--tests", plan.tests], cwd=ROOT, check=True)
    done("launches to replay")
    if plan.wheels:
        packages.download(root / packages.SITE)
        done("packages")
    (root / "kit.json").write_text(json.dumps({"compiler": fingerprint(), "target": plan.target, "built": time.time()}))


def _compilation(case: cases.Case, target: str) -> Compilation:
    source, dims, options = cases.source_of(case)
    return Compilation(source, dims, full_target(target), CompileOptions.of(options))


def _tuned(folder: Path, plan: Plan, done: Callable[[str], None]) -> None:
    """Artifacts of the cases that logs are of."""
    assert plan.logs is not None
    folder.mkdir(parents=True)
    for case in chosen("*"):
        log = plan.logs / f"{Path(case.file).stem}.log.jsonl"
        if log.exists():
            cases.build(case, folder, plan.target, str(log))
            done(f"tuned {case.file}")


def _sources(root: Path) -> None:
    """The files that git knows, and the command that starts the steps."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *SOURCES], cwd=ROOT, capture_output=True, text=True,
                            check=True)
    for name in listed.stdout.splitlines():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    (root / "kit.sh").write_text(START)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without owners, times and compiled Python, so that equal kits are equal files."""
    if "__pycache__" in member.name:
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member

