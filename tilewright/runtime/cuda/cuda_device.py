"""CudaDevice: one GPU by cuda.core: its limits, memory, images, and single launches in order.

Programs launch through native code instead (runtime/cuda/loaded.py); this is for measuring, tests and copies.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.cuda import abi
from tilewright.runtime.cuda.driver import CudaError, address, checked, device_count, driver_version, fail, reported, start
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import Launch
from tilewright.runtime.program.tensor_map import MAP_BYTES, TensorMap

_OTHER_MACHINE_CODE = (200, 209, 222)  # CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU, _UNSUPPORTED_PTX_VERSION
PLAIN_SHARED = 48 << 10  # dynamic bytes of a block that need no leave


@dataclass(frozen=True)
class Resources:
    """What the driver says of a kernel: registers and bytes of local memory of a thread, static shared bytes of a block, blocks
    that a multiprocessor holds at once."""

    registers: int
    local_bytes: int
    static_shared: int
    resident_blocks: int


@dataclass(frozen=True)
class ImageKernel:
    """A kernel of an Image, which it keeps loaded; what is known of it goes with the image.

    core: cuda.core's Kernel. functions: context -> CUfunction there and the dynamic shared bytes that it may take.
    """

    core: Any
    functions: dict[int, tuple[int, int]] = field(default_factory=dict)

    def function(self, shared_bytes: int, context: int) -> int:
        """The CUfunction in a context, which is the current one, with leave for so much dynamic shared memory."""
        found, allowed = self.functions.get(context, (0, -1))
        if shared_bytes > allowed:
            found = function_of(int(self.core.handle), shared_bytes)
            self.functions[context] = (found, max(shared_bytes, PLAIN_SHARED))
        return found


@dataclass(frozen=True)
class Image:
    """Code that is loaded when a kernel is first asked for; PTX is compiled by the driver then.

    codes: cuda.core's, in the order to try: machine code of a later toolkit than the driver's is refused, and its PTX tried.
    kernels: those that were asked for, by name.
    """

    codes: tuple[Any, ...]
    kernels: dict[str, ImageKernel] = field(default_factory=dict)

    def kernel(self, symbol: str) -> ImageKernel:
        """The kernel of this name. CudaError when the image has none or cannot be loaded."""
        found = self.kernels.get(symbol)
        return found or self.kernels.setdefault(symbol, ImageKernel(self._load(symbol)))

    def _load(self, symbol: str) -> Any:
        for code in self.codes:
            try:
                with reported(f"load the kernel {symbol}"):
                    return code.get_kernel(symbol)
            except CudaError as error:
                if code is self.codes[-1] or error.code not in _OTHER_MACHINE_CODE:
                    raise
        raise CudaError(f"cannot load the kernel {symbol}: its image holds no code")


class CudaDevice:
    """A GPU. Its primary context becomes the thread's current one. Launches and copies are in the order of one stream.

    Attributes:
        arch: as in `sm_90a`. name: as in `cuda:sm_90a`. core: cuda.core's Device. stream: cuda.core's Stream.
    Raises:
        DeviceError: there is no driver, it is too old, or there is no such GPU.
    """

    def __init__(self, ordinal: int = 0) -> None:
        driver = start()
        from cuda.core import Device

        if not 0 <= ordinal < device_count():
            raise DeviceError(f"there is no CUDA device {ordinal}; this process sees {device_count()}")
        self.ordinal = ordinal
        self.core = Device(ordinal)
        with reported(f"use CUDA device {ordinal}"):
            self.core.set_current()
            self.stream = self.core.create_stream()
        self.context = int(checked(driver.cuCtxGetCurrent(), "ask for the context"))
        self.arch = arch_of(ordinal)
        self.name = f"cuda:{self.arch}"
        self._driver = driver
        self._launch = abi.LAUNCH(address("cuLaunchKernelEx"))
        self._encode: Any = None
        self._held: dict[int, Any] = {}

    def limits(self) -> GpuLimits:
        return limits_of(self.ordinal)

    def properties(self) -> Mapping[str, int | str]:
        """What `tilewright targets` shows."""
        return properties_of(self.ordinal)

    # Memory

    def alloc(self, size: int) -> int:
        """Device address of `size` bytes, aligned to 256."""
        with reported(f"take {size} bytes of GPU memory"):
            buffer = self.core.allocate(max(size, 1), stream=self.stream)
        self._held[int(buffer.handle)] = buffer
        return int(buffer.handle)

    def free(self, address: int) -> None:
        self._held.pop(address).close(self.stream)

    def close(self) -> None:
        """Free what is left."""
        for held in list(self._held):
            self.free(held)

    def copy_in(self, address: int, array: Any) -> None:
        """Copy an array's bytes, in C order, to device memory."""
        dense = np.ascontiguousarray(array)
        if dense.nbytes:
            stream = self.stream.handle
            checked(self._driver.cuMemcpyHtoDAsync(address, dense.ctypes.data, dense.nbytes, stream), "copy to the GPU")

    def copy_out(self, address: int, shape: Sequence[int] | int, dtype: Any, name: str = "memory") -> np.ndarray[Any, Any]:
        """A new array of device bytes, after all earlier work."""
        found = np.empty(shape, dtype)
        if found.nbytes:
            stream = self.stream.handle
            checked(self._driver.cuMemcpyDtoHAsync(found.ctypes.data, address, found.nbytes, stream), f"copy {name} from the GPU")
        self.sync()
        return found

    def copy_within(self, target: int, source: int, size: int) -> None:
        if size:
            checked(self._driver.cuMemcpyDtoDAsync(target, source, size, self.stream.handle), "copy on the GPU")

    def sync(self) -> None:
        """Wait for all earlier work; its errors are raised here."""
        with reported("finish the work given to the GPU"):
            self.stream.sync()

    # Kernels

    def load(self, image: bytes) -> Image:
        """A GpuImage as it is stored, PTX or machine code; it is loaded when a kernel of it is asked for."""
        return load_image(image, self.arch)

    def launch(self, kernel: ImageKernel, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int,
               args: Sequence[int | bytes], cluster: tuple[int, int, int] = (1, 1, 1), stream: Any = None, *,
               early: bool = False) -> None:
        """Enqueue a kernel of an Image.

        args: one per parameter: a word, or the bytes of a tensor map. grid: in blocks. stream: cuda.core's; None is the device's.
        early: a kernel that waits itself for what was launched before may be, and is launched like any other here.
        """
        function = kernel.function(shared_bytes, self.context)
        words = [_word(a) for a in args]
        parameters = (ctypes.c_void_p * max(1, len(words)))(*(ctypes.addressof(w) for w in words))
        config = _configured(grid, block, shared_bytes, cluster, int((stream or self.stream).handle))
        code = self._launch(ctypes.addressof(config), function, ctypes.addressof(parameters), None)
        if code:
            fail(code, f"launch a kernel of {grid} blocks of {block} threads with {shared_bytes} bytes of shared memory")

    def grid(self, kernel: ImageKernel, step: Launch, blocks: tuple[int, int, int]) -> tuple[int, int, int]:
        """The blocks of a launch: of one whose blocks take work in turn no more than the device holds at once."""
        if not step.persistent:
            return blocks
        most = blocks_at_once(kernel.function(step.shared_bytes, self.context), step, self.ordinal)
        return min(blocks[0], most), *blocks[1:]

    def tensor_map(self, wanted: TensorMap) -> bytes:
        """The driver's 128 bytes, which a kernel takes as a parameter."""
        if self._encode is None:
            types = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4)
            self._encode = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address("cuTensorMapEncodeTiled"))
        rank = len(wanted.sizes)
        room = (ctypes.c_uint8 * (MAP_BYTES + 64))()
        target = ctypes.addressof(room) + -ctypes.addressof(room) % 64
        sizes, strides = (ctypes.c_uint64 * rank)(*wanted.sizes), (ctypes.c_uint64 * max(1, rank - 1))(*wanted.strides)
        box, steps = (ctypes.c_uint32 * rank)(*wanted.box), (ctypes.c_uint32 * rank)(*[1] * rank)
        code = self._encode(target, abi.map_type(wanted.dtype), rank, wanted.address, sizes, strides, box, steps, 0,
                            abi.SWIZZLES[wanted.swizzle], abi.PROMOTE_L2_128, 0)
        if code:
            fail(code, f"describe a tensor of {wanted.sizes} elements in boxes of {wanted.box}")
        return ctypes.string_at(target, MAP_BYTES)

    def resources(self, kernel: ImageKernel, threads: int, shared_bytes: int) -> Resources:
        """What a kernel of an Image takes, and how many of its blocks a multiprocessor holds."""
        kernel.function(shared_bytes, self.context)
        with reported("ask what a kernel takes"):
            found = kernel.core.attributes[self.ordinal]
            resident = kernel.core.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)
            return Resources(found.num_regs, found.local_size_bytes, found.shared_size_bytes, resident)


