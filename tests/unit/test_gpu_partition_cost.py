"""What partitions of GPU targets are predicted by: published figures of the GPU, not those of a CPU."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import passes_of
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.partition.cost import Machine
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits


@pytest.mark.parametrize(("arch", "memory", "launch"), [("sm_80", 2.0e12, 2.2e-6), ("sm_90a", 3.35e12, 1.7e-6)])
def test_time_is_made_of_what_a_gpu_moves(arch: str, memory: float, launch: float) -> None:
    """An A100's 2.0 TB/s and an H100's 3.35; what fits the L2 cache is faster, and one unit has one multiprocessor."""
    limits = GpuLimits.of(arch)
    machine = Machine.gpu(limits)
    assert machine.threads * machine.memory == pytest.approx(memory, rel=0.03)
    assert machine.launch == pytest.approx(launch, rel=0.05)
    large, small = 1e9, float(limits.l2)
    assert machine.seconds(large, 0, 1e6) == pytest.approx(large / memory, rel=0.05)
    assert machine.seconds(small, 0, 1e6) / small < 0.7 * machine.seconds(large, 0, 1e6) / large
    assert machine.seconds(large, 0, 1) > 100 * machine.seconds(large, 0, 1e6)
    assert not machine.together


@pytest.mark.parametrize(("target", "gpu"), [("emulator:sm_80", True), ("cuda:sm_90a", True), ("host", False)])
def test_the_partition_of_a_target_is_predicted_by_its_machine(target: str, gpu: bool) -> None:
    g = ops.Graph()
    x = g.input("x", ["T", 768])
    g.output(ops.exp(x))
    asked = Compilation(g, {"T": (1, 4096)}, full_target(target), tw.CompileOptions())
    with new_context(), ir.Location.unknown():
        passes = passes_of(asked.options, asked.limits)
        at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
        module = ir.Module.parse(ingest(g.module_text(), {"T": (1, 4096)}).text)
        PassPipeline(passes[:at]).run(module)
        fuse = passes[at]
        assert isinstance(fuse, Fuse)
        machine = fuse.plan(main_of(module)[0]).machine
    limits = asked.limits
    assert (isinstance(limits, GpuLimits) and machine == Machine.gpu(GpuLimits.of(limits.arch))) is gpu


def test_an_architecture_that_is_none_is_named() -> None:
    with pytest.raises(OptionError, match="arch='fast'"):
        Fuse(arch="fast")
