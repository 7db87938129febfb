"""ControlRecords: the small kernels between those of a model, loaded on a GPU, as the device table finds them."""

from __future__ import annotations

import ctypes
import weakref

from tilewright.runtime.cuda.arena import Gpu, relaxed
from tilewright.runtime.cuda.cuda_device import load_image
from tilewright.runtime.cuda.cuda_table import RECORD_FIELDS
from tilewright.runtime.cuda.driver import checked, reported, start
from tilewright.runtime.gpu.control_kernels import ControlKernel, condition_ptx, control_ptx, launches, symbol
from tilewright.runtime.program.data_branches import CONDITIONAL_SINCE

_WORD = ctypes.sizeof(ctypes.c_uint64)


class ControlRecords:
    """Made once per program and device.

    Attributes:
        address: of RECORD_FIELDS for each ControlKernel in turn. always: address of a byte that is 1, on the device.
    Raises:
        CudaError: the driver does not load them, or has no memory.
    """

    def __init__(self, gpu: Gpu) -> None:
        driver, device = start(), gpu.device
        version = int(checked(driver.cuDriverGetVersion(), "ask the driver for its version"))
        width = len(RECORD_FIELDS)
        self._words = (ctypes.c_uint64 * (width * len(ControlKernel)))()
        self.address = ctypes.addressof(self._words)
        with gpu.current(), relaxed():
            self._images = [load_image(control_ptx().encode(), device.arch), load_image(condition_ptx().encode(), device.arch)]
            for kernel, launch in launches().items():
                conditional = kernel is ControlKernel.CONDITION
                if conditional and version < CONDITIONAL_SINCE:
                    continue
                found = self._images[conditional].kernel(symbol(kernel))
                self._words[width * kernel + RECORD_FIELDS.index("function")] = found.function(0, device.context)
                self._words[width * kernel + RECORD_FIELDS.index("threads")] = launch.threads
            with reported("take GPU memory for a byte"):
                self._byte = device.core.memory_resource.allocate(1, stream=device.stream)
            self.always = int(self._byte.handle)
            one = (ctypes.c_uint8 * 1)(1)
            checked(driver.cuMemcpyHtoDAsync(self.always, ctypes.addressof(one), 1, device.stream.handle), "set a byte")
            device.sync()
        weakref.finalize(self, self._byte.close, device.stream).atexit = False

    def record(self, kernel: ControlKernel) -> int:
        """Address of one kernel's RECORD_FIELDS."""
        return self.address + _WORD * len(RECORD_FIELDS) * kernel
