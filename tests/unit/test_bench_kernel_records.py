"""Kernel times of results/ become a log of the operators that they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.runtime.errors import OptionError
from tilewright.search.database.records import TuningLog
from tilewright.search.prior.train import groups_of
from tools.bench.gpu.kernel_records import main, records_of

RUN = {"record": "run", "commit": "1", "device": "NVIDIA H200, driver 1", "says": ""}
GELU = {"record": "case", "case": "gelu_24_f32", "kind": "gelu", "precision": "f32", "inputs": [["T", 24]], "largest": 64}
RESULTS = Path(__file__).resolve().parents[2] / "tools/bench/results"


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_last_time_of_a_kernel_counts_at_the_extent_of_its_operator(tmp_path: Path) -> None:
    slow = {"case": "gelu_24_f32", "config": "gpu_pointwise{vec=4}", "T": 8, "us": 9.0}
    first = written(tmp_path / "first.jsonl", RUN, GELU, slow, slow | {"T": 16})
    second = written(tmp_path / "second.jsonl", RUN, GELU, slow | {"us": 2.0, "registers": 20, "shared": 64})
    log = str(tmp_path / "made.jsonl")
    assert main([str(first), str(second), "--log", log]) == 0
    made = TuningLog(Path(log))
    (workload,) = made.workloads.values()
    found = {r.dims["d0"]: r for r in made.records}
    assert found.keys() == {8 * 24, 16 * 24} and workload.dims == ("d0",)  # rows and columns are one dim of an elementwise kernel
    assert found[8 * 24].seconds == pytest.approx((2e-6,)) and found[16 * 24].seconds == pytest.approx((9e-6,))
    assert found[8 * 24].built is not None and found[8 * 24].built.registers == 20 and found[16 * 24].built is None
    assert found[8 * 24].device == "cuda:sm_90a NVIDIA H200, 132 multiprocessors"
    assert found[8 * 24].family == "gpu_pointwise" and found[8 * 24].shape == (("d0", 8 * 24),)


def test_files_that_do_not_say_what_they_are_of_are_refused(tmp_path: Path) -> None:
    time = {"case": "gelu_24_f32", "config": "gpu_pointwise", "T": 8, "us": 9.0}
    with pytest.raises(OptionError, match="wanted a line of the run"):
        list(records_of(written(tmp_path / "none.jsonl", GELU, time)))
    with pytest.raises(OptionError, match="case 'gelu_24_f32': neither described"):
        list(records_of(written(tmp_path / "no_case.jsonl", RUN, time)))


def test_every_kernel_of_the_h200s_second_records_is_still_legal(tmp_path: Path) -> None:
    log = tmp_path / "made.jsonl"
    assert main([str(RESULTS / "h200-kernels-2.jsonl"), "--log", str(log)]) == 0
    made = TuningLog(log)
    assert not made.skipped and len(made.workloads) == 27
    groups = groups_of([made], None)  # type: ignore[arg-type]  # a host's limits, of which no GPU needs any
    taken = {family: sum(len(g.samples) for g in found) for family, found in groups.items()}
    assert taken == {family: sum(r.family == family for r in made.records) for family in taken}
    assert taken.keys() >= {"wgmma_attention", "gpu_rows", "gpu_pointwise"} and sum(taken.values()) == len(made)
