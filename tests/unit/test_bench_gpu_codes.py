"""tools.bench.gpu-codes without a GPU: weights of the cases, artifacts, operands of the peers, records."""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.bench_on_cpu import OnCpu
from tools.bench.gpu import codes_cases, codes_forms, compare_gpu_codes
from tools.bench.gpu.codes_cases import CodesCase, build, cases, unpacked
from tools.bench.gpu.codes_peers import Operands, Peers
from tools.bench.gpu.compare_gpu import OURS

SMALL = (CodesCase(256, 64, 4, 32, points=(1, 3)), CodesCase(256, 64, 4, 128, zero=True, points=(1, 3)),
         CodesCase(256, 64, 2, points=(3,)), CodesCase(256, 64, 8, points=(1,)),
         CodesCase(128, 64, 4, 64, element="bf16", points=(1,)),
         CodesCase(256, 64, 8, 0, element="f32", entries=256, points=(3,)))


def in_torch(torch: Any, fn: tw.CompiledFunction) -> Callable[..., Any]:
    """On the emulator, of arrays; bf16 as NumPy has it goes by its bits."""
    def call(x: Any) -> Any:
        import ml_dtypes

        narrow = x.dtype == torch.bfloat16
        found = fn(x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if narrow else x.numpy())
        array = np.asarray(found)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if narrow else torch.from_numpy(array)
    return call


def test_cases_are_distinct_and_fit_their_kernels() -> None:
    found = list(cases())
    assert len({c.file for c in found}) == len(found)
    assert {(c.k, c.n) for c in found if c.bits == 4} == {(4096, 4096), (4096, 14336), (14336, 4096)}
    assert {c.group for c in found} >= {32, 128} and any(c.zero for c in found) and any(c.entries for c in found)
    big = found[0]
    assert big.weight_bytes == big.n * big.k // 2 + big.n * big.k // 128 * 2 and big.flops(3) == 6 * big.n * big.k


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.file)
def test_every_system_gives_the_product_by_the_decoded_weights(case: CodesCase, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours from a packed artifact on the emulator, torch's kernels on its CPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(codes_cases, "cases", lambda: SMALL)
    monkeypatch.setattr(compare_gpu_codes, "cases", lambda: SMALL)
    build(case, tmp_path, "emulator:sm_90a")
    assert (tmp_path / case.file).stat().st_size < unpacked(case, tmp_path, tmp_path).stat().st_size
    bench = compare_gpu_codes.CodesBench(OnCpu(torch), lambda file: in_torch(torch, tw.load(file)), 100.0, "cpu")
    found: list[dict[str, Any]] = []
    args = argparse.Namespace(filter=f"{case.name}_{case.element}", artifacts=tmp_path, peers="torch,torch int4", deadline=500.0)
    compare_gpu_codes.measure(args, bench, found.append, float("inf"))
    assert [r.get("M") for r in found] == list(case.points), found
    for r in found:
        assert not r["wrong"] and not r["failed"] and None not in (r["gb_s"], r["share_of_copy"]), r
        assert set(r["systems"]) == {OURS, "torch", *(["torch int4"] if case.bits == 4 else [])}


def test_no_rows_begin_after_the_budget_and_a_failure_is_a_record(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    case = CodesCase(4096, 4096, 4)
    (tmp_path / case.file).write_bytes(lzma.compress(b"no artifact"))

    def refused(*_: Any) -> Any:
        raise RuntimeError("no memory")

    args = argparse.Namespace(filter=f"{case.name}_f16", artifacts=tmp_path, peers="torch", deadline=500.0)
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))
    bench: Any = SimpleNamespace(case=refused, bench=SimpleNamespace(torch=torch))
    compare_gpu_codes.measure(args, bench, found.append, 0.0)
    compare_gpu_codes.measure(args, bench, found.append, float("inf"))
    assert [r["record"] for r in found] == ["left", "late"]


def test_a_peer_that_has_no_such_kernel_is_named() -> None:
    torch = pytest.importorskip("torch")
    operands = Operands(torch, CodesCase(256, 64, 4, 32), "cpu")

    def fails() -> Any:
        raise RuntimeError("no kernel\nof it")

    def no_form(sets: Any) -> Any:
        return min([])

    operands.tiled, operands.paired = fails, lambda: None  # type: ignore[method-assign]
    peers = Peers(operands, 2, lambda call, sets: 0.0)
    peers._by_triton = no_form  # type: ignore[method-assign]
    systems: Mapping[str, Any] = peers.systems(operands.x(2))
    assert peers.failed["torch int4"] == "RuntimeError: no kernel" and peers.failed["triton"].startswith("ValueError")
    assert list(systems) == ["torch"] and len(systems["torch"][1]) == 2


def test_forms_are_compared_with_what_runs_untuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulator, whose clock is a model: the defaults of one row and of 16, then what differs in an option."""
    small = CodesCase(256, 64, 4)
    monkeypatch.setattr(codes_forms, "CASES", (small,))
    assert codes_forms.main(["--build", str(tmp_path), "--kernels", "6"]) == 0
    log = tmp_path / "out.jsonl"
    given = ["--artifacts", str(tmp_path), "--target", "emulator:sm_90a", "--json", str(log)]
    assert codes_forms.main([*given, "--budget", "500"]) == 0
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert {r["record"] for r in found} == {"form"} and {r["M"] for r in found} == {1, 8, 16}
    assert not [r for r in found if "error" in r], found
    for rows in (1, 8, 16):
        first, *others = (r for r in found if r["M"] == rows)
        assert first["ratio"] == 1.0 and not first["changed"] and all(r["changed"] and r["us"] > 0 for r in others)
    log.unlink()
    assert codes_forms.main([*given, "--budget", "0"]) == 0
    assert {json.loads(line)["record"] for line in log.read_text().splitlines()} == {"left"}


def test_bad_usage() -> None:
    for argv in ([], ["--build", "a", "--artifacts", "b"]):
        for module in (compare_gpu_codes, codes_forms):
            with pytest.raises(SystemExit):
                module.arguments(argv)
