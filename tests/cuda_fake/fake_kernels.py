"""Images, kernels, launches and tensor maps of the fake driver."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_fake.fake_state import (
    INVALID_VALUE,
    LAUNCH_FAILED,
    NOT_FOUND,
    FakeError,
    FakeState,
    Library,
    entry,
    machine_code_key,
    put,
)

from tilewright.runtime.emulator import EmulatorError
from tilewright.runtime.emulator.memory.tensor_maps import encode
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.program.tensor_map import TensorMap
from tilewright.runtime.tensor import DType

_INVALID_PTX, _NO_BINARY, _RESOURCES = 218, 209, 701
_PLAIN_SHARED = 48 << 10
_TYPE_NAMES = {"FLOAT16": DType.F16, "BFLOAT16": DType.BF16, "FLOAT32": DType.F32, "UINT8": DType.I8, "INT32": DType.I32,
               "FLOAT64": DType.F64}
_DTYPES = {int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{n}")): d for n, d in _TYPE_NAMES.items()}
_SWIZZLES = {int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{n}")): b
             for n, b in (("NONE", 0), ("32B", 32), ("64B", 64), ("128B", 128))}


def _cluster_of(config: int) -> tuple[int, int, int]:
    """Of a CUlaunchConfig."""
    listed = ctypes.c_uint64.from_address(config + 40).value  # CUlaunchConfig.attrs
    for number in range(driver.CUlaunchConfig(_ptr=config).numAttrs):
        attribute = driver.CUlaunchAttribute(_ptr=listed + 72 * number)
        if attribute.id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            of = attribute.value.clusterDim
            return of.x, of.y, of.z
    return 1, 1, 1


@dataclass(frozen=True)
class KernelWork:
    """A kernel with all that it is launched with. kernel: its handle; program: the emulator's."""

    device: int
    kernel: int
    symbol: str
    program: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[bytes, ...]
    cluster: tuple[int, int, int]
    early: bool = False


_CONDITION = re.compile(rb"\.extern\s+\.func\s+cudaGraphSetConditional\s*\([^)]*\)\s*;")
_SET = b"""
.func cudaGraphSetConditional(.param .b64 tw_handle, .param .b32 tw_value)
{
  .reg .b64 %at;
  .reg .b32 %value;
  ld.param.b64 %at, [tw_handle];
  ld.param.b32 %value, [tw_value];
  st.global.b32 [%at], %value;
  ret;
}
"""


def _linked(image: bytes) -> bytes:
    """PTX with the function that a driver links: a handle is the address of its condition."""
    return _CONDITION.sub(_SET, image)


