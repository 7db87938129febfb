"""Builds the kit: where the compiler is, for a GPU elsewhere, into one file that is copied there."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    logs: folder of logs that `measure` wrote; then the kit is the tuned artifacts alone. wheels: are they brought? work: folder
    where a build that was ended goes on, as long as the compiler is the same; None for one of its own."""

    target: str = "cuda:sm_90a"
    kernels: int = 20
    artifacts: str = ARTIFACTS
    archives: str = ARCHIVES
    forms: str = ",".join(PROFILES)
    tests: str = ""
    logs: Path | None = None
    wheels: bool = True
    work: Path | None = None


def build(output: Path, plan: Plan, told: Callable[[str], None]) -> int:
    """Write the kit to `output`, a .tar.xz; its bytes."""
    with tempfile.TemporaryDirectory() if plan.work is None else contextlib.nullcontext(plan.work) as folder:
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
    steps = _Steps(root, plan, done)
    _sources(root)
    for case in chosen(plan.artifacts):
        steps.file(f"artifacts/{case.file}", partial(_artifact, case, plan))
    for folder, names in (("archives", plan.archives), ("forms", plan.forms)):
        for case in chosen(names):
            steps.file(f"{folder}/{case.file}", partial(_archive, case, plan, folder == "forms"))
    command = [sys.executable, "-m", "tests.gpu.record", "--arch", plan.target.partition(":")[2], "--tests", plan.tests]
    steps.file("replay", lambda to: subprocess.run([*command, str(to)], cwd=ROOT, check=True))
    if plan.wheels:
        steps.file(f"../{packages.SITE}", packages.download)
    (root / "kit.json").write_text(json.dumps({"compiler": fingerprint(), "target": plan.target, "built": time.time()}))


class _Steps:
    """Files and folders of the kit's data, each made aside and then given its name; what is there already, of the same compiler
    and plan, is kept."""

    def __init__(self, root: Path, plan: Plan, done: Callable[[str], None]) -> None:
        self.data, self.done = root / "data", done
        made = repr((fingerprint(), plan))
        mark = root / "made_by"
        if root.exists() and not mark.exists():
            raise SystemExit(f"{root} is no kit under way; name a new folder, or that of a build that was ended")
        if root.exists() and mark.read_text() != made:
            shutil.rmtree(root)
        self.data.mkdir(parents=True, exist_ok=True)
        mark.write_text(made)

    def file(self, name: str, make: Callable[[Path], object]) -> None:
        wanted = (self.data / name).resolve()
        if not wanted.exists():
            wanted.parent.mkdir(exist_ok=True)
            aside = wanted.with_name(f"unfinished_{wanted.name}")
            shutil.rmtree(aside, ignore_errors=True)
            make(aside)
            aside.rename(wanted)
        self.done(name.removeprefix("../"))


def _artifact(case: cases.Case, plan: Plan, to: Path) -> None:
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        cases.build(case, Path(folder), plan.target)
        (Path(folder) / case.file).rename(to)


def _archive(case: cases.Case, plan: Plan, forms: bool, to: Path) -> None:
    archive_kernels(_compilation(case, plan.target), to, plan.kernels, choose=neighbours if forms else None)


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
    if "__pycache__" in member.name or member.name == "kit/made_by" or "/unfinished_" in member.name:
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member

