"""Where a tensor of PyTorch keeps what a call has to know of it, so that native code reads it in place of asking.

Nothing is taken for granted: the places are found by comparing the memory of tensors that differ in one respect. Where that does
not point to one place each, there is no layout, and native code calls PyTorch's functions.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilewright.runtime.device import LoadedCode

LAYOUT = "tw_torch_layout"  # a binder's table of 8-byte words for it, zeros where there is none
_OBJECT_WORDS = range(16, 48, 8)  # of a tensor's Python object, where the address of the tensor is looked for
_TENSOR_WORDS = range(16, 192, 8)  # of the tensor itself; c10::TensorImpl has no fewer bytes
_TURNS = 4  # in which samples are made


class TorchLayout(NamedTuple):
    """Offsets in bytes. tensor: of the tensor's address in its Python object. keys: of the word with the bit `negative`, which is
    set where elements are negated as they are read. gradient: of a word that is not 0 where a gradient may be wanted."""

    tensor: int
    keys: int
    negative: int
    gradient: int


def fill_layout(code: LoadedCode, layout: TorchLayout) -> None:
    """Write the words of a binder's table, where it has one; artifacts from before there was this table have none."""
    try:
        table = code.address(LAYOUT)
    except KeyError:
        return
    for number, value in reversed(list(enumerate(layout))):  # "tensor", which says that the others are there, last
        ctypes.c_uint64.from_address(table + 8 * number).value = value


@functools.cache
def torch_layout() -> TorchLayout | None:
    """The layout of the imported PyTorch's tensors on the CPU, or None."""
    torch: Any = sys.modules["torch"]
    if not hasattr(torch.Tensor, "_cdata"):
        return None
    with torch.inference_mode(False), torch.enable_grad():
        plain, wanted, viewed, negated = _samples(torch)
    others = [*plain, *wanted, *viewed]
    tensors = [*others, *negated]
    if any(t.is_neg() for t in others) or not all(t.is_neg() for t in negated):
        return None
    places = _where(_OBJECT_WORDS, lambda at: all(_word(id(t), at) == t._cdata for t in tensors))
    bits = {at: _bits(at, others, negated) for at in _TENSOR_WORDS}
    keys = _where(_TENSOR_WORDS, lambda at: bits[at] != 0)
    gradients = _where(_TENSOR_WORDS, lambda at: not any(_word(t._cdata, at) for t in plain)
                       and all(_word(t._cdata, at) for t in wanted))
    if len(places) != 1 or len(keys) != 1 or len(gradients) != 1 or bits[keys[0]].bit_count() != 1:
        return None
    return TorchLayout(places[0], keys[0], bits[keys[0]], gradients[0])


def _samples(torch: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Tensors without a gradient, of several element types and sizes; those that want one; those that begin inside others, and
    those that do while their elements are negated.

    The kinds are made in turns: of tensors made kind by kind, addresses they hold may differ by kind too, in one bit.
    """
    plain, wanted, viewed, negated = [], [], [], []
    for _ in range(_TURNS):
        for size in ((), (3,), (2, 5), (4, 1, 7)):
            plain += [torch.ones(size, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)]
            whole, leaf = torch.ones(size, dtype=torch.complex64), torch.ones(size, requires_grad=True)
            negated.append(whole.conj().imag)
            wanted += [leaf, leaf * 2, torch.nn.Parameter(torch.ones(size))]
            viewed.append(whole.imag)
    return plain, wanted, viewed, negated


def _where(offsets: Sequence[int], holds: Callable[[int], bool]) -> list[int]:
    return [at for at in offsets if holds(at)]


def _bits(at: int, others: Sequence[Any], negated: Sequence[Any]) -> int:
    """Bits of a word that all of the negated tensors have and none of the others."""
    found = -1
    for tensor in negated:
        found &= _word(tensor._cdata, at)
    for tensor in others:
        found &= ~_word(tensor._cdata, at)
    return found & (1 << 64) - 1


def _word(base: int, offset: int) -> int:
    return ctypes.c_uint64.from_address(base + offset).value