def _early(config: int) -> bool:
    """May a CUlaunchConfig's launch begin before those in front of it end?"""
    listed = ctypes.c_uint64.from_address(config + 40).value
    wanted = int(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    numbers = range(driver.CUlaunchConfig(_ptr=config).numAttrs)
    found = [driver.CUlaunchAttribute(_ptr=listed + 72 * number) for number in numbers]
    return any(a.id == wanted and a.value.programmaticStreamSerializationAllowed for a in found)


class KernelCalls(FakeState):
    """Kernels run on the emulator of the stream's device."""

    @entry("cuLibraryLoadData", "ppppuppu")
    def library_load(self, out: int, code: int, *_: int | None) -> None:
        self.forbid_in_capture()
        image = ctypes.string_at(code)
        assembled = image[:4] == b"\x7fELF"
        if assembled:
            image = self.assembled.get(machine_code_key(code), b"")
        elif b".version" not in image:
            raise FakeError(_INVALID_PTX)
        if not image:
            raise FakeError(_NO_BINARY)
        self.libraries.append(Library(image, assembled))
        put(out, self.new(self.libraries[-1]))

    def learn(self, image: GpuImage) -> None:
        """Take the machine code of an image for its PTX, which is what runs."""
        if image.cubin and image.ptx:
            kept = ctypes.create_string_buffer(image.cubin)
            self.assembled[machine_code_key(ctypes.addressof(kept))] = image.ptx

    @entry("cuLibraryUnload", "p")
    def library_unload(self, library: int) -> None:
        self.drop(library)

    @entry("cuLibraryGetKernel", "ppp")
    def library_kernel(self, out: int, library: int, name: int) -> None:
        found, symbol = self.object(library, Library), ctypes.string_at(name).decode()
        if not re.search(rf"\.entry\s+{re.escape(symbol)}\b", found.image.decode()):
            raise FakeError(NOT_FOUND)
        put(out, self.new((found, symbol)))

    @entry("cuKernelGetFunction", "pp")
    def kernel_function(self, out: int, kernel: int) -> None:
        self.forbid_in_capture()
        self.object(kernel, tuple)
        put(out, kernel)

    @entry("cuKernelGetLibrary", "pp")
    def kernel_library(self, out: int, kernel: int) -> None:
        library, _ = self.object(kernel, tuple)
        put(out, next(h for h, o in self._objects.items() if o is library))

    @entry("cuKernelGetAttribute", "pipi")
    def kernel_attribute(self, out: int, attribute: int, kernel: int, ordinal: int) -> None:
        self.object(kernel, tuple)
        put(out, {4: 40}.get(attribute, 0), ctypes.c_int)  # 4: registers

    @entry("cuFuncSetAttribute", "pii")
    def function_set_attribute(self, kernel: int, attribute: int, value: int) -> None:
        self.object(kernel, tuple)
        if attribute != int(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) or value > 232448:
            raise FakeError(INVALID_VALUE)
        self.consented[kernel, self.device()] = value

    @entry("cuOccupancyMaxActiveBlocksPerMultiprocessor", "ppiq")
    def occupancy(self, out: int, kernel: int, threads: int, shared: int) -> None:
        put(out, min(2048 // threads, 232448 // max(shared, 1)), ctypes.c_int)

    @entry("cuOccupancyMaxActiveClusters", "ppp")
    def active_clusters(self, out: int, kernel: int, config: int) -> None:
        """One block a multiprocessor, clusters within groups of 18."""
        self.object(kernel, tuple)
        size = math.prod(_cluster_of(config))
        whole, rest = divmod(self.multiprocessors, 18)
        put(out, whole * (18 // size) + rest // size, ctypes.c_int)

    @entry("cuLaunchKernelEx", "pppp")
    def launch(self, config: int, kernel: int, parameters: int, extra: int | None) -> None:
        given = driver.CUlaunchConfig(_ptr=config)
        stream = self.stream(int(given.hStream))
        if self.device() != stream.device:
            raise FakeError(INVALID_VALUE)
        grid, block = (given.gridDimX, given.gridDimY, given.gridDimZ), (given.blockDimX, given.blockDimY, given.blockDimZ)
        work = self.work_of(kernel, grid, block, given.sharedMemBytes, parameters, _cluster_of(config), _early(config))
        self.early.append(work.early)
        self.launches.append((work.symbol, grid, block, given.sharedMemBytes, work.cluster, int(given.hStream)))
        self.do(stream, lambda: self.run_kernel(work))

    def node_work(self, at: int) -> KernelWork:
        """From CUDA_KERNEL_NODE_PARAMS_v2. Clusters of a node without attributes are those that its kernel is compiled for."""
        words = (ctypes.c_uint32 * 7).from_address(at + 8)
        function, parameters = (ctypes.c_uint64.from_address(at + offset).value for offset in (0, 40))
        if ctypes.c_uint64.from_address(at + 48).value or not function:
            raise FakeError(INVALID_VALUE)
        grid, block = (words[0], words[1], words[2]), (words[3], words[4], words[5])
        return self.work_of(function, grid, block, words[6], parameters)

    def work_of(self, kernel: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, parameters: int,
                cluster: tuple[int, int, int] | None = None, early: bool = False) -> KernelWork:
        """A launch on the current device, checked, with the arguments as they are now."""
        library, symbol = self.object(kernel, tuple)
        number = self.device()
        device = self.devices[number]
        if min(*grid, *block) < 1:
            raise FakeError(INVALID_VALUE)
        if shared > self.consented.get((kernel, number), _PLAIN_SHARED):
            raise FakeError(INVALID_VALUE)
        arch = re.search(r"\.target\s+(sm_\w+)", library.image.decode())
        if arch and arch[1].endswith("a") and arch[1] != device.arch:
            raise FakeError(_NO_BINARY)
        if number not in library.modules:
            library.modules[number] = device.load(_linked(library.image))
        program = library.modules[number].kernel(symbol)
        x, y, z = (*program.directives.get("reqnctapercluster", ()), 1, 1, 1)[:3]
        cluster = (x, y, z) if cluster is None else cluster
        if any(g % c for g, c in zip(grid, cluster, strict=True)):
            raise FakeError(INVALID_VALUE)
        places = (ctypes.c_void_p * len(program.parameters)).from_address(parameters) if program.parameters else ()
        args = tuple(ctypes.string_at(at, p.size) for at, p in zip(places, program.parameters, strict=True))
        return KernelWork(number, kernel, symbol, program, grid, block, shared, args, cluster, early)

    def run_kernel(self, work: KernelWork) -> None:
        """On the emulator, now."""
        if self.lost:
            return
        try:
            self.devices[work.device].launch(work.program, work.grid, work.block, work.shared, work.args, work.cluster,
                                             early=work.early)
        except EmulatorError as error:
            self.errors.append(str(error))
            self.lost = LAUNCH_FAILED
        self.clock += 1e-6

    @entry("cuTensorMapEncodeTiled", "piuq" + "pppp" + "iiii")
    def tensor_map(self, out: int, dtype: int, rank: int, address: int, sizes: int, strides: int, box: int, steps: int,
                   interleave: int, swizzle: int, promotion: int, fill: int) -> None:
        def read(at: int, count: int, kind: type[np.generic]) -> tuple[int, ...]:
            data = ctypes.string_at(at, count * np.dtype(kind).itemsize)
            return tuple(int(x) for x in np.frombuffer(data, kind))

        if out % 64 or read(steps, rank, np.uint32) != (1,) * rank or interleave or fill:
            raise FakeError(INVALID_VALUE)
        try:
            wanted = TensorMap(_DTYPES[dtype], address, read(sizes, rank, np.uint64), read(strides, rank - 1, np.uint64),
                               read(box, rank, np.uint32), _SWIZZLES[swizzle])
        except DeviceError:
            raise FakeError(INVALID_VALUE) from None
        ctypes.memmove(out, encode(wanted), 128)