def load_image(image: bytes, arch: str) -> Image:
    """A GpuImage as it is stored, for devices of an architecture."""
    from cuda.core import ObjectCode

    found = GpuImage.of(image)
    with reported("load an image"):
        return Image(tuple((ObjectCode.from_cubin if code is found.cubin else ObjectCode.from_ptx)(code)
                           for code in found.for_device(arch)))


def function_of(kernel: int, shared_bytes: int) -> int:
    """The CUfunction of a CUkernel in the current context, loaded, with leave to use this much dynamic shared memory."""
    driver = start()
    found = checked(driver.cuKernelGetFunction(kernel), "load a kernel")
    if shared_bytes > PLAIN_SHARED:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(found, attribute, shared_bytes), f"give a kernel {shared_bytes} bytes of shared memory")
    return int(found)


def blocks_at_once(function: int, step: Launch, ordinal: int) -> int:
    """Blocks of a CUfunction that the device of the current context holds at once, by whole clusters; at least one cluster."""
    driver, blocks = start(), math.prod(step.cluster)
    if blocks == 1:
        each = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, step.threads, step.shared_bytes)
        return max(1, int(checked(each, "ask how many blocks fit")) * limits_of(ordinal).multiprocessors)
    config = _configured(step.cluster, (step.threads, 1, 1), step.shared_bytes, step.cluster, 0)
    found = ctypes.c_int()
    ask = abi.CLUSTERS(address("cuOccupancyMaxActiveClusters"))
    code = ask(ctypes.addressof(found), function, ctypes.addressof(config))
    if code:
        fail(code, f"ask how many clusters of {blocks} blocks fit")
    return max(1, found.value) * blocks


