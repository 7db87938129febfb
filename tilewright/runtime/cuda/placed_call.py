"""PlacedCall: a whole call of a program whose arguments and results stay where they are on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.cuda.arena import gpu
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.program.program import Program


class PlacedCall:
    """Host arguments of a program without ragged dims, copied to the GPU of its calls with host arrays, and room for its results;
    a result whose buffer is that of an argument lies there.

    Raises:
        DeviceError: the program does not run there, or there is no room.
    """

    def __init__(self, caller: CudaCaller, arguments: Sequence[np.ndarray[Any, Any]]) -> None:
        on = gpu(caller.ordinal)
        self.device, self._caller, self._loaded = on.device, caller, caller.loaded(on)
        self._bound = caller.binder.bind(list(arguments))
        self._held: list[int] = []
        with on.current():
            self._inputs = [self._room(a.nbytes) for a in self._bound.arrays]
            for address, array in zip(self._inputs, self._bound.arrays, strict=True):
                self.device.copy_in(address, array)
            donors, dtypes = _donors(caller.program), caller.results.dtypes
            sizes = [math.prod(s) * d.itemsize for s, d in zip(self._bound.outputs, dtypes, strict=True)]
            self._outputs = [self._inputs[donors[n]] if n in donors else self._room(size) for n, size in enumerate(sizes)]
            self.device.sync()

    def enqueue(self, stream: Any) -> None:
        """One call, in the order of a stream of cuda.core's."""
        bound = self._bound
        status = self._loaded.call(self._inputs, self._outputs, bound.scalars, bound.dims, int(stream.handle))
        self._caller.check(status, bound, self.device.name)

    def close(self) -> None:
        """Give the memory back, once all that was enqueued is done."""
        self.device.sync()
        while self._held:
            self.device.free(self._held.pop())

    def _room(self, size: int) -> int:
        self._held.append(self.device.alloc(size))
        return self._held[-1]


def _donors(program: Program) -> dict[int, int]:
    """Result -> the tensor input, by its number among these, whose buffer it takes."""
    tensors = [i for i, a in enumerate(program.inputs) if a.dims is not None]
    return {output: tensors.index(source) for source, output in program.donated}
