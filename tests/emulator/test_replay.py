"""The replay form of the GPU tests: written down by the compiler, run on the emulator in processes that have none."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator import test_gpu_codes
from gpu.test_gpu import SWEEPS, WAVES, Sweep
from gpu_harness import build
from tensor_core_workloads import product

from tests.gpu.record import _LAUNCHES, Recorder
from tests.gpu.replay import chosen
from tests.gpu.replay import main as replayed
from tests.gpu.replay_form import ReplayLaunch, ReplayOperand, read, result_of, sketch
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.gpu.gpu_rates import resident
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import Launch, MicroKernel

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch_mlir", "llvmlite", "scipy", "xgboost"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""
FEW = 4  # multiprocessors
NAMES = ("simt split", "rows softmax block", "pointwise", "mma nn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kernels, each at its largest shape that is small, one with tensor maps, gaps and an offset, then those of tests/gpu
    that fill a device twice, for one of four multiprocessors."""
    found = tmp_path_factory.mktemp("replay")
    recorder = Recorder(found, "sm_90a")
    for name in NAMES:
        s = SWEEPS[name]
        assert recorder.sweep(name, s, [max(x for x in s.sizes if np.prod(x) < 60_000)])
    case, dims = product("m k,n k,m n"), {"M": 72, "N": 40, "K": 72}
    recorder.test = "wgmma"
    assert recorder.check(case.text, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=1}", case.inputs, case.results, dims,
                          case.reference, 1, "sm_90a", {0: (0, 8)}, {1: 16})
    assert not recorder.check(case.text, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=1}", case.inputs, case.results,
                              {**dims, "K": 9}, case.reference, 1, "sm_90a")
    recorder.multiprocessors = FEW
    assert all(recorder.sweep(name, s, s.sizes[1:]) for name, s in WAVES.items())
    recorder.finish()
    return found


def test_a_folder_is_run_where_there_is_no_compiler(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    launches, log = read(folder), tmp_path / "results.jsonl"
    assert [x.test for x in launches] == [*NAMES, "wgmma", *WAVES] and chosen(launches, "*", True)[:5] == [0, 1, 2, 3, 4]
    changed = folder / "images" / launches[2].kernel.object
    image = GpuImage.of(changed.read_bytes())
    changed.write_bytes(GpuImage(re.sub(rb"\bmul(\.rn)?\.f32", rb"add\1.f32", image.ptx), image.cubin, image.arch).stored())
    command = [sys.executable, "-m", "tests.gpu.replay", str(folder), "--target", "emulator:sm_90a", "--json", str(log)]
    done = subprocess.run([*command, "--repeats", "1"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["number"] for r in found if not r["ok"]] == [2], done.stdout
    assert "largest error" in found[2]["error"] and f"{len(launches)} launches, 1 failed" in done.stdout


def test_launches_of_codes_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tests are among those that the recorder takes, and go through what it replaces."""
    recorder = Recorder(tmp_path, "sm_90a")
    monkeypatch.setattr(test_gpu_codes, "launched", recorder.check)
    assert _LAUNCHES.search(inspect.getsource(test_gpu_codes.test_pairs_of_narrow_floats))
    weight = test_gpu_codes.PAIRS["4 bits, zero points"]
    test_gpu_codes.check(weight, test_gpu_codes.tensor(weight, 3), 3)
    recorder.finish()
    (launch,) = read(tmp_path)
    assert launch.kernel.family == "gpu_codes" and [o.element for o in launch.inputs] == ["u8", "f16", "u8", "f16"]
    given = [str(tmp_path), "--target", "emulator:sm_90a", "--here", "--number", "0"]
    assert replayed(given) == 0


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


@pytest.mark.parametrize("name", WAVES)
def test_launches_in_waves_fill_the_machine_twice(name: str) -> None:
    """By the tiles of their configuration, where a multiprocessor holds as many blocks as have room with 64 registers each; the
    emulator's where it holds one."""
    s, limits = WAVES[name], GpuLimits.of("sm_90a")
    launch = build(s.case.text, s.config, "sm_90a").kernel.launches()[0]
    together = 1 if launch.persistent else resident(launch.threads, 64, launch.shared_bytes, limits)
    large, few = (_tiles(s, launch, dict(zip(s.names, size, strict=True))) for size in s.sizes)
    assert large >= 2 * limits.multiprocessors * together
    assert few >= 2 * FEW


def _tiles(s: Sweep, launch: Launch, dims: dict[str, int]) -> int:
    config = parse_config(s.config)
    if not launch.persistent:
        return math.prod(launch.blocks(dims))
    assert isinstance(config, WgmmaConfig)
    return math.ceil(dims["M"] / config.bm) * math.ceil(dims["N"] / config.bn)
