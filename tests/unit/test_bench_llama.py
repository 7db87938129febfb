"""The bench of a step of a Llama: every system computes it, and writes what it adds to the caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.bench.llama.model import Llama, reference
from tools.bench.llama.steps import measure
from tools.bench.llama.worker import arguments, taken

SMALL, LENGTH = Llama(layers=2, width=64, inner=96, heads=4, shared=2, longest=16), 5
BOUNDS = {"ours-f32": 2e-6, "ours-4": 2e-6, "ours-4-int8": 0.02, "ort-f32": 2e-6, "ort-4": 0.02, "ort-4-fused": 0.02}

pytest.importorskip("onnx")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("system", BOUNDS)
def test_against_float64(system: str) -> None:
    if system.startswith("ort"):
        pytest.importorskip("onnxruntime")
    found = taken(system, SMALL, LENGTH, 1)
    found.call()
    wanted = reference(SMALL, *arguments(SMALL, LENGTH), LENGTH)
    assert np.linalg.norm(found.y.reshape(-1) - wanted.reshape(-1)) <= BOUNDS[system] * np.linalg.norm(wanted)


def test_a_longer_past_tells() -> None:
    """The reference reads caches and positions."""
    short, long = (reference(SMALL, *arguments(SMALL, n), n) for n in (LENGTH, LENGTH + 1))
    assert np.linalg.norm(short - long) > 0.01 * np.linalg.norm(short)


def test_processes_take_turns(tmp_path: Path) -> None:
    """A process of its own takes the steps, and keeps its model."""
    times, errors = measure(SMALL, LENGTH, 1, ["ours-4"], (2, 0.01), tmp_path, check=True)
    assert times["ours-4"] > 0 and errors["ours-4"] < BOUNDS["ours-4"]
    assert [f.name for f in tmp_path.iterdir()] == ["ours-4-1.tw"]
