"""Caller: one loaded program, called through Python; what the callers of all devices share."""

from __future__ import annotations

import ctypes
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.call.binder import Binder, Bound, converted, shown
from tilewright.runtime.call.interop import Wrap, view
from tilewright.runtime.call.ragged_call import RaggedCall, refuse_offsets
from tilewright.runtime.call.results import Results
from tilewright.runtime.call.shape_counts import ShapeCounts
from tilewright.runtime.call.signature import Signature
from tilewright.runtime.device import STOPPED
from tilewright.runtime.errors import DeviceError, OptionError, ShapeError
from tilewright.runtime.program.program import Program
from tilewright.runtime.ragged_dim import offsets_name

TW_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)


class Caller(ABC):
    """A program in memory, ready to run. Holds no state of a call.

    Args:
        viewed, converted: as of Binder.
    Attributes:
        native: takes calls with numpy arrays without Python and passes those it does not like back to this object; None
            where there is none.
        counts: where calls are counted by their shape; None: nowhere.
    """

    native: Callable[..., Any] | None = None
    counts: ShapeCounts | None = None

    def __init__(self, program: Program, viewed: Callable[[Any, str], tuple[Any, Wrap | None]] = view,
                 converted: Callable[[Any, np.dtype[Any]], Any] = converted) -> None:
        self.program = program
        self.binder = Binder(program, viewed, converted)
        self.results = Results(program)
        self.ragged = RaggedCall(program) if program.ragged else None
        self.signature = Signature(program) if self.ragged is None else self.ragged.signature

    @property
    def offsets(self) -> frozenset[int]:
        """Which of the tensor inputs, by their numbers among these, only the host program reads: the offsets of ragged dims."""
        names = {offsets_name(d.name) for d in self.program.ragged}
        return frozenset(i for i, (*_, argument) in enumerate(self.binder.tensors) if argument.name in names)

    def _place_of(self, name: str) -> int:
        """The number of a tensor input among these."""
        return next(i for i, (*_, argument) in enumerate(self.binder.tensors) if argument.name == name)

    @abstractmethod
    def __call__(self, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None) -> Any:
        """Run with the program's inputs in order; its results as they are."""

    def call(self, /, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None, **named: Any) -> Any:
        """As CompiledFunction.__call__: arguments by position or by name, nested as the program's structures say."""
        signature = self.signature
        if self.ragged is not None:
            return self._call_ragged(self.ragged, args, named, out=signature.flat_out(out), threads=threads, stream=stream)
        if named or not signature.is_flat:
            args, out = tuple(signature.bind(args, named)), signature.flat_out(out)
        if self.native is None or stream is not None or (signature.is_flat and not named):
            return signature.result(self(*args, out=out, threads=threads, stream=stream))
        if out is None and threads is None:
            return signature.result(self.native(*args))
        return signature.result(self.native(*args, out=out, threads=threads))

    def _call_ragged(self, ragged: RaggedCall, args: Sequence[Any], named: dict[str, Any], **options: Any) -> Any:
        """A call whose sequences are of any kind. Native code passes what it does not take here, as the program's own inputs."""
        if self.native is not None and not named and options["stream"] is None and (simple := ragged.simple(args)) is not None:
            made = self.native(*simple.inputs, **{n: v for n, v in options.items() if v is not None})
            return ragged.result(simple, made)
        is_packed = len(args) == len(self.program.inputs) and not named
        call = ragged.pack(args, named)
        if self.native is None or is_packed or options["stream"] is not None:
            return ragged.result(call, self(*call.inputs, **options))
        given = {name: value for name, value in options.items() if value is not None}
        return ragged.result(call, self.native(*call.inputs, **given))

    def count_in(self, counts: ShapeCounts | None) -> None:
        """Count calls by their shape from now on, or, None, no more."""
        self.counts = counts

    def counted(self, dims: Sequence[int]) -> None:
        """A call that Python took is done."""
        counts = self.counts
        if counts is not None:
            counts.add(dims)

    def thread_count(self, threads: int | None = None) -> int:
        """Threads of a call, which is how many workspaces its arena holds. The host program of a GPU needs one."""
        return 1

    def asked_threads(self, threads: Any) -> int | None:
        """What `threads=` asks for; OptionError for what is neither None nor an integer >= 1, of Python or NumPy."""
        if threads is None:
            return None
        try:
            number = 0 if isinstance(threads, bool | np.bool_) else operator.index(threads)
        except TypeError:
            number = 0
        if number < 1:
            raise OptionError("threads: wanted an integer >= 1, or None for all that the function may use, got "
                              f"{shown(threads)}; give a number")
        return number

    def refuse_stream(self, stream: Any) -> None:
        """OptionError where a stream is given to a device that has none."""
        if stream is not None:
            raise OptionError(f"stream={stream!r}: wanted None, {self.program.target} has no streams; leave it out")

    def check(self, status: int, bound: Bound, device: str) -> None:
        """Raise what the status of `tw_call` stands for, if it is not 0 (runtime/program/program.py).

        Raises:
            DeviceError: no memory for the arena. KeyboardInterrupt: a loop was left because of a signal.
            ShapeError: a check of the program does not hold at these dims.
        """
        if not status:
            return
        if status == STOPPED:
            raise KeyboardInterrupt
        point = ", ".join(f"{name} = {value}" for name, value in zip(self.binder.names, bound.dims, strict=True))
        if status < 0:
            fewer = " or fewer threads" if self.thread_count() > 1 else ""
            raise DeviceError(
                f"out of memory for the temporaries of {point or 'a call'} on {device}; call with smaller shapes{fewer}"
            )
        if status > len(self.program.checks):
            dim = self.program.ragged[status - 1 - len(self.program.checks)]
            refuse_offsets(dim, bound.arrays[self._place_of(offsets_name(dim.name))], point)
        raise ShapeError(f"{self.program.checks[status - 1].message}{f' (at {point})' if point else ''}")


def single(returned: Sequence[Any]) -> Any:
    """What a call gives: one result itself, several as a tuple."""
    return returned[0] if len(returned) == 1 else tuple(returned)
