"""QuickCalls: calls with torch tensors of shapes that were seen before, in a few microseconds.

What a call checks and works out depends on the shapes alone, so it is kept; what is left is to look at each tensor's type, device
and address. A call that is unlike those learned goes the long way (runtime/cuda/cuda_caller.py), which has all the messages.
Offsets of ragged dims may be NumPy arrays: the host program checks them, and they are copied to memory that is kept for the
shapes and the stream, in the order of which the call before has read its own.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.call.binder import Bound
from tilewright.runtime.call.results import FEW, address
from tilewright.runtime.cuda.cuda_arrays import torch_dtypes
from tilewright.runtime.cuda.driver import checked, start
from tilewright.runtime.cuda.loaded import LoadedProgram, StreamContext
from tilewright.runtime.cuda.result_ring import can_keep
from tilewright.runtime.program.program import Program
from tilewright.runtime.program.tensor_map import ALIGNMENT

_MOST = 4096  # shapes kept


class _Plan(NamedTuple):
    """dims: values for the native program, `size` of them, at `address`. outputs: shape and torch dtype of each result.
    input_bytes, output_bytes: of each argument and each result. rooms: where offsets of the host are copied, by stream and
    argument."""

    loaded: LoadedProgram
    dims: Any
    size: int
    address: int
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    device: Any
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    rooms: dict[tuple[int, int], Any]


class QuickCalls:
    """The calls that one program has learned. Programs with scalar or donated arguments learn none.

    Args:
        counted: is told the dims of each call that was taken. offsets: the arguments that are offsets of ragged dims.
    """

    def __init__(self, program: Program, counted: Callable[[Sequence[int]], None] = lambda dims: None,
                 offsets: Collection[int] = ()) -> None:
        self._counted, self._offsets = counted, offsets
        self._can_learn = not program.donated and all(a.dims is not None for a in program.inputs)
        self._count = len(program.inputs)
        self._wanted = tuple(a.dtype.numpy for a in program.inputs)
        self._made = tuple(a.dtype.numpy for a in program.outputs)
        self._dtypes: tuple[Any, ...] = ()
        self._types: frozenset[type] = frozenset()
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def learn(self, torch: Any, args: Sequence[Any], bound: Bound, loaded: LoadedProgram) -> None:
        """Keep what a good call found, if it is one that `call` takes."""
        tensors = [a for i, a in enumerate(args) if i not in self._offsets or type(a) is not np.ndarray]
        types = {type(a) for a in tensors}
        if not self._can_learn or not all(_is_plain(torch, t) for t in types) or not all(a.is_cuda for a in tensors):
            return
        self._types |= types
        of = {numpy: torch_dtype for torch_dtype, numpy in torch_dtypes(torch).items()}
        dims = (ctypes.c_int64 * max(1, len(bound.dims)))(*bound.dims)
        outputs = tuple((shape, of[dtype]) for shape, dtype in zip(bound.outputs, self._made, strict=True))
        if len(self._plans) >= _MOST:
            self._plans.clear()
        device = tensors[0].device
        self._dtypes = tuple(of[d] for d in self._wanted)
        sizes = (tuple(math.prod(a.shape) * a.dtype.itemsize for a in args), tuple(math.prod(s) * d.itemsize for s, d in outputs))
        plan = _Plan(loaded, dims, len(bound.dims), ctypes.addressof(dims), outputs, device, *sizes, {})
        self._plans[(device.index, *[a.shape for a in args])] = plan

    def call(self, torch: Any, args: Sequence[Any], out: Any = None) -> Any:
        """The results, or None where the long way has to be gone: nothing has run then. out: as of a call."""
        dtypes = self._dtypes
        if len(args) != self._count or not dtypes:
            return None
        types, shapes, misaligned = self._types, [], 0
        index, pointers, hosts = None, list[int](), list[int]()
        for value, dtype in zip(args, dtypes, strict=True):
            if type(value) is np.ndarray:
                number = len(pointers)
                if number not in self._offsets or value.dtype != np.int64 or not value.flags.c_contiguous:
                    return None
                hosts.append(number)
                pointers.append(0)
                shapes.append(value.shape)
                continue
            if type(value) not in types or value.dtype is not dtype or not value.is_contiguous():
                return None
            if value.requires_grad and torch.is_grad_enabled():
                return None
            number = value.get_device()
            if index is None:
                index = number
            elif number != index:
                return None
            pointer = value.data_ptr()
            misaligned |= pointer
            pointers.append(pointer)
            shapes.append(value.shape)
        plan = self._plans.get((index, *shapes))
        if plan is None or misaligned % ALIGNMENT:
            return None
        stream = torch._C._cuda_getCurrentRawStream(index)
        context = plan.loaded.contexts.get(stream)
        if context is None or (hosts and torch.cuda.is_current_stream_capturing()):
            return None
        ring = context.ring if can_keep(torch) else None
        if out is not None:
            results = list(out) if isinstance(out, tuple | list) else [out]
            if not _fit(torch, results, plan, pointers):
                return None
        elif ring is None:
            results = [torch.empty(shape, dtype=dtype, device=plan.device) for shape, dtype in plan.outputs]
        else:
            results = [ring.tensor(torch, shape, dtype, plan.device) for shape, dtype in plan.outputs]
        seen = [address(args[i]) if i in hosts else 0 for i in self._offsets]
        with context.arena.lock:
            for number in hosts:
                pointers[number] = _copied(torch, plan, context, number, args[number])
            status = context.run(pointers, [*[r.data_ptr() for r in results], *seen], 0, plan.address)
            if context.error:
                plan.loaded.fail(context)
        if status:
            return None
        self._counted(plan.dims[: plan.size])
        return results[0] if len(results) == 1 else tuple(results)


def _copied(torch: Any, plan: _Plan, context: StreamContext, number: int, offsets: np.ndarray[Any, Any]) -> int:
    """Where the offsets of the host are on the device, in the order of the stream. The driver has read memory that is not pinned
    when it comes back."""
    room = plan.rooms.get((context.stream, number))
    if room is None:
        room = plan.rooms[context.stream, number] = torch.empty(offsets.shape, dtype=torch.int64, device=plan.device)
    at = int(room.data_ptr())
    with plan.loaded.gpu.current():
        checked(start().cuMemcpyHtoDAsync(at, address(offsets), offsets.nbytes, context.stream), "copy an argument to the GPU")
    return at


def _fit(torch: Any, results: Sequence[Any], plan: _Plan, pointers: Sequence[int]) -> bool:
    """May the results of a call be these, apart from each other and from its arguments, which begin at `pointers`?"""
    if len(results) != len(plan.outputs) or len(results) + len(pointers) > FEW:
        return False
    taken = [(at, at + size) for at, size in zip(pointers, plan.input_bytes, strict=True)]
    for value, (shape, dtype), size in zip(results, plan.outputs, plan.output_bytes, strict=True):
        if type(value) is not torch.Tensor or value.dtype is not dtype or value.shape != shape or value.device != plan.device:
            return False
        begin = value.data_ptr()
        if not value.is_contiguous() or value.requires_grad or begin % ALIGNMENT:
            return False
        if any(begin < last and first < begin + size for first, last in taken):
            return False
        taken.append((begin, begin + size))
    return True


def _is_plain(torch: Any, kind: Any) -> bool:
    """Is it the class of tensors, or one made of it that changes nothing that an operator sees, as torch.nn.Parameter?"""
    if kind is torch.Tensor:
        return True
    return issubclass(kind, torch.Tensor) and kind.__torch_function__ is torch._C._disabled_torch_function_impl \
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
