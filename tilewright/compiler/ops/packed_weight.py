"""Weights in few bits as other tools store them, in the form that `decode` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.ops.codes import decode, planes
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.runtime.errors import OptionError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]
_GGUF = {"Q4_0": 18, "Q5_0": 22, "Q8_0": 34}  # bytes of a block
_GGUF_BLOCK = 32  # values
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # column of eight that each four bits of an int32 hold
_NIBBLES = 8  # codes of an int32


@dataclass(frozen=True)
class PackedWeight:
    """The weight [N, K] whose element [n, k] is (code - zero) * scale, one scale and zero point a group of k.

    codes: ui8 [N, bytes], 8 / bits a byte, the first in its low bits; of 3, 5, 6 and 7 bits several, as `decode` takes them.
    scale: f16 or f32 [N, groups]. zero: ui8 or f32 like it,
    or one number for all; None for the middle of the codes. bits: 1 to 8. group: values along K of a scale. depth: K.

    Made by `PackedWeight.plain(codes, scale, zero)` of one integer a value, `.gguf(data, "Q4_0", (n, k))`,
    `.awq(qweight, qzeros, scales)` and `.gptq(qweight, qzeros, scales)`.
    """

    codes: tuple[Array, ...]
    scale: Array
    zero: Array | float | None
    bits: int
    group: int
    depth: int

    @staticmethod
    def plain(codes: Array, scale: Array, zero: Array | None = None, *, bits: int = 4, signed: bool = False) -> PackedWeight:
        """Of one integer a value, codes [N, K], as torchao and most quantisers hold them. signed: they lie around 0, as -8 to 7.

        Raises:
            OptionError: other bits, or a code that they do not hold. ShapeError: groups that do not divide K.
        """
        if not planes(bits):
            raise OptionError(f"PackedWeight: codes of {bits} bits; wanted 1 to 8")
        codes, scale = np.asarray(codes), np.asarray(scale)
        if codes.ndim != 2 or scale.ndim != 2 or len(scale) != len(codes) or not scale.shape[1] or \
                codes.shape[1] % scale.shape[1]:
            raise ShapeError(f"PackedWeight: codes {codes.shape} with scales {scale.shape}; wanted [N, K] and [N, groups], where "
                             "the groups divide K")
        if zero is not None and np.shape(zero) != scale.shape:
            raise ShapeError(f"PackedWeight: zero points {np.shape(zero)}; wanted one for each scale, {scale.shape}")
        middle = 1 << (bits - 1)
        wide = codes.astype(np.int64) + (middle if signed else 0)
        if wide.size and (wide.min() < 0 or wide.max() >= 2 * middle):
            low, high = (-middle, middle - 1) if signed else (0, 2 * middle - 1)
            raise OptionError(f"PackedWeight: codes from {codes.min()} to {codes.max()}; {bits} bits hold {low} to {high}"
                              f"{'' if signed else ', or pass signed=True'}")
        point: Array | float | None = None
        if zero is not None:
            moved = np.asarray(zero) + (middle if signed else 0)
            whole = moved.dtype.kind in "iu" and (not moved.size or (moved.min() >= 0 and moved.max() <= 255))
            point = moved.astype(np.uint8 if whole else np.float32)
        elif not signed:
            point = 0.0
        kept = scale if scale.dtype in (np.float16, np.float32) else scale.astype(np.float32)
        return PackedWeight(packed(wide.astype(np.uint8), bits), np.ascontiguousarray(kept), point, bits,
                            codes.shape[1] // scale.shape[1], codes.shape[1])

    @staticmethod
    def gguf(data: Array, kind: str, shape: tuple[int, int]) -> PackedWeight:
        """Of the bytes of a GGUF tensor of type Q4_0, Q5_0 or Q8_0: blocks of 32 values with an f16 scale. shape: [N, K], the
        reverse of what the file's header says.

        Raises:
            OptionError: another type. ShapeError: other bytes than the shape has.
        """
        n, k = shape
        if kind not in _GGUF:
            raise OptionError(f"PackedWeight.gguf: type {kind!r}; wanted {', '.join(_GGUF)}")
        raw, blocks = np.ascontiguousarray(data).view(np.uint8).reshape(-1), n * (k // _GGUF_BLOCK)
        if k % _GGUF_BLOCK or raw.size != blocks * _GGUF[kind]:
            raise ShapeError(f"PackedWeight.gguf: {raw.size} bytes for {kind} of {n} x {k}; wanted {blocks * _GGUF[kind]}, and "
                             f"rows of whole blocks of {_GGUF_BLOCK}")
        block = raw.reshape(blocks, _GGUF[kind])
        scale, stored = block[:, :2].copy().view(np.float16).reshape(n, -1), block[:, 2:]
        if kind == "Q8_0":
            return PackedWeight.plain(stored.copy().view(np.int8).reshape(n, k), scale, bits=8, signed=True)
        low = stored[:, -_GGUF_BLOCK // 2 :]  # the low halves of all bytes, then the high ones
        codes = np.concatenate([low & 15, low >> 4], 1).astype(np.int8)
        if kind == "Q5_0":
            codes += np.unpackbits(stored[:, :4], axis=1, bitorder="little").astype(np.int8) * 16
            return PackedWeight.plain(codes.reshape(n, k) - 16, scale, bits=5, signed=True)
        return PackedWeight.plain(codes.reshape(n, k) - 8, scale, signed=True)

    @staticmethod
    def awq(qweight: Array, qzeros: Array, scales: Array) -> PackedWeight:
        """Of AWQ's tensors: int32 [K, N / 8] of 4-bit codes, int32 [groups, N / 8] of zero points, scales [groups, N]."""
        codes, zeros = (_spread(np.asarray(a))[:, :, np.argsort(_AWQ)].reshape(len(a), -1) for a in (qweight, qzeros))
        return PackedWeight.plain(codes.T, np.asarray(scales).T, zeros.T)

    @staticmethod
    def gptq(qweight: Array, qzeros: Array, scales: Array, *, groups: Array | None = None,
             off_by_one: bool = True) -> PackedWeight:
        """Of GPTQ's tensors: int32 [K / 8, N] of 4-bit codes, int32 [groups, N / 8] of zero points, scales [groups, N].

        groups: g_idx, the group of each k. off_by_one: zero points are stored less one, as in files of format "gptq"; not so in
        "gptq_v2".

        Raises:
            OptionError: groups in another order than k.
        """
        codes = _spread(np.asarray(qweight)).transpose(0, 2, 1).reshape(-1, np.shape(qweight)[1])
        zeros = _spread(np.asarray(qzeros)).reshape(len(qzeros), -1) + (1 if off_by_one else 0)
        if groups is not None and not np.array_equal(np.asarray(groups), np.arange(len(codes)) * len(zeros) // len(codes)):
            raise OptionError("PackedWeight.gptq: g_idx reorders the groups (desc_act); wanted values of k in order")
        return PackedWeight.plain(codes.T, np.asarray(scales).T, zeros.T)

    def tensor(self, graph: Graph) -> Tensor:
        """The weight [N, K] as constants of a graph, decoded where it is read: `dense(x, w.tensor(g), transposed=True)`."""
        def factor(array: Array) -> Tensor:
            return graph.constant(array if array.shape[1] > 1 else array[:, 0])

        zero = factor(self.zero) if isinstance(self.zero, np.ndarray) else self.zero
        codes = [graph.constant(c) for c in self.codes]
        return decode(codes, factor(self.scale), zero, bits=self.bits, group=self.group, depth=self.depth)

    @property
    def bytes(self) -> int:
        """Of all that is stored."""
        return sum(a.nbytes for a in (*self.codes, self.scale, self.zero) if isinstance(a, np.ndarray))


def _spread(words: Array) -> Array:
    """Eight codes of 4 bits of each int32, [rows, columns, 8], the low bits first."""
    return np.stack([(words.view(np.uint32) >> (4 * i)) & 15 for i in range(_NIBBLES)], -1).astype(np.int64)


def packed(codes: Array, bits: int) -> tuple[Array, ...]:
    """[N, K] codes, one a byte, as the tensors of packed codes that `decode` takes."""
    found, place = list[Array](), 0
    for width in planes(bits):
        found.append(_packed((codes >> np.uint8(place)) & np.uint8((1 << width) - 1), width))
        place += width
    return tuple(found)


def _packed(codes: Array, bits: int) -> Array:
    """[N, K] codes, 8 / bits in a byte."""
    each = 8 // bits
    n, k = codes.shape
    padded = np.zeros((n, -(-k // each), each), np.uint8)
    padded.reshape(n, -1)[:, :k] = codes
    found: Array = np.bitwise_or.reduce(padded << (np.arange(each, dtype=np.uint8) * bits), axis=2)
    return found