def _configured(grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, cluster: tuple[int, int, int],
                stream: int) -> abi.LaunchConfig:
    config = abi.LaunchConfig(grid, block, shared_bytes, stream)
    if cluster != (1, 1, 1):
        config.attributes = ctypes.pointer(abi.LaunchAttribute(abi.CLUSTER_DIMENSION, cluster=cluster))
        config.attribute_count = 1
    return config


def arch_of(ordinal: int) -> str:
    """As in `sm_90a`: what code may be made for to run on a device."""
    major, minor = _capability(ordinal)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def cannot_run(arch: str, ordinal: int) -> str:
    """Why a device cannot run code for `arch`; empty where it can. PTX of `sm_80` runs on all later ones, that of `sm_90a` on
    9.0 alone, that of `sm_100f` on its family."""
    wanted = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if wanted is None:
        return f"architecture {arch!r} is unknown"
    need, have = (int(wanted[1]), int(wanted[2])), _capability(ordinal)
    fits = {"a": have == need, "f": have[0] == need[0] and have >= need, "": have >= need}[wanted[3]]
    return "" if fits else f"it is for {arch} and the device is {arch_of(ordinal)}"


def limits_of(ordinal: int) -> GpuLimits:
    """Limits that the driver reports. Makes no context."""
    at = _attributes(ordinal)
    return GpuLimits(arch_of(ordinal), at["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"], at["MAX_THREADS_PER_BLOCK"],
                     at["MAX_REGISTERS_PER_MULTIPROCESSOR"], multiprocessors=at["MULTIPROCESSOR_COUNT"])


def properties_of(ordinal: int) -> dict[str, int | str]:
    """Name, architecture, driver and sizes of a device. Makes no context."""
    driver, at = start(), _attributes(ordinal)
    name = checked(driver.cuDeviceGetName(128, ordinal), "ask for the device's name").split(b"\0")[0].decode()
    memory = int(checked(driver.cuDeviceTotalMem(ordinal), "ask for the device's memory"))
    return {"name": name, "arch": arch_of(ordinal), "driver": driver_version(),
            "multiprocessors": at["MULTIPROCESSOR_COUNT"], "memory": memory, "l2": at["L2_CACHE_SIZE"],
            "shared_bytes": at["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"], "registers": at["MAX_REGISTERS_PER_MULTIPROCESSOR"]}


def _attributes(ordinal: int) -> dict[str, int]:
    driver = start()
    prefix = "CU_DEVICE_ATTRIBUTE_"
    names = ("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "MAX_THREADS_PER_BLOCK", "MAX_REGISTERS_PER_MULTIPROCESSOR",
             "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE")
    return {n: int(checked(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, prefix + n), ordinal), f"ask for {n}"))
            for n in names}


def _capability(ordinal: int) -> tuple[int, int]:
    driver = start()
    kind = driver.CUdevice_attribute
    major, minor = (int(checked(driver.cuDeviceGetAttribute(k, ordinal), "ask for the compute capability"))
                    for k in (kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                              kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    return major, minor


def _word(value: int | bytes) -> Any:
    """Memory that holds a kernel's argument; the driver reads as many bytes as the parameter has."""
    if isinstance(value, bytes):
        return (ctypes.c_uint8 * len(value)).from_buffer_copy(value)
    return ctypes.c_uint64(value & (1 << 64) - 1)
