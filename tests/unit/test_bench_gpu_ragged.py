"""tools.bench.gpu.gpu_ragged without a GPU: its parts in torch on the CPU, at a small size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_on_cpu import OnCpu

import tilewright as tw
from tools.bench.gpu import gpu_ragged, ragged_cases
from tools.bench.gpu.gpu_ragged import ON_HOST, OURS
from tools.bench.gpu.ragged_cases import Batch, Form
from tools.bench.gpu.ragged_peers import packed, peers, reference

torch = pytest.importorskip("torch")
SMALL = Form(32, 2, 64, 24, 8)
LENGTHS = (5, 24, 1, 17)


def loop(q: Any, k: Any, v: Any, starts: Any, *_: Any) -> Any:
    """Attention of variable lengths as a GPU's kernel has it: rows [total, heads, head]."""
    sizes = starts.diff().tolist()
    made = [torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts)).transpose(0, 1)
            for parts in zip(*(x.split(sizes) for x in (q, k, v)), strict=True)]
    return torch.cat(made)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is for GPUs alone, in its place."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", loop)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.parametrize("part", ragged_cases.PARTS)
def test_every_system_gives_what_the_reference_gives(part: str, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = peers(torch, part, SMALL) | {OURS: lambda b: reference(torch, part, SMALL, b).half()}
    with torch.no_grad():
        found = gpu_ragged.measured(torch, OnCpu(torch), part, SMALL, LENGTHS, calls, "cpu")
    assert set(found["failed"]) <= {"flash", "jagged"}, found["failed"]  # a CPU has no such operators of f16
    assert {OURS, "padded", "varlen"} <= set(found["systems"])
    for name, its in found["systems"].items():
        assert its["error"] < 5e-3, name
        assert its["worst_row"] < 2e-2, name
        assert its["call_us"] > 0
    ratios = gpu_ragged.ratios(found["systems"])
    assert set(ratios["varlen"]) == {"device", "call"}
    assert json.dumps(found)


def test_the_graphs_are_the_layer(tmp_path: Path) -> None:
    """The same models for this CPU give the reference, so weights have the right order."""
    for part in ragged_cases.PARTS:
        dims = {"B": tw.Dim(0, SMALL.most), "S": tw.Ragged(0, SMALL.longest, over="B")}
        fn = tw.compile(ragged_cases.graph(part, SMALL), dims)
        given = ragged_cases.batch(torch, part, LENGTHS, SMALL, 3, "cpu")
        wanted = reference(torch, part, SMALL, given)
        for name, call in gpu_ragged.ours(fn).items():
            got = packed(torch, name, given, call(given)).double()
            assert float(torch.linalg.norm(got - wanted).detach() / torch.linalg.norm(wanted).detach()) < 5e-3


def test_a_whole_run_writes_its_records(tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime.cuda import cuda_device

    monkeypatch.setattr(cuda_device, "properties_of", lambda ordinal: {"name": "none"})
    form = Form(32, 2, 64, 512, 32)
    first, _ = ragged_cases.build(tmp_path, "host", form)
    first.with_name("ragged_encoder@other.tw").write_bytes(first.read_bytes())
    out = tmp_path / "out.jsonl"
    args = gpu_ragged.arguments(["--artifacts", str(tmp_path), "--json", str(out), "--sets", "cola,mnli", "--batch", "3",
                                 "--profile", "cola", "--deadline", "600", "--budget", "600"])
    records = gpu_ragged.run(args, form, OnCpu(torch), "cpu")
    assert [json.loads(line) for line in out.read_text().splitlines()] == json.loads(json.dumps(records))
    found = [(r["part"], r["set"]) for r in records if r["record"] == "ragged"]
    assert found == [(p, n) for p in ragged_cases.PARTS for n in ("cola", "mnli")]
    for r in records:
        assert r["record"] != "ragged" or ("error" not in r and {OURS, ON_HOST, "padded"} <= set(r["systems"])), r
    assert [OURS + "@other" in r["systems"] for r in records if r["record"] == "ragged"] == [True, True, False, False]
    assert [r["system"] for r in records if r["record"] == "kernels" and "kernels" in r] == [OURS, "varlen", "padded"] * 2
    assert "encoder   varlen  device" in gpu_ragged.summary(records)


def test_useful_operations_do_not_count_padding() -> None:
    assert SMALL.flops("attention", (2, 3)) == 4 * (4 + 9) * 32
    assert SMALL.flops("encoder", (2, 3)) == SMALL.flops("attention", (2, 3)) + 5 * 2 * (4 * 32 * 32 + 2 * 32 * 64)


def test_ratios_are_to_right_results() -> None:
    def of(device: float, call: float, error: float = 1e-4) -> dict[str, float]:
        return {"device_us": device, "call_us": call, "error": error}

    on_host = {"call_us": 8, "error": 1e-4}
    found = gpu_ragged.ratios({OURS: of(2, 4), ON_HOST: on_host, "padded": of(3, 8), "varlen": of(1, 1, 1.0)})
    assert found == {"padded": {"device": 1.5, "call": 2.0, "call_host": 1.0}}


def test_a_failure_is_a_record() -> None:
    records: list[dict[str, Any]] = []

    def broken() -> dict[str, Any]:
        raise RuntimeError("no kernel image\nmore")

    gpu_ragged.guarded(records.append, float("inf"), 5.0, {"part": "encoder"}, broken)
    gpu_ragged.guarded(records.append, 0.0, 5.0, {"part": "encoder"}, broken)
    assert records == [{"part": "encoder", "error": "RuntimeError: no kernel image"}, {"part": "encoder", "left": True}]
    assert gpu_ragged.summary(records) == ""


def test_a_profile_names_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the record; here the profiler sees no device."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    given = ragged_cases.batch(torch, "attention", LENGTHS, SMALL, 0, "cpu")
    assert isinstance(given, Batch)
    assert gpu_ragged.profile(torch, peers(torch, "attention", SMALL)["padded"], given, 2, "CPU") == {}
