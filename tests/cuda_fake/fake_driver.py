"""A CUDA driver whose GPUs are emulators: the C functions of libcuda, behind cuda.bindings and cuda.core.

Work is queued on its stream and runs only when something waits for it, so that a missing order between streams shows. Time is
counted, one microsecond a launch.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from cuda.bindings import driver
from cuda_fake.fake_graphs import CONDITIONAL_SINCE, GraphCalls
from cuda_fake.fake_library import FakeLibrary, write_library
from cuda_fake.fake_memory import MemoryCalls
from cuda_fake.fake_state import CONTEXT_BASE, INVALID_VALUE, FakeError, entry, put
from cuda_fake.fake_streams import StreamCalls

from tilewright.runtime.gpu.gpu_image import GpuImage

_SINCE = {"cuGraphConditionalHandleCreate": CONDITIONAL_SINCE, "cuGraphAddNode": 12020}  # driver versions
_LOADERS = ("cuGetProcAddress_v2", "cuGetProcAddress")
_ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024, "WARP_SIZE": 32, "L2_CACHE_SIZE": 1 << 16,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "UNIFIED_ADDRESSING": 1,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448, "MEMORY_POOLS_SUPPORTED": 1,
}


class FakeDriver(StreamCalls, MemoryCalls, GraphCalls):
    """`install` makes it the libcuda.so.1 of this process; that must come before the first use of CUDA."""

    def install(self) -> FakeDriver:
        with tempfile.TemporaryDirectory() as folder:  # what is loaded needs no file
            path = Path(folder) / "libcuda.so.1"
            functions = (*_LOADERS, *sorted(set(self.entries) - set(_LOADERS)))
            write_library(path, path.name, functions)
            self.library = FakeLibrary(path, functions)
        for name in _LOADERS:
            self.library.put(name, self.callback("cuGetProcAddress"))
        of = GpuImage.of

        def learned(stored: bytes) -> GpuImage:
            image = of(stored)
            self.learn(image)
            return image

        GpuImage.of = learned  # type: ignore[method-assign]
        return self

    def _function(self, name: str) -> int:
        """Its address. What the driver does not know is never called by destructors."""
        callback = self.callback(name)
        return self.library.put(name, callback) if name in self.entries else callback

    @entry("cuGetProcAddress", "ppiqp")
    def get_proc_address(self, name: int, out: int, version: int, flags: int, status: int | None) -> None:
        wanted = ctypes.string_at(name).decode()
        put(out, self._function(wanted) if max(version, _SINCE.get(wanted, 0)) <= self.version else 0)
        put(status, 0, ctypes.c_int)

    @entry("cuInit", "u")
    def init(self, flags: int) -> None:
        pass

    @entry("cuDriverGetVersion", "p")
    def driver_version(self, out: int) -> None:
        put(out, self.version, ctypes.c_int)

    @entry("cuGetErrorName", "ip")
    def error_name(self, code: int, out: int) -> None:
        put(out, self._text(driver.CUresult(code).name))

    @entry("cuGetErrorString", "ip")
    def error_string(self, code: int, out: int) -> None:
        put(out, self._text("a fake error"))

    def _text(self, text: str) -> int:
        kept = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(kept)

    # devices

    @entry("cuDeviceGetCount", "p")
    def device_count(self, out: int) -> None:
        put(out, len(self.devices), ctypes.c_int)

    @entry("cuDeviceGet", "pi")
    def device_get(self, out: int, ordinal: int) -> None:
        put(out, self._ordinal(ordinal), ctypes.c_int)

    @entry("cuDeviceGetName", "pii")
    def device_name(self, out: int, size: int, ordinal: int) -> None:
        text = f"fake {self.archs[self._ordinal(ordinal)]}".encode()[: size - 1] + b"\0"
        ctypes.memmove(out, text, len(text))

    @entry("cuDeviceTotalMem", "pi")
    def device_memory(self, out: int, ordinal: int) -> None:
        put(out, 1 << 36)

    @entry("cuDeviceGetUuid", "pi")
    def device_uuid(self, out: int, ordinal: int) -> None:
        ctypes.memset(out, ordinal + 1, 16)

    @entry("cuDeviceGetAttribute", "pii")
    def device_attribute(self, out: int, attribute: int, ordinal: int) -> None:
        name = driver.CUdevice_attribute(attribute).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        digits = "".join(c for c in self.archs[self._ordinal(ordinal)] if c.isdigit())
        of_arch = {"MULTIPROCESSOR_COUNT": self.multiprocessors, "COMPUTE_CAPABILITY_MAJOR": int(digits[:-1]),
                   "COMPUTE_CAPABILITY_MINOR": int(digits[-1])}
        put(out, {**_ATTRIBUTES, **of_arch}.get(name, 0), ctypes.c_int)

    def _ordinal(self, ordinal: int) -> int:
        if not 0 <= ordinal < len(self.devices):
            raise FakeError(INVALID_VALUE)
        return ordinal

    # contexts

    @entry("cuDevicePrimaryCtxRetain", "pi")
    def primary_retain(self, out: int, ordinal: int) -> None:
        put(out, CONTEXT_BASE + self._ordinal(ordinal))

    @entry("cuDevicePrimaryCtxRelease", "i")
    def primary_release(self, ordinal: int) -> None:
        pass

    @entry("cuCtxGetCurrent", "p")
    def context_current(self, out: int) -> None:
        stack = self.contexts()
        put(out, stack[-1] if stack else 0)

    @entry("cuCtxSetCurrent", "p")
    def context_set(self, context: int | None) -> None:
        stack = self.contexts()
        stack[-1:] = [context] if context else []

    @entry("cuCtxPushCurrent", "p")
    def context_push(self, context: int) -> None:
        self.contexts().append(context)

    @entry("cuCtxPopCurrent", "p")
    def context_pop(self, out: int | None) -> None:
        put(out, self.contexts().pop())

    @entry("cuCtxGetDevice", "p")
    def context_device(self, out: int) -> None:
        put(out, self.device(), ctypes.c_int)

    @entry("cuCtxGetStreamPriorityRange", "pp")
    def priorities(self, least: int | None, greatest: int | None) -> None:
        put(least, 0, ctypes.c_int)
        put(greatest, 0, ctypes.c_int)
