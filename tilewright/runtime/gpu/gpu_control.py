"""GpuControl: branches and loops that depend on data, on an accelerator whose launches come one by one from Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilewright.runtime.device import CONTROL_WORDS, ControlOp
from tilewright.runtime.gpu.accelerator import Accelerator
from tilewright.runtime.gpu.control_kernels import FLAG, OTHERWISE, ControlKernel, control_ptx, copy_blocks, launches
from tilewright.runtime.program.data_branches import AHEAD


class GpuControl:
    """As native code does it for a GPU (runtime/cuda/control_table.py): all is launched, and kernels go by a byte.

    Attributes:
        predicate: address of the byte that the launches now go by. reads: read each byte and launch what it asks for instead, to
        compare with.
    """

    def __init__(self, device: Accelerator, reads: bool = False) -> None:
        self._device, self.reads = device, reads
        self._image: Any = None
        self._always = 0
        self._predicate = 0

    @property
    def predicate(self) -> int:
        self._start()
        return self._predicate

    @predicate.setter
    def predicate(self, byte: int) -> None:
        self._predicate = byte

    def reset(self) -> None:
        """Nothing depends on data until the next branch or loop."""
        self._predicate = self._always

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy on the device, where the byte of now is set."""
        if self._predicate == self._always:
            self._device.copy_within(target, source, size)
        elif size:
            self._launch(ControlKernel.COPY, (target, source, size, self.predicate), copy_blocks(size))

    def run(self, op: ControlOp, at: int) -> int:
        """`control` of runtime/device.py; at: address of its words."""
        words = _Words(at)
        state, byte, outer = words["state"], words["byte"], words["outer"]
        flag, other = state + FLAG, state + OTHERWISE
        match op:
            case ControlOp.BRANCH:
                words["outer"] = self.predicate
                if self.reads:
                    return 1 if self._byte(byte) else 2
                self._launch(ControlKernel.TEST, (flag, self.predicate, byte, 0))
                self.predicate = flag
                return 3
            case ControlOp.ELSE if not self.reads:
                self._launch(ControlKernel.TEST, (other, outer, flag, 1))
                self.predicate = other
            case ControlOp.JOIN:
                self.predicate = outer
            case ControlOp.LOOP:
                words["outer"], words["turn"] = self.predicate, 0
                if not self.reads:
                    self._launch(ControlKernel.BEGIN, (flag, self.predicate, state))
                    self.predicate = flag
            case ControlOp.TURN:
                return self._turn(words, flag, byte, state)
            case ControlOp.DONE:
                self.predicate = outer
                return words["turn"] - 1 if self.reads else self._count(state)
            case ControlOp.SETTLE:
                raise ValueError("the turns of a loop are known here, so nothing is to settle")
        return 0

    def _turn(self, words: _Words, flag: int, byte: int, state: int) -> int:
        turn = words["turn"] = words["turn"] + 1
        if self.reads:
            return self._byte(byte)
        self._launch(ControlKernel.TURN, (flag, byte, state))
        limit = words["limit"]
        if 0 <= limit < turn:
            return 0
        return int(turn % AHEAD != 0 or self._count(state) == turn)

    def _start(self) -> None:
        if self._image is None:
            self._image = self._device.load(control_ptx().encode())
            self._always = self._device.alloc(1)
            self._device.copy_in(self._always, np.ones(1, np.uint8))
            self._predicate = self._always

    def _launch(self, kernel: ControlKernel, args: tuple[int, ...], blocks: int = 1) -> None:
        launch = launches()[kernel]
        entry = self._image.kernel(launch.symbol)
        self._device.launch(entry, (blocks, 1, 1), (launch.threads, 1, 1), 0, args, launch.cluster)

    def _byte(self, at: int) -> int:
        return int(self._device.copy_out(at, (1,), np.uint8)[0])

    def _count(self, state: int) -> int:
        return int(self._device.copy_out(state, (1,), np.int64)[0])


class _Words:
    """CONTROL_WORDS in memory, as signed numbers."""

    def __init__(self, at: int) -> None:
        self._words = (ctypes.c_int64 * len(CONTROL_WORDS)).from_address(at)

    def __getitem__(self, name: str) -> int:
        return self._words[CONTROL_WORDS.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[CONTROL_WORDS.index(name)] = value
