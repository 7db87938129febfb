"""KernelTimer: runs one micro-kernel on a GPU, and times it by events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tilewright.runtime.cuda.cuda_device import CudaDevice, Image, Resources
from tilewright.runtime.cuda.driver import reported
from tilewright.runtime.cuda.replays import Replays
from tilewright.runtime.gpu.gpu_launch import copied_in, enqueue, fetch, given_to, place, release, room_of
from tilewright.runtime.program.kernel import MicroKernel

WARM_UP = 3  # untimed repeats, at least
MOST_SETS = 16  # copies of the operands
_MOST_IMAGES = 64  # that stay loaded in a long search
_KEPT = 4  # part of the device's memory that operands may take which stay for the next kernel with the same ones


@dataclass(frozen=True)
class _Sets:
    """arrays: which are copied; they are kept, so that no others get their identities."""

    arrays: tuple[np.ndarray, ...]
    pointers: tuple[tuple[int, ...], ...]
    bytes: int


class KernelTimer:
    """Launches micro-kernels on one device.

    Operands are numpy arrays, inputs then outputs, as runtime/gpu/gpu_launch.py places them. Guards are not checked
    (MicroKernel.legal), nor are results: compare what `run` gives before `time` is believed.

    Args:
        device: a kernel that fails loses it for the process (CudaError.sticky), so measure in a process of its own.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._cache_bytes, self._room = int(device.properties()["l2"]), int(device.properties()["memory"]) // _KEPT
        self._images: OrderedDict[bytes, Image] = OrderedDict()
        self._sets: OrderedDict[tuple[int, ...], _Sets] = OrderedDict()

    def load(self, image: bytes) -> Image:
        """PTX text or a cubin, kept for later calls with the same bytes."""
        found = self._images.pop(image, None) or self.device.load(image)
        self._images[image] = found
        while len(self._images) > _MOST_IMAGES:
            self.device.sync()  # its launches are done; its code goes with the last that refers to it
            self._images.popitem(last=False)
        return found

    def resources(self, kernel: MicroKernel, image: bytes) -> tuple[Resources, ...]:
        """What each launch of a kernel takes of the device."""
        loaded = self.load(image)
        return tuple(self.device.resources(loaded.kernel(step.symbol), step.threads, step.shared_bytes)
                     for step in kernel.launches())

    def run(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Launch once and wait; all operands as they are then.

        Raises:
            CudaError: the kernel cannot be loaded or launched, or failed.
        """
        placed = place(self.device, kernel, dims, arrays)
        try:
            enqueue(self.device, kernel, self.load(image), dims, placed)
            return [fetch(self.device, placed, i, a) for i, a in enumerate(arrays)]
        finally:
            release(self.device, placed)

    def time(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray], repeats: int = 20,
             seconds: float = 0.002) -> list[float]:
        """Seconds of one launch of the kernel, `repeats` of them, in the order taken.

        Operands rotate over so many copies that together they exceed twice the L2 cache (at most 16), so that a launch finds
        its operands in memory, not in the cache. A round is one launch on each copy, captured as a CUDA graph; a repeat replays
        it so often that it lasts about `seconds`, between two events. Repeats of 50 ms, 3 at least, come before and are not
        counted. So what a launch costs the host is not in the figure; what it costs the device is.
        """
        loaded, sets = self.load(image), self._copies(arrays)
        placed = [given_to(self.device, kernel, dims, arrays, pointers) for pointers in sets]
        try:
            with reported(f"time {kernel.symbol}"):
                return self._timed(lambda n, stream: enqueue(self.device, kernel, loaded, dims, placed[n], stream=stream),
                                   len(placed), repeats, seconds)
        finally:
            for each in placed:
                for address in each.further:
                    self.device.free(address)

    def _copies(self, arrays: Sequence[np.ndarray]) -> Sequence[tuple[int, ...]]:
        """Addresses of so many copies of operands as are rotated over. They stay for the next kernel with the same arrays."""
        key = tuple(map(id, arrays))
        found = self._sets.pop(key, None)
        if found is None:
            size = sum(map(room_of, arrays))
            count = max(1, min(MOST_SETS, 1 + 2 * self._cache_bytes // size))
            while self._sets and count * size + sum(s.bytes for s in self._sets.values()) > self._room:
                for address in chain.from_iterable(self._sets.popitem(last=False)[1].pointers):
                    self.device.free(address)
            first = copied_in(self.device, arrays)
            others = [self._copy(first, arrays) for _ in range(1, count)]
            found = _Sets(tuple(arrays), (first, *others), count * size)
        self._sets[key] = found
        return found.pointers

    def _copy(self, pointers: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
        made = []
        for address, a in zip(pointers, arrays, strict=True):
            made.append(self.device.alloc(room_of(a)))
            self.device.copy_within(made[-1], address, room_of(a) if a.size else 0)
        return tuple(made)

    def _timed(self, launch: Callable[[int, Any], None], count: int, repeats: int, seconds: float) -> list[float]:
        for number in range(count):
            launch(number, self.device.stream)  # loads what is not loaded yet, which a capture must not do
        self.device.sync()

        def one_round(stream: Any) -> None:
            for number in range(count):
                launch(number, stream)

        graph = Replays(self.device, one_round)
        rounds = graph.warmed_up(seconds, WARM_UP)
        found = [graph.seconds(rounds) / (rounds * count) for _ in range(repeats)]
        graph.close()
        return found
