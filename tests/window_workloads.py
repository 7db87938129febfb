"""Windows over images: sizes, and how a kernel over them is checked against NumPy. `kernel_harness` runs the kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from kernel_harness import NUMPY, Dim, at_edge, guarded, load
from matmul_workloads import TOLERANCE

from tilewright.passes.dispatch_creation.outlined import workload_of
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.workload import Workload


@dataclass(frozen=True)
class WindowCase(ABC):
    """An image of height and width `size` and its window. pads: before and after rows, before and after columns. dynamic: are
    height and width local dims?"""

    size: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: int = 1
    element: str = "f32"
    dynamic: bool = False

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the result."""
        found = [(d + a + b - (k - 1) * self.dilation - 1) // self.stride + 1
                 for d, k, a, b in zip(self.size, self.kernel, self.pads[::2], self.pads[1::2], strict=True)]
        return found[0], found[1]

    @property
    def dims(self) -> dict[str, int]:
        return {"H": self.size[0], "W": self.size[1], "OH": self.out[0], "OW": self.out[1]} if self.dynamic else {}

    @property
    def named(self) -> tuple[Dim, ...]:
        """Height and width of the image and of the result, as the types have them."""
        return ("H", "W", "OH", "OW") if self.dynamic else (*self.size, *self.out)

    @property
    @abstractmethod
    def kind(self) -> str:
        """Of the workload."""

    @abstractmethod
    def text(self) -> str: ...

    @abstractmethod
    def operands(self) -> list[np.ndarray]: ...

    @abstractmethod
    def want(self, operands: list[np.ndarray]) -> np.ndarray:
        """In 64 bits."""

    def check(self, config: str, target: str = "host") -> None:
        """In one part and in three, with operands and results at the edge of what may be read and written."""
        operands = self.operands()
        want, results = self.want(operands), []
        for parts in (1, 3):
            got = guarded(want.shape, np.dtype(NUMPY[self.element]))
            load(self.text(), config, target)([at_edge(x) for x in operands], self.dims, [got], parts)
            wide = got.astype(want.dtype)
            assert np.array_equal(np.isnan(wide), np.isnan(want)), (self, config)
            error = np.nan_to_num(np.abs(wide - want)).max(initial=0)
            largest = np.nan_to_num(np.abs(want)).max(initial=0)
            assert error <= 4 * TOLERANCE.get(self.element, 0.0) * max(1.0, largest), (self, config, error)
            results.append(got.tobytes())
        assert results[0] == results[1]

    def workload(self) -> Workload:
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(self.text())
            fn = next(functions(module))
            fn.attributes["tw.kind"], fn.attributes["tw.key"] = ir.StringAttr.get(self.kind), ir.StringAttr.get("key")
            return workload_of(fn, "workload")
