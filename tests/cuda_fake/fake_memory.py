"""Memory and copies of the fake driver."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_fake.fake_state import INVALID_VALUE, OUT_OF_MEMORY, FakeError, FakeState, Stream, entry, put

_POOL = 0x2000
TOTAL = 1 << 34


class MemoryCalls(FakeState):
    """Addresses are the emulators'; the current context says whose."""

    def _allocate(self, size: int) -> int:
        device = self.device()
        if not size:
            raise FakeError(INVALID_VALUE)
        if sum(n for (d, _), n in self.live.items() if d == device) + size > TOTAL:
            raise FakeError(OUT_OF_MEMORY)
        address = self.devices[device].alloc(size)
        self.live[device, address] = size
        return address

    def _free(self, device: int, address: int) -> None:
        if self.live.pop((device, address), None) is None:
            self.errors.append(f"0x{address:x} is freed and was not allocated")
        else:
            self.devices[device].free(address)

    @entry("cuMemGetInfo", "pp")
    def memory_info(self, free: int, total: int) -> None:
        device = self.device()
        used = sum(n for (d, _), n in self.live.items() if d == device) + self.graph_bytes.get(device, 0)
        put(free, TOTAL - used)
        put(total, TOTAL)

    @entry("cuMemAlloc", "pq")
    def alloc(self, out: int, size: int) -> None:
        self.forbid_in_capture()
        put(out, self._allocate(size))

    @entry("cuMemFree", "q")
    def free(self, address: int) -> None:
        self.forbid_in_capture()
        self.context_synchronize()  # type: ignore[attr-defined]
        self._free(self.device(), address)

    @entry("cuMemAllocFromPoolAsync", "pqpp")
    def alloc_from_pool(self, out: int, size: int, pool: int, stream: int | None) -> None:
        """A pool may grow, which a capture forbids as it does cuMemAlloc."""
        self.forbid_in_capture()
        self._not_in_capture(self.stream(stream))
        put(out, self._allocate(size))

    @entry("cuMemAllocAsync", "pqp")
    def alloc_async(self, out: int, size: int, stream: int | None) -> None:
        self.forbid_in_capture()
        self._not_in_capture(self.stream(stream))
        put(out, self._allocate(size))

    @entry("cuMemFreeAsync", "qp")
    def free_async(self, address: int, stream: int | None) -> None:
        found = self.stream(stream)
        self._not_in_capture(found)
        self.do(found, lambda: self._free(found.device, address))

    def _not_in_capture(self, stream: Stream) -> None:
        if stream.capture is not None:
            self.errors.append("memory is allocated or freed in a capture")

    @entry("cuDeviceGetMemPool", "pi")
    def pool(self, out: int, ordinal: int) -> None:
        put(out, _POOL + ordinal)

    @entry("cuDeviceGetDefaultMemPool", "pi")
    def default_pool(self, out: int, ordinal: int) -> None:
        put(out, _POOL + ordinal)

    @entry("cuMemPoolGetAttribute", "pip")
    def pool_attribute(self, pool: int, attribute: int, out: int) -> None:
        put(out, 0)

    @entry("cuMemPoolSetAttribute", "pip")
    def pool_set_attribute(self, pool: int, attribute: int, value: int) -> None:
        pass

    @entry("cuPointerGetAttribute", "piq")
    def pointer_attribute(self, out: int, attribute: int, address: int) -> None:
        self._describe(out, attribute, address)

    @entry("cuPointerGetAttributes", "uppq")
    def pointer_attributes(self, count: int, attributes: int, outs: int, address: int) -> None:
        for number in range(count):
            out = ctypes.c_uint64.from_address(outs + 8 * number).value
            self._describe(out, ctypes.c_int.from_address(attributes + 4 * number).value, address)

    def _describe(self, out: int, attribute: int, address: int) -> None:
        kinds = driver.CUpointer_attribute
        device = next((d for d, a in self.live if a == address), 0)
        if attribute == int(kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL):
            put(out, device, ctypes.c_int)
        elif attribute == int(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE):
            put(out, int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE), ctypes.c_int)
        elif attribute == int(kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED):
            put(out, 0, ctypes.c_int)
        else:
            raise FakeError(INVALID_VALUE)

    # copies

    @entry("cuMemcpyHtoDAsync", "qpqp")
    def copy_in(self, target: int, source: int, size: int, stream: int | None) -> None:
        found = self.stream(stream)
        data = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        self.do(found, lambda: self.devices[found.device].copy_in(target, data))

    @entry("cuMemcpyDtoHAsync", "pqqp")
    def copy_out(self, target: int, source: int, size: int, stream: int | None) -> None:
        found = self.stream(stream)

        def work() -> None:
            data = self.devices[found.device].copy_out(source, size, np.uint8)
            ctypes.memmove(target, data.ctypes.data, size)

        self.do(found, work)

    @entry("cuMemsetD8Async", "qiqp")
    def fill(self, target: int, value: int, size: int, stream: int | None) -> None:
        """Left out: the emulator knows what nobody wrote."""
        self.stream(stream)

    @entry("cuMemcpyDtoDAsync", "qqqp")
    def copy_within(self, target: int, source: int, size: int, stream: int | None) -> None:
        found = self.stream(stream)
        self.do(found, lambda: self.devices[found.device].copy_within(target, source, size))
