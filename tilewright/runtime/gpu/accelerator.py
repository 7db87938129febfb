"""Accelerator: what GpuCaller and the runners of kernels need of a GPU or its emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.program.kernel import Launch
from tilewright.runtime.program.tensor_map import TensorMap


class Accelerator(Protocol):
    """Memory, images and launches of a GPU or its emulator. Addresses are integers; launches finish in order."""

    name: str

    def alloc(self, size: int, /) -> int: ...

    def free(self, address: int, /) -> None: ...

    def copy_in(self, address: int, array: Any, /) -> None: ...

    def copy_out(self, address: int, shape: Sequence[int], dtype: Any, /) -> np.ndarray[Any, Any]: ...

    def copy_within(self, target: int, source: int, size: int, /) -> None: ...

    def load(self, image: bytes, /) -> Any: ...

    def tensor_map(self, wanted: TensorMap, /) -> bytes: ...

    def grid(self, kernel: Any, step: Launch, blocks: tuple[int, int, int], /) -> tuple[int, int, int]: ...

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int,
               args: Sequence[int | bytes], cluster: tuple[int, int, int], /, *, early: bool = False) -> Any: ...
