"""Tensor maps in the emulator: their 128 bytes as kernel parameters, and the copies they describe."""

from __future__ import annotations

import struct

import numpy as np

from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.program.tensor_map import DTYPES, MAP_BYTES, MOST_AXES, TensorMap

_MAGIC = b"TMap"
_FORMAT = struct.Struct(f"<4s4BQ{MOST_AXES}I{MOST_AXES}H2x{MOST_AXES}Q")


def encode(tensor_map: TensorMap) -> bytes:
    """The parameter's bytes, in a layout of the emulator's own."""

    def padded(values: tuple[int, ...]) -> list[int]:
        return [*values, *([1] * (MOST_AXES - len(values)))]

    head = (_MAGIC, DTYPES.index(tensor_map.dtype), len(tensor_map.sizes), tensor_map.swizzle, 0, tensor_map.address)
    packed = _FORMAT.pack(*head, *padded(tensor_map.sizes), *padded(tensor_map.box), *padded(tensor_map.strides))
    return packed.ljust(MAP_BYTES, b"\0")


def decode(raw: bytes) -> TensorMap:
    """The inverse of `encode`; EmulatorError when the bytes are no tensor map."""
    magic, dtype, rank, swizzle, _, address, *rest = _FORMAT.unpack_from(raw)
    if magic != _MAGIC:
        raise EmulatorError("the parameter is no tensor map")
    sizes, box, strides = (tuple(rest[i * MOST_AXES : (i + 1) * MOST_AXES]) for i in range(3))
    return TensorMap(DTYPES[dtype], address, sizes[:rank], strides[: rank - 1], box[:rank], swizzle)


def box_addresses(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> tuple[Array, Array]:
    """(addresses [row, element] of a box in the order of shared memory, which of them are inside the tensor)."""
    element = tensor_map.dtype.bytes
    total, inside = np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool)
    for axis in reversed(range(len(tensor_map.sizes))):
        at = coordinates[axis] + np.arange(tensor_map.box[axis])
        stride = element if axis == 0 else tensor_map.strides[axis - 1]
        ok = (at >= 0) & (at < tensor_map.sizes[axis])
        total = (total[:, None] + np.where(ok, at, 0) * stride).reshape(-1)
        inside = (inside[:, None] & ok).reshape(-1)
    shape = (-1, tensor_map.box[0])
    return total.reshape(shape) + tensor_map.address, inside.reshape(shape)


def swizzled(offsets: Array, swizzle: int) -> Array:
    """Byte addresses of shared memory with the chunks of 16 bytes of each row permuted."""
    if not swizzle:
        return offsets
    chunks = swizzle // 16
    return np.asarray(offsets ^ (((offsets >> 7) & (chunks - 1)) << 4))
