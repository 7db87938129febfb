"""What lies between the products of a training step, and steps of optimizers, for GPUs: ptxas spills nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

import tilewright as tw
from tilewright.compiler.builder import spill_relief
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.builder.ptxas import EntryReport, PtxasReport, assemble_ptx, find_tool
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.target import Target
from tools.bench.partition import optimizers
from tools.bench.partition.bench import Bench, tensors
from tools.bench.partition.training import WORKLOADS

NAMED = {w.name: w for w in WORKLOADS}
ARCHS = ("sm_90a", "sm_80")
DENSE = optimizers.sizes(64, layers=1)
needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed: pip install nvidia-cuda-nvcc")


def spilled(fn: tw.CompiledFunction) -> dict[str, int]:
    kernels = [k for table in fn.program.tables for k in table.kernels]
    assert kernels and all(k.registers > 0 for k in kernels)
    return {f"{k.symbol} {k.config}": k.spills for k in kernels if k.spills}


def built(arch: str) -> dict[str, Any]:
    target = f"cuda:{arch}"
    return {"target": target, "options": {"builder": LocalBuilder(Target.parse(target))}}


@needs_ptxas
@pytest.mark.as_shipped
@pytest.mark.sampled(6)
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NAMED)
def test_workloads_of_training_spill_nothing(name: str, arch: str, element: str) -> None:
    torch: Any = pytest.importorskip("torch")
    workload = NAMED[name]
    module, _, dynamic = Bench(torch, None, workload, 1).exported()
    given = (a.to(getattr(torch, element)) if a.is_floating_point() else a for a in tensors(torch, workload.given, 64))
    assert spilled(tw.compile(module, args=tuple(given), dynamic_shapes=dynamic, **built(arch))) == {}


def optimizer(step: str, sizes: Sequence[tuple[int, ...]], arch: str) -> tw.CompiledFunction:
    """A step over parameters of these extents; new ones, and their moments, lie where they did."""
    torch: Any = pytest.importorskip("torch")
    run, count = optimizers.STEPS[step](torch), len(sizes)

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *flat: Any) -> Any:
            return run(*(flat[n * count : (n + 1) * count] for n in range(4)), *flat[4 * count :])

    flat = (*(torch.zeros(size) for _ in range(4) for size in sizes), torch.tensor(1.2), torch.tensor(1.1))
    program = torch.export.export(Module(), flat)
    names = program.graph_signature.user_inputs
    donated = [n for at in (0, 2, 3) for n in names[at * count : (at + 1) * count]]
    return tw.compile(program, donate=donated, **built(arch))


@needs_ptxas
@pytest.mark.as_shipped
@pytest.mark.sampled(2)
@pytest.mark.parametrize("step,arch", [("lamb", "sm_90a"), ("adamw", "sm_90a"), ("adamw", "sm_80"), ("lamb", "sm_80")])
def test_steps_of_optimizers_spill_nothing(step: str, arch: str) -> None:
    fn = optimizer(step, DENSE, arch)
    assert fn.explain().launches <= 4
    assert any(k.params[-1].kind == "entries" for table in fn.program.tables for k in table.kernels)
    assert spilled(fn) == {}


@needs_ptxas
@pytest.mark.as_shipped
def test_a_kernel_that_spills_gets_more_registers() -> None:
    """Nine sums of parts by sixteen threads each; what was asked for is in the text that drivers compile, too."""
    torch: Any = pytest.importorskip("torch")
    workload = NAMED["bert_layer_backward"]
    module, example, dynamic = Bench(torch, None, workload, 1).exported()
    fn = tw.compile(module, args=example, dynamic_shapes=dynamic, **built("sm_90a"))
    texts = [GpuImage.of(fn._bundle.code[k.object]).ptx.decode() for table in fn.program.tables for k in table.kernels]
    for asked in (text for text in texts if ".minnctapersm" in text):
        free = assemble_ptx(re.sub(r"\n\.minnctapersm \d+", "", asked), "sm_90a")
        assert [e.spills for e in assemble_ptx(asked, "sm_90a").entries.values()] == [0]
        assert [e.spills > 0 for e in free.entries.values()] == [True]


TEXT = """.visible .entry first(
\t.param .u64 first_param_0
)
.reqntid 128
{
\tret;
}
.visible .entry second(
\t.param .u64 second_param_0
)
.reqntid 64, 2
.minnctapersm 4
{
\tret;
}
"""


class Assembler:
    """Of kernels that spill where they have more blocks than `fits`."""

    def __init__(self, fits: int) -> None:
        self.fits, self.asked = fits, list[int]()

    def __call__(self, ptx: str, arch: str) -> PtxasReport:
        head = ptx.partition("{")[0]
        blocks = int(head.rpartition(".minnctapersm ")[2]) if ".minnctapersm" in head else 10
        self.asked.append(blocks)
        over = 8 if blocks > self.fits else 0
        entries = {"first": EntryReport(512 // blocks // 8 * 8, over, over, 0, over), "second": EntryReport(128, 8, 8, 0, 8)}
        return PtxasReport(entries, (), b"")


@pytest.mark.parametrize("fits", [1, 2, 5, 8, 9])
def test_it_gets_as_few_more_as_do(fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_relief, "assemble_ptx", assembler := Assembler(fits))
    text, report = spill_relief.relieved(TEXT, "sm_90a", assembler(TEXT, "sm_90a"))
    assert text == TEXT.replace(".reqntid 128\n", f".reqntid 128\n.minnctapersm {fits}\n")
    assert report.entries["first"].spills == 0 and report.entries["second"].spills == 16
    assert len(assembler.asked) <= 6


def test_what_spills_with_all_registers_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_relief, "assemble_ptx", assembler := Assembler(0))
    before = assembler(TEXT, "sm_90a")
    assert spill_relief.relieved(TEXT, "sm_90a", before) == (TEXT, before)
    assert len(assembler.asked) == 2
