"""The replay form of the GPU tests: written down by the compiler, run on the emulator in processes that have none."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu.test_gpu import SWEEPS, WAVES
from gpu_harness import build
from tensor_core_workloads import product

from tests.gpu.record import Recorder
from tests.gpu.replay import chosen
from tests.gpu.replay_form import ReplayLaunch, ReplayOperand, read, result_of, sketch
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.gpu.gpu_rates import resident
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch_mlir", "llvmlite", "scipy", "xgboost"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""
NAMES = ("simt split", "rows softmax block", "pointwise", "mma nn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kernels, each at its largest shape that is small, and one with tensor maps, gaps and an offset."""
    found = tmp_path_factory.mktemp("replay")
    recorder = Recorder(found, "sm_90a")
    for name in NAMES:
        s = SWEEPS[name]
        recorder.test = name
        size = max(x for x in s.sizes if np.prod(x) < 60_000)
        assert recorder.check(s.case.text, s.config, s.case.inputs, s.case.results, dict(zip(s.names, size, strict=True)),
                              s.case.reference)
    case, dims = product("m k,n k,m n"), {"M": 72, "N": 40, "K": 72}
    recorder.test = "wgmma"
    assert recorder.check(case.text, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=1}", case.inputs, case.results, dims,
                          case.reference, 1, "sm_90a", {0: (0, 8)}, {1: 16})
    assert not recorder.check(case.text, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=1}", case.inputs, case.results,
                              {**dims, "K": 9}, case.reference, 1, "sm_90a")
    recorder.finish()
    return found


def test_a_folder_is_run_where_there_is_no_compiler(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    launches, log = read(folder), tmp_path / "results.jsonl"
    assert [x.test for x in launches] == [*NAMES, "wgmma"] and chosen(launches, "*", True) == [0, 1, 2, 3, 4]
    changed = folder / "images" / launches[2].kernel.object
    image = GpuImage.of(changed.read_bytes())
    changed.write_bytes(GpuImage(re.sub(rb"\bmul(\.rn)?\.f32", rb"add\1.f32", image.ptx), image.cubin, image.arch).stored())
    command = [sys.executable, "-m", "tests.gpu.replay", str(folder), "--target", "emulator:sm_90a", "--json", str(log)]
    done = subprocess.run([*command, "--repeats", "1"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["ok"] for r in found] == [True, True, False, True, True], done.stdout
    assert "largest error" in found[2]["error"] and "5 launches, 1 failed" in done.stdout


def test_one_wrong_element_of_many_is_noticed() -> None:
    want = np.random.default_rng(0).standard_normal((70, 90))
    result = result_of(ReplayOperand("f32", want.shape), want, 2e-6)
    assert sketch(want).size * 16 == 70 * 90 + 4
    launch = ReplayLaunch("t", "sm_90a", MicroKernel("k", "", "simt", "", (), ("1", "1", "1")), {}, (), (result,))
    assert not launch.wrong([want.astype(np.float32)])
    for value in (want[69, 89] + 1e-3, np.nan, np.inf):
        wrong = want.astype(np.float32)
        wrong[69, 89] = value
        assert launch.wrong([wrong])


@pytest.mark.parametrize("name", ["wgmma in turn", "wgmma in parts", "mma", "gemv", "rows"])
def test_launches_in_waves_fill_the_machine_twice(name: str) -> None:
    """By the tiles of their configuration, where a multiprocessor holds as many blocks as have room with 64 registers each."""
    s, limits = WAVES[name], GpuLimits.of("sm_90a")
    kernel = build(s.case.text, s.config, "sm_90a").kernel
    dims, config = dict(zip(s.names, s.sizes[0], strict=True)), parse_config(s.config)
    launch = kernel.launches()[0]
    tiles = math.prod(launch.blocks(dims))
    if launch.persistent:
        assert isinstance(config, WgmmaConfig)
        tiles = math.ceil(dims["M"] / config.bm) * math.ceil(dims["N"] / config.bn)
    together = 1 if launch.persistent else resident(launch.threads, 64, launch.shared_bytes, limits)
    assert tiles >= 2 * limits.multiprocessors * together
