"""A workload as all systems get it, and what it is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.frontends.imported import ExampleInputs
from tools.bench.partition import inductor
from tools.bench.partition.launched import least, moved, planned
from tools.bench.partition.maths import TorchMaths
from tools.bench.partition.training import Given, Workload
from tools.bench.partition.xla import Xla

MOST = 2048  # rows


def xla_of(threads: int) -> Xla | None:
    try:
        return Xla(threads)
    except ImportError:
        print("jax is not installed: without XLA")
        return None


class Bench:
    """One workload in all systems."""

    def __init__(self, torch: Any, xla: Xla | None, workload: Workload, threads: int) -> None:
        self.torch, self.xla, self.workload, self.threads = torch, xla, workload, threads
        self.function = workload.build(TorchMaths(torch))
        self.theirs = workload.build(xla.maths) if xla else self.function

    def counts(self) -> dict[str, Any]:
        """Launches and bytes of all systems."""
        module, example, dynamic = self.exported()
        ours = tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": self.threads})
        plan = planned(module, ExampleInputs(example, None, dynamic))
        given = tensors(self.torch, self.workload.given, MOST)
        loops = inductor.counted(self.torch, self.function, given)
        xla = self.xla.counted(self.theirs, given) if self.xla else inductor.Counted(0, 0)
        phases = sum(len(list(launch.phases())) for launch in plan.launches())
        return {"workload": self.workload.name, "launches": len(plan.launches()), "phases": phases, "inductor": loops.launches,
                "xla": xla.launches,
                "bytes": moved(plan, ours.program, MOST), "inductor_bytes": loops.bytes, "xla_bytes": xla.bytes,
                "least_bytes": least(ours.program, MOST)}

    def check(self, got: Any, given: Sequence[Any]) -> None:
        """Are results right?"""
        want = self.function(*(a.double() if a.is_floating_point() else a for a in given))
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-3 * max(1.0, float(b.abs().max())))

    def exported(self) -> tuple[Any, tuple[Any, ...], Any]:
        """The function as a module, arguments, and which axes of them are any number of rows."""
        function, given = self.function, self.workload.given
        torch: Any = self.torch

        class Module(torch.nn.Module):  # type: ignore[misc]
            def forward(self, *given: Any) -> Any:
                return function(*given)

        rows = torch.export.Dim("T", min=1, max=MOST)
        dynamic = (tuple({g.size.index("T"): rows} if "T" in g.size else None for g in given),)
        return Module().eval(), tensors(torch, given, 64), dynamic


def tensors(torch: Any, given: Sequence[Given], rows: int) -> tuple[Any, ...]:
    """Arguments of so many rows."""
    torch.manual_seed(rows)
    sizes = [[rows if n == "T" else int(n) for n in g.size] for g in given]
    return tuple(torch.randint(0, g.labels, size) if g.labels else torch.rand(size) for g, size in zip(given, sizes, strict=True))
