from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from search_surfaces import dense

from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.limits import HostLimits
from tilewright.search.protocols import KernelAt
from tilewright.search.runner.constant_copies import WARM, Found, Weights
from tilewright.search.runner.host_runner import HostRunner, operands


def test_operands_lie_on_cache_lines_at_different_places_of_a_page() -> None:
    for rows in (1, 7, 64, 97):
        arrays = operands(dense(96, 40), {"d0": rows}, np.random.default_rng(0))
        places = [a.ctypes.data % 4096 for a in arrays]
        assert all(p % 64 == 0 for p in places) and len(set(places)) == len(arrays)
        assert [a.shape for a in arrays] == [(rows, 40), (40, 96), (rows, 96)]
        assert np.array_equal(arrays[0], operands(dense(96, 40), {"d0": rows}, np.random.default_rng(0))[0])


def test_weights_are_found_where_a_model_leaves_them() -> None:
    limits = HostLimits(l2=1 << 19, l3=1 << 24)
    assert Weights.of(1 << 18, limits) is WARM and WARM.copies(1 << 20) == 1
    shared, far = Weights.of(6 << 20, limits), Weights.of(1 << 28, limits)
    assert shared == Weights(Found.SHARED, 6 << 20) and far == Weights(Found.MEMORY, 2 << 24)
    assert far.copies(3 << 20) == 11 and far.copies(1 << 26) == 1 and far.copies(0) == 1
    assert [Weights.parse(w.argument()) for w in (WARM, shared, far)] == [WARM, shared, far]


def test_launchers_of_a_workload_take_turns_with_its_copies() -> None:
    plain = dense(96, 40)
    weights = replace(plain.inputs[1], constant=True)
    workload = replace(plain, inputs=(plain.inputs[0], weights))
    runner = HostRunner(HostDevice(), weights=Weights(Found.MEMORY, 4 * 40 * 96 * 4))
    arrays = operands(workload, {"d0": 3}, np.random.default_rng(0))
    sets, turn = runner._with_copies(workload, arrays)
    others, same = runner._with_copies(workload, operands(workload, {"d0": 9}, np.random.default_rng(0)))
    assert len(sets) == 4 and turn is same and [next(turn) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    assert len({s[1].ctypes.data for s in sets}) == 4 and all(s[0] is arrays[0] for s in sets)
    assert all(a[1] is b[1] for a, b in zip(sets, others, strict=True))
    assert all(np.array_equal(s[1], arrays[1]) and s[1].strides == arrays[1].strides for s in sets)
    assert runner._with_copies(plain, arrays)[0] == [arrays]


def test_each_time_of_rounds_has_operands_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where operands lie makes a difference that rounds of one time do not show."""
    runner, workload, used = HostRunner(HostDevice()), dense(96, 40), list[np.ndarray]()

    def launcher(workload: Any, kernel: Any, code: bytes, dims: Any, threads: int = 1) -> Callable[[], None]:
        used.append(runner._arrays(workload, dims)[0])
        return lambda: None

    monkeypatch.setattr(runner, "launcher", launcher)
    kernel: Any = SimpleNamespace(legal=lambda symbols: True, config="k")
    asked = [KernelAt(kernel, code, (("d0", 3),), 1) for code in (b"a", b"b")]
    for within in (0, 16):
        assert runner.run_in_turns(workload, asked, 3, within=within).rounds
    first, second, third, fourth = used
    assert first is second and third is fourth and first is not third and np.array_equal(first, third)
    assert (first.ctypes.data % 64, third.ctypes.data % 64) == (0, 16)


def test_inputs_lie_within_a_line_where_that_is_asked_for() -> None:
    plain = dense(96, 40)
    workload = replace(plain, inputs=(plain.inputs[0], replace(plain.inputs[1], constant=True)))
    lain = [a.ctypes.data % 64 for a in operands(workload, {"d0": 3}, np.random.default_rng(0), within=16)]
    assert lain == [16, 0, 0]  # constants and results are this package's own
